"""Estimates beside what two real vocabularies count, and what calibration makes of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tokens import (
    RATIO_MAX,
    RATIO_MIN,
    Calibration,
    LongText,
    estimate_schema,
    estimate_text,
    estimate_texts,
)

# name, text, tokens in o200k_base, tokens in cl100k_base; counted with the `bpe-openai` package.
SAMPLES: list[tuple[str, str, int, int]] = [
    (name, text, one, other)
    for name, text, one, other in json.loads((Path(__file__).parent / "token_samples.json").read_text("utf-8"))
]
USUAL = {"en", "de", "vi", "ru", "zh", "ja", "ko", "th", "py", "json", "csv", "url", "md", "upper", "punct", "base64"}


class TestText:
    @pytest.mark.parametrize(("name", "text", "one", "other"), SAMPLES, ids=[row[0] for row in SAMPLES])
    def test_never_below_half_of_what_either_vocabulary_counts(
        self, name: str, text: str, one: int, other: int
    ) -> None:
        assert estimate_text(text) >= 0.5 * max(one, other)

    @pytest.mark.parametrize(
        ("name", "text", "one", "other"),
        [row for row in SAMPLES if row[0] in USUAL],
        ids=[row[0] for row in SAMPLES if row[0] in USUAL],
    )
    def test_at_most_twice_of_what_a_modern_one_counts_for_usual_text(
        self, name: str, text: str, one: int, other: int
    ) -> None:
        assert estimate_text(text) <= 2 * one

    def test_a_border_between_classes_falls_where_it_should(self) -> None:
        """3000 characters of Han, Kana, Hangul, emoji or Thai are not the 750 tokens of as many Latin letters."""
        assert estimate_text("漢字" * 1500) >= 2000
        assert estimate_text("かな" * 1500) >= 2000
        assert estimate_text("한글" * 1500) >= 2000
        assert estimate_text("😀" * 3000) >= 2000
        assert estimate_text("ภาษา" * 750) >= 0.6 * 3000
        assert 500 <= estimate_text("the house by the old river was " * 100) <= 1100

    @pytest.mark.parametrize("word", ["a", "abcdefghij", "qzkvhrwxtm"])
    def test_letters_without_end_are_no_words(self, word: str) -> None:
        """Case BR-05-01: its control of 3,000 Latin letters is about 750 tokens."""
        assert 700 <= estimate_text((word * 3000)[:3000]) <= 1000

    def test_nothing_is_nothing_and_anything_is_something(self) -> None:
        assert estimate_text("") == 0
        for text in ("a", " ", "\n", "\0", "漢", "\ud800", "\U0010ffff"):
            assert 1 <= estimate_text(text) <= 4

    def test_whitespace_and_indentation_are_cheap(self) -> None:
        assert estimate_text(" " * 6400) < 200
        assert estimate_text("\n" * 1000) < 100

    @given(st.text(max_size=300))
    def test_bounds_for_any_text(self, text: str) -> None:
        assert bool(text) <= estimate_text(text) <= 3.2 * len(text) + 1

    @given(st.text(max_size=200), st.text(max_size=200))
    def test_parts_make_about_the_whole(self, one: str, other: str) -> None:
        """What joins at the seam is one word, number or run of signs at most."""
        together, apart = estimate_text(one + other), estimate_text(one) + estimate_text(other)
        assert apart - 7 <= together <= apart + 10
        assert together >= max(estimate_text(one), estimate_text(other)) - 3

    @given(st.lists(st.text(max_size=4) | st.sampled_from(["word " * 60, "漢字\n" * 900, "x" * 8191, ""]), max_size=9))
    def test_several_texts_are_estimated_as_their_lines_are(self, texts: list[str]) -> None:
        assert estimate_texts(texts) == estimate_text("\n".join(texts)) if texts else True

    def test_chunks_make_the_whole(self) -> None:
        text = "Words, numbers 123 and 漢字 in a row. "
        assert estimate_text(text * 10_000) == pytest.approx(10_000 * estimate_text(text * 100) / 100, rel=0.02)

    def test_a_few_places_tell_of_the_whole_whatever_it_is_made_of(self) -> None:
        """Prose of 30 languages, code and data in long stretches, as a document made of documents is."""
        pieces = [text * (1 + 40_000 // len(text)) for _, text, _, _ in SAMPLES]
        apart = sum(estimate_text(piece[:60_000]) for piece in pieces)
        assert estimate_text("".join(piece[:60_000] for piece in pieces)) == pytest.approx(apart, rel=0.06)


class TestSchema:
    def test_it_counts_what_the_template_writes(self) -> None:
        tools = [{"type": "function", "function": {"name": "noop"}}]
        assert estimate_schema(tools) == estimate_text('[{"type": "function", "function": {"name": "noop"}}]')
        assert estimate_schema({"名": "漢字"}) == estimate_text('{"名": "漢字"}')

    def test_what_is_no_json_counts_nothing(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        deep: Any = 1
        for _ in range(100_000):
            deep = [deep]
        for value in ({1, 2}, loop, deep):
            assert estimate_schema(value) == 0

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=9,
        )
    )
    def test_any_json_has_tokens(self, value: Any) -> None:
        assert estimate_schema(value) >= 1


class TestCalibration:
    def test_unknown_models_are_not_corrected(self) -> None:
        assert Calibration().scale("m") == 1.0

    def test_it_learns_the_ratio_of_each_model(self) -> None:
        learned = Calibration()
        for _ in range(100):
            learned.observe("tiny", 1000, 2500)
            learned.observe("large", 1000, 800)
        assert learned.scale("tiny") == pytest.approx(2.5, abs=0.05)
        assert learned.scale("large") == pytest.approx(0.8, abs=0.05)
        assert learned.scale("other") == 1.0

    def test_it_follows_a_change(self) -> None:
        learned = Calibration()
        for _ in range(200):
            learned.observe("m", 1000, 2000)
        for _ in range(100):
            learned.observe("m", 1000, 1000)
        assert learned.scale("m") == pytest.approx(1.0, abs=0.05)

    def test_small_requests_move_it_little_and_none_moves_it_much(self) -> None:
        learned = Calibration()
        learned.observe("m", 4, 16)
        assert 1.0 < learned.scale("m") < 1.1
        for _ in range(50):
            learned.observe("n", 1000, 1000)
        learned.observe("n", 10**9, 4 * 10**9)
        assert learned.scale("n") < 1.5

    @pytest.mark.parametrize(("estimated", "actual"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
    def test_what_makes_no_ratio_teaches_nothing(self, estimated: int, actual: int) -> None:
        learned = Calibration()
        learned.observe("m", estimated, actual)
        assert learned.snapshot() == {}

    def test_a_stand_in_that_counts_the_same_for_everything_teaches_nothing(self) -> None:
        learned = Calibration()
        learned.observe("m", 3000, 10)
        assert learned.scale("m") == 1.0

    def test_models_are_bounded_and_the_one_not_seen_for_longest_goes(self) -> None:
        learned = Calibration(max_models=2)
        for model in ("a", "b", "a", "c"):
            learned.observe(model, 100, 200)
        assert list(learned.snapshot()) == ["a", "c"]
        assert repr(learned) == "<Calibration of 2 models>"

    def test_a_snapshot_is_taken_over(self) -> None:
        learned = Calibration()
        learned.observe("a", 1000, 3000)
        again = Calibration()
        assert again.restore(json.loads(json.dumps(learned.snapshot()))) == 1
        assert again.scale("a") == learned.scale("a")

    def test_what_makes_no_sense_in_it_is_left_out(self) -> None:
        learned = Calibration()
        odd = {"a": "2", "b": True, "c": math.nan, "d": math.inf, "e": 0, "f": -1.0, "g": None, "h": 100, "i": 2}
        assert learned.restore(odd) == 2
        assert learned.snapshot() == {"h": RATIO_MAX, "i": 2}

    def test_what_is_known_already_stays(self) -> None:
        learned = Calibration()
        learned.observe("a", 1000, 3000)
        before = learned.scale("a")
        assert learned.restore({"a": 0.5}) == 0
        assert learned.scale("a") == before

    @given(st.lists(st.tuples(st.integers(-1, 10**7), st.integers(-1, 10**9)), max_size=50))
    def test_it_stays_within_its_bounds(self, seen: list[tuple[int, int]]) -> None:
        learned = Calibration()
        for estimated, actual in seen:
            learned.observe("m", estimated, actual)
            assert RATIO_MIN <= learned.scale("m") <= RATIO_MAX


@pytest.mark.parametrize("sizes", [[8192], [8193], [9000], [100_000], [20, 9000, 0, 12_000], [9000, 9000, 5]])
def test_long_texts_count_where_they_are(sizes: list[int]):
    text = "Who reads 12 books (or 13) a year? " * 3000
    texts = [text[:size] for size in sizes]
    body = "  ".join(texts).encode()
    marks, long, at = [], {}, 0
    for number, one in enumerate(texts):
        marks.append(f"mark {number}" if len(one) > 8000 else one)
        if len(one) > 8000:
            long[marks[-1]] = LongText(body, at, at + len(one))
        at += len(one) + 2
    assert estimate_texts(marks, long) == estimate_texts(texts)
