"""The simulated engine's tokenizer and text."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.simulator_text import WORDS, Babble, Vocabulary, fingerprint, pieces_of, prefix_hashes


@given(st.text())
def test_pieces_lose_nothing_and_ids_lead_back(text: str) -> None:
    pieces = pieces_of(text)
    assert "".join(pieces) == text
    vocabulary = Vocabulary()
    assert "".join(vocabulary.decode(vocabulary.encode(pieces))) == text


def test_english_is_about_four_characters_a_token() -> None:
    text = (
        "Headrace stands in front of pools of inference workers and decides whether a request may run now, and where. "
    )
    assert 3.5 < len(text) / len(pieces_of(text)) < 5


def test_special_tokens_and_other_scripts_are_single_tokens() -> None:
    assert pieces_of("<|im_start|>user\n水車 12345") == ["<|im_start|>", "user", "\n", "水", "車", " 123", "45"]


def test_generated_text_splits_into_the_tokens_it_was_made_of() -> None:
    babble = Babble(7)
    assert pieces_of(babble.text(0, 500)) == [WORDS[word] for word in babble.words]
    assert Vocabulary().encode(pieces_of(babble.text(0, 500))) == babble.ids(0, 500)


def test_a_full_vocabulary_spells() -> None:
    vocabulary = Vocabulary(limit=len(WORDS))
    ids = vocabulary.encode(["zebra", WORDS[0]])
    assert ids == [*b"zebra", 256]
    assert "".join(vocabulary.decode([*ids, 10**6, -5]))[:5] == "zebra"


def test_the_same_seed_says_the_same_and_pieces_of_it_join() -> None:
    whole, parts = Babble(3), Babble(3)
    assert whole.text(0, 60) == "".join(parts.text(i, i + 1) for i in range(60)) != Babble(4).text(0, 60)
    assert whole.text_json(0, 60).decode() == whole.text(0, 60)


def test_prefix_hashes_share_what_is_shared_and_nothing_else() -> None:
    a, b = prefix_hashes(list("abcdefgh"), 4), prefix_hashes(list("abcdefgX"), 4)
    assert (len(a), a[0], a[1] == b[1]) == (2, b[0], False)
    assert prefix_hashes(list("Xbcdefgh"), 4)[1] != a[1]
    assert prefix_hashes(list("abcdefgh"), 4, salt="s")[0] != a[0]
    assert prefix_hashes(list("abc"), 4) == []


def test_a_fingerprint_does_not_depend_on_the_process() -> None:
    assert fingerprint(["hi", " there"]) == 3819140844 == fingerprint(["hi there"])


class TestStop:
    def test_nothing_found(self) -> None:
        assert Babble(1).find_stop(20, ["§"], [9]) is None
        assert Babble(1).find_stop(20, [""], []) is None

    def test_the_first_string_to_be_complete_wins_and_is_cut_off(self) -> None:
        babble = Babble(1)
        words = [babble.text(i, i + 1) for i in range(20)]
        stop = words[5] + words[6]
        found = babble.find_stop(20, [words[9] + words[10], stop], [])
        assert found == (7, len("".join(words[:5])), stop)

    def test_a_token_id_stops_before_a_later_string(self) -> None:
        babble = Babble(1)
        words, ids = [babble.text(i, i + 1) for i in range(20)], babble.ids(0, 20)
        found = babble.find_stop(20, [words[9] + words[10]], [ids[3]])
        assert found == (ids.index(ids[3]) + 1, len("".join(words[: ids.index(ids[3])])), ids[3])
        assert babble.find_stop(20, [words[2] + words[3]], [ids[19]]) is not None
