"""Prompts of the recorded length, alike where the recorded ones were."""

from __future__ import annotations

from itertools import takewhile
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.prompt_text import BOOK_WORDS, NAME_WORDS, TEMPLATE_TOKENS, WORDS, Book
from loadtest.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from policies.tokens import estimate_text
from workers.engines.simulator_text import pieces_of

BOOK = Book(Random(1))


def asked(tokens: int, **more: object) -> TraceRequest:
    return TraceRequest(0.0, tokens, 1, **more)  # type: ignore[arg-type]


def estimate(text: str) -> int:
    return estimate_text(text) + TEMPLATE_TOKENS


@given(st.integers(TEMPLATE_TOKENS + 2, 60_000), st.integers(0, 1000), st.booleans())
def test_the_gateway_estimates_what_was_recorded(tokens: int, index: int, blocks: bool) -> None:
    hashes = tuple(range(index, index + tokens // MOONCAKE_BLOCK_TOKENS + 1)) if blocks else ()
    found = estimate(BOOK.prompt(asked(tokens, hashes=hashes), index, "s"))
    assert abs(found - tokens) <= max(2, 0.02 * tokens)


def test_an_engine_counts_about_as_many() -> None:
    assert len(pieces_of(BOOK.prompt(asked(5000), 0, "s"))) == pytest.approx(5000, rel=0.12)


@pytest.mark.parametrize("tokens", range(1, TEMPLATE_TOKENS + 2))
def test_the_shortest_has_a_word(tokens: int) -> None:
    assert BOOK.prompt(asked(tokens), 0, "s") in WORDS


def test_a_prompt_longer_than_the_book_goes_on_at_its_beginning() -> None:
    tokens = 3 * BOOK_WORDS
    assert estimate(BOOK.prompt(asked(tokens), 5, "s")) == pytest.approx(tokens, rel=0.02)


def alike(one: str, other: str) -> int:
    """Words that two texts begin with in common."""
    pairs = zip(one.split(), other.split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_prompts_have_nothing_in_common() -> None:
    texts = [BOOK.prompt(asked(800), index, "s") for index in range(300)]
    beginnings = {" ".join(text.split()[:NAME_WORDS]) for text in texts}
    assert len(beginnings) == len(texts)


def test_blocks_with_the_same_ids_are_alike_and_no_further() -> None:
    one = BOOK.prompt(asked(2000, hashes=(1, 2, 3, 4)), 0, "s")
    other = BOOK.prompt(asked(2000, hashes=(1, 2, 9, 4)), 1, "s")
    shared = 2 * MOONCAKE_BLOCK_TOKENS
    words = alike(one, other)
    assert estimate_text(" " + " ".join(one.split()[:words])) == pytest.approx(shared, abs=4)


def test_a_session_goes_on_where_it_was() -> None:
    first = BOOK.prompt(asked(500, session="a"), 0, "s")
    second = BOOK.prompt(asked(900, session="a"), 1, "s")
    assert second.startswith(first)
    assert alike(first, BOOK.prompt(asked(500, session="b"), 2, "s")) < NAME_WORDS


def test_another_run_has_other_prompts_and_the_same_salt_the_same() -> None:
    request = asked(1000, hashes=(1, 2))
    assert BOOK.prompt(request, 0, "s") == Book(Random(1)).prompt(request, 0, "s")
    assert alike(BOOK.prompt(request, 0, "s"), BOOK.prompt(request, 0, "t")) < NAME_WORDS
