"""Every answer that stands for a limit says what was too much, how much may be, where that is set, and what helps.

The scheduler's refusals are in `test_http_refusals.py`.
"""

from __future__ import annotations

import pytest
from admission_gate import Gate

from gateway.errors import ErrorCode
from gateway.http.connection import _late
from gateway.http.faults import RequestFault
from gateway.http.messages import HttpLimits
from gateway.http.request_reader import RequestReader
from gateway.http.verdicts import message_of
from gateway.keys import create_key
from gateway.quota import Refused
from gateway.quota_gate import told
from gateway.tenants import FAILURES_BURST

LIMITS = HttpLimits(body_bytes=100, header_bytes=200, line_bytes=90, header_count=3)


def read(data: bytes) -> str:
    with pytest.raises(RequestFault) as fault:
        RequestReader(LIMITS).feed(data)
    return fault.value.answer.message


def head(*fields: bytes, line: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"host: h", *fields, b"", b""))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            head(*[b"a: " + b"x" * 60] * 3),
            "The head has 223 bytes; 200 (limits.header_bytes) are read. Send fewer or shorter headers.",
        ),
        (
            head(*[b"a: " + b"x" * 60] * 3)[:-2],
            ("The head has 221 bytes and is not whole; 200 (limits.header_bytes) are read. "
            "Send fewer or shorter headers."),
        ),
        (
            head(b"a: " + b"x" * 90),
            "The longest line of the head has 93 bytes; 90 (a fixed limit) are read. Send fewer or shorter headers.",
        ),
        (
            b"POST /" + b"x" * 90,
            ("The request line has 96 bytes and is not whole; 90 (a fixed limit) are read. "
            "Send fewer or shorter headers."),
        ),
        (
            head(b"a: 1", b"b: 2", b"c: 3"),
            "The head has 4 fields; 3 (a fixed limit) are read. Send fewer or shorter headers.",
        ),
        (
            head(b"content-length: 101"),
            "The body has 101 bytes; 100 (limits.body_bytes) are allowed. Send a smaller one.",
        ),
        (
            head(b"content-length: " + b"9" * 18),
            "The body has " + "9" * 18 + " bytes; 100 (limits.body_bytes) are allowed. Send a smaller one.",
        ),
        (
            head(b"transfer-encoding: chunked") + b"78\r\n" + b"x" * 110,
            "The body has 110 bytes and is not whole; 100 (limits.body_bytes) are allowed. Send a smaller one.",
        ),
        (
            head(b"transfer-encoding: chunked") + b"1;" + b"x" * 17_000 + b"\r\nx\r\n",
            ("The chunked body has 17007 bytes for 1 of data; 16384 and 8 for each of data are read. "
            "Send larger chunks, shorter extensions, fewer trailers."),
        ),
    ],
)  # fmt: skip
def test_what_the_reader_refuses(data: bytes, message: str) -> None:
    assert read(data) == message


def test_a_known_heads_body_is_told_alike() -> None:
    reader = RequestReader(LIMITS)
    for _ in range(2):
        request = reader.feed(head(b"content-length: 2") + b"{}")
        assert request is not None
        reader.restart(LIMITS)
    with pytest.raises(RequestFault) as fault:
        reader.feed(head(b"content-length: 999"))
    assert fault.value.answer.message.startswith("The body has 999 bytes; 100 (limits.body_bytes)")


def test_a_head_or_a_body_that_is_late() -> None:
    assert _late("body", "timeouts.body_s", 30.0).message == (
        "The request's body was not there after 30 s (timeouts.body_s). Send it faster, or ask for more time."
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[" * 65 + "]" * 65, "The body is nested deeper than 64 levels (limits.json_depth). Flatten it."),
        (
            '{"a":[' + "[]," * 200_000 + "[]]}",
            "The body holds 200003 arrays and objects; {limit} (a fixed limit) are allowed. Split the request.",
        ),
    ],
)
def test_what_the_body_guard_refuses(body: str, message: str) -> None:
    answer = Gate().refused(body.encode())
    assert answer.code is ErrorCode.LIMIT_EXCEEDED
    before, limit, after = message.partition("{limit}")
    assert answer.message.startswith(before)
    assert answer.message.endswith(after)
    if limit:
        assert answer.message[len(before) : -len(after)].isdigit()


def test_a_models_name_that_is_too_long() -> None:
    answer = Gate().refused(b'{"model":"%b","messages":[]}' % (b"m" * 300))
    assert answer.message.endswith(
        "it has 300 characters, names have 256 at most. GET /v1/models lists those that exist."
    )


def test_a_time_of_too_many_digits() -> None:
    answer = Gate().refused(b'{"model":"m","messages":[]}', (b"x-headrace-timeout-ms", b"9" * 40))
    assert "a whole number of milliseconds of at most 12 digits" in answer.message


def test_too_many_failed_keys(tmp_path) -> None:
    create_key(tmp_path / "keys.json", "acme", 1.0)
    gate = Gate(keys=tmp_path / "keys.json")
    answers = [gate.refused(b"{}", (b"authorization", b"Bearer no")) for _ in range(int(FAILURES_BURST) + 1)]
    assert answers[-1].code is ErrorCode.RATE_LIMIT_EXCEEDED
    assert answers[-1].message == (
        "More than 10 failed keys a second, or 20 at once, came from this address (a fixed limit). "
        "Check the key, and wait."
    )


@pytest.mark.parametrize(
    ("refused", "asked", "message"),
    [
        (
            Refused("requests", 60, 2.2),
            10,
            "Tenant acme has used its 60 requests a minute (tenants.default.requests_per_min): try again in 3 s.",
        ),
        (
            Refused("tokens", 1000, 5.0),
            900,
            (
                "The request asks for 900 tokens, prompt and allowed output together; tenant acme has not so many left "
                "of its 1000 tokens a minute (tenants.default.tokens_per_min): try again in 5 s."
            ),
        ),
    ],
)
def test_a_tenants_minutes_are_named_where_they_are_set(refused: Refused, asked: int, message: str) -> None:
    assert told(refused, "acme", "default", asked) == message


@pytest.mark.parametrize(
    ("code", "stream", "message"),
    [
        (
            ErrorCode.TTFT_TIMEOUT, True,
            "The first token did not come within 60 s (timeouts.ttft_s). Shorten the prompt, or ask for more time.",
        ),
        (
            ErrorCode.TTFT_TIMEOUT, False,
            ("The answer did not come within 60 s (timeouts.ttft_s, and again for each 512 tokens of output). "
            "Ask for less output, or for more time."),
        ),
        (
            ErrorCode.GAP_TIMEOUT, True,
            ("The worker's answer brought nothing for 60 s (timeouts.token_gap_s). "
            "What came before is intact; ask again if the work may be done twice."),
        ),
        (
            ErrorCode.DEADLINE_EXCEEDED, True,
            ("The request was not done in the 60 s that it had "
            "(X-Headrace-Timeout-Ms, a rule's deadline_s, timeouts.total_s). "
            "Give it more time, or ask for less output."),
        ),
        (
            ErrorCode.UPSTREAM_REDIRECT, True,
            ("The worker answered with a redirect, which is never followed: redirect 302. "
            "Report the request's id: a worker's URL is wrong."),
        ),
        (ErrorCode.SHUTTING_DOWN, True, "This gateway is shutting down. Retry; another process answers."),
    ],
)  # fmt: skip
def test_what_became_of_an_attempt(code: ErrorCode, stream: bool, message: str) -> None:
    assert message_of(code, "redirect 302", 60.0, stream=stream) == message
