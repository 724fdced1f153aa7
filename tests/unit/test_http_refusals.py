"""What a client hears of its own request when there is no place for it."""

from __future__ import annotations

import pytest

from gateway.errors import Dialect, ErrorCode
from gateway.http.refusals import context_words, refusal_of
from gateway.records import Terminal
from gateway.scheduling.model import Reason, Request


@pytest.mark.parametrize(
    ("exact", "longest", "words"),
    [
        (True, 16384, "This model's maximum context length is 16384 tokens. The prompt has 20000 tokens."),
        (False, 16384, "This model's maximum context length is 16384 tokens. The prompt has about 20000 tokens."),
        (False, None, "The prompt has about 20000 tokens."),
    ],
)
def test_a_prompt_too_long_is_named_with_its_limit(exact: bool, longest: int | None, words: str) -> None:
    request = Request("r", "t", 0, "m", ("p",), 20_000, None, prompt_exact=exact)
    assert context_words(request, longest) == words


def test_what_is_particular_stands_behind_the_reason() -> None:
    answer, status, outcome = refusal_of(
        Reason.CONTEXT_TOO_LONG, 1.0, None, Dialect.OPENAI, evicted=False, particular="The prompt has 9 tokens."
    )
    assert (answer.code, status, outcome) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400, Terminal.CLIENT_ERROR)
    assert answer.message.endswith("(The prompt has 9 tokens.)")
