"""What a client is told of a limit names the limit and its value."""

from __future__ import annotations

import pytest

from gateway.errors import ErrorCode
from gateway.http.verdicts import message_of


@pytest.mark.parametrize(
    ("code", "stream", "words"),
    [
        (ErrorCode.GAP_TIMEOUT, True, "nothing for 2.5 s (timeouts.token_gap_s)"),
        (ErrorCode.TTFT_TIMEOUT, True, "first token did not come within 2.5 s (timeouts.ttft_s)"),
        (ErrorCode.TTFT_TIMEOUT, False, "answer did not come within 2.5 s (timeouts.ttft_s, and again for each 512"),
        (ErrorCode.DEADLINE_EXCEEDED, True, "in the 2.5 s that it had (X-Headrace-Timeout-Ms, a rule's deadline_s"),
    ],
)
def test_a_limit_is_told_with_its_value(code: ErrorCode, stream: bool, words: str) -> None:
    assert words in message_of(code, "detail", 2.5, stream=stream)


def test_what_has_no_words_of_its_own_is_told_as_it_came() -> None:
    assert message_of(ErrorCode.INTERNAL, "as {it} came", 1.0, stream=True) == "as {it} came"
