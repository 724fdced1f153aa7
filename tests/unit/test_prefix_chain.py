"""The chain of hashes that a prompt is known by, and what of a request's body it is made of."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai import BodyFacts, body_limits, parse_facts
from gateway.prefix_chain import BLOCK_CHARS, BREAK, ENDS, prefix_chain
from policies.document import Limits
from policies.endpoints import Endpoint

TEXT = "".join(chr(97 + number * number % 26) for number in range(3 * BLOCK_CHARS + 100))


def hashes(*texts: str, tenant: str = "t", model: str = "m", salt: str = "") -> tuple[int, ...]:
    return prefix_chain(list(texts), 1000, tenant, model, salt)[0]


def test_a_prompt_below_one_block_has_none() -> None:
    assert prefix_chain([], 10, "t", "m") == ((), ())
    assert prefix_chain([TEXT[: BLOCK_CHARS - 1]], 10, "t", "m") == ((), ())
    assert len(hashes(TEXT[:BLOCK_CHARS])) == 1


def test_hashes_stand_for_their_share_of_the_tokens() -> None:
    found, ends = prefix_chain([TEXT], len(TEXT) // 4, "t", "m")
    assert len(found) == 3
    assert ends == (128, 256, 384) or ends == (127, 255, 383)


def test_prompts_have_in_common_what_they_begin_with() -> None:
    one, other = hashes(TEXT), hashes(TEXT[: 2 * BLOCK_CHARS] + "!" * BLOCK_CHARS)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert hashes(TEXT, "an answer", "a question" * 200)[:3] == one
    assert not set(hashes("!" + TEXT)) & set(one)
    assert hashes(TEXT[:600], TEXT[600:]) != hashes(TEXT[:700], TEXT[700:])


def test_tenants_models_and_salts_have_nothing_in_common() -> None:
    chains = [hashes(TEXT), hashes(TEXT, tenant="u"), hashes(TEXT, model="n"), hashes(TEXT, salt="s")]
    chains.append(hashes(TEXT, tenant="t\0m", model=""))
    assert len({one for each in chains for one in each}) == 3 * len(chains)


def test_a_chain_is_bounded_and_says_nothing_of_what_comes_later() -> None:
    huge = "x" * (ENDS[-1] // 2)
    first = prefix_chain([huge, huge, "a"], 500_000, "t", "m")
    second = prefix_chain([huge, huge, huge, huge, huge], 500_000, "t", "m")
    assert len(first[0]) == len(ENDS) == 62
    assert first[0] == second[0]
    assert first[1][-1] > second[1][-1], "of the longer prompt, the same place is a smaller share"


def test_blocks_grow_with_what_comes_before_them() -> None:
    assert ENDS[-1] == 352 * 1024
    for start, end in itertools.pairwise(ENDS):
        assert end - start == BLOCK_CHARS or start / 23 <= end - start <= start / 8


def test_what_no_encoding_can_say_is_hashed_too() -> None:
    assert hashes("\ud800" * BLOCK_CHARS) != hashes("\ud801" * BLOCK_CHARS)


def test_another_process_has_the_same_hashes() -> None:
    code = f"from gateway.prefix_chain import prefix_chain; print(prefix_chain([{TEXT!r}], 1000, 't', 'm')[0])"
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(hashes(TEXT))


@given(st.lists(st.text(max_size=2000), max_size=5), st.integers(min_value=1, max_value=10**6))
def test_places_ascend_within_the_prompt(texts: list[str], tokens: int) -> None:
    found, ends = prefix_chain(texts, tokens, "t", "m")
    assert len(found) == len(ends) == len(set(found))
    assert list(ends) == sorted(ends)
    assert not ends or 0 <= ends[-1] <= tokens


pieces = st.text(max_size=3) | st.integers(BLOCK_CHARS - 2, BLOCK_CHARS + 2).map("é".__mul__) | st.just("x" * 3000)


@given(st.lists(pieces, min_size=1, max_size=6))
def test_several_texts_are_hashed_as_the_one_that_they_make(texts: list[str]) -> None:
    assert prefix_chain(texts, 1000, "t", "m") == prefix_chain([BREAK.join(texts)], 1000, "t", "m")


def facts(endpoint: Endpoint, **body: object) -> BodyFacts:
    found = parse_facts(endpoint, orjson.dumps({"model": "m", **body}), body_limits(Limits()))
    assert isinstance(found, BodyFacts)
    return found


class TestWhatTheBodySays:
    SYSTEM = {"role": "system", "content": "be kind"}  # noqa: RUF012 - read only

    def test_a_conversation_in_its_order(self) -> None:
        call = {"function": {"name": "look", "arguments": "{}"}}
        messages = [
            self.SYSTEM,
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        assert facts(Endpoint.CHAT, messages=messages).begin == ["be kind", "hi", "look", "{}"]

    def test_tools_come_first(self) -> None:
        tools = [{"type": "function", "function": {"name": "f"}}]
        begin = facts(Endpoint.CHAT, messages=[self.SYSTEM], tools=tools).begin
        assert begin == [str(tools), "be kind"]

    def test_from_an_image_on_nothing_is_known_to_be_alike(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:,1"}}
        messages = [
            self.SYSTEM,
            {"role": "user", "content": [{"type": "text", "text": "what is it"}, image]},
            {"role": "user", "content": [{"type": "text", "text": "and this"}, image]},
        ]
        assert facts(Endpoint.CHAT, messages=messages).begin == ["be kind"]

    def test_anthropic_system_prompts_and_plain_prompts(self) -> None:
        asked = [{"role": "user", "content": "hi"}]
        assert facts(Endpoint.MESSAGES, messages=asked, system="be kind", max_tokens=5).begin == ["be kind", "hi"]
        assert facts(Endpoint.MESSAGES, messages=asked, max_tokens=5).begin == ["hi"]
        assert facts(Endpoint.COMPLETIONS, prompt="once").begin == ["once"]
        assert facts(Endpoint.COMPLETIONS, prompt=["once", "twice"]).begin == []
        assert facts(Endpoint.COMPLETIONS, prompt=["once"]).begin == ["once"]

    def test_token_ids_are_known_by_their_beginning_like_text(self) -> None:
        ids = [128_000, *range(1000, 1400)]
        same, other = [*ids, 5, 6, 7], [*ids[:200], 9, *ids[201:]]

        def chain(prompt: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
            told = facts(Endpoint.COMPLETIONS, prompt=prompt)
            return prefix_chain(told.begin, told.longest_prompt, "t", "m")

        assert chain(ids)[1] == (128, 256, 384)
        assert chain(same)[0] == chain(ids)[0] == chain([ids])[0]
        assert chain(other)[0][0] == chain(ids)[0][0]
        assert not set(chain(other)[0][1:]) & set(chain(ids)[0])

    def test_what_is_no_list_of_ids_has_no_beginning(self) -> None:
        for prompt in ([1, "a"], [-1, 2], [1 << 40], [1.5], [[1], [2]], [], [[]], {"text": "a"}, [None]):
            assert facts(Endpoint.COMPLETIONS, prompt=prompt).begin == []

    def test_responses_begin_with_tools_instructions_and_input(self) -> None:
        tools = [{"type": "function", "name": "f"}]
        asked = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
        assert facts(Endpoint.RESPONSES, input="hi").begin == ["hi"]
        told = facts(Endpoint.RESPONSES, input=asked, instructions="be kind", tools=tools)
        assert told.begin == [str(tools), "be kind", "hi"]

    def test_an_earlier_response_stands_before_what_is_asked_now(self) -> None:
        told = facts(Endpoint.RESPONSES, input="hi", instructions="be kind", previous_response_id="resp_1")
        assert told.begin == ["be kind"]

    def test_a_salt_of_the_clients_own(self) -> None:
        assert facts(Endpoint.COMPLETIONS, prompt="once", cache_salt="s").cache_salt == "s"
        assert facts(Endpoint.COMPLETIONS, prompt="once", cache_salt=7).cache_salt == ""
