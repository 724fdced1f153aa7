"""Which fields cross, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.answer_fields import UNKNOWN
from gateway.http.headers import (
    forwarded_request_fields,
    forwarded_response_fields,
    header_value,
    named_in_connection,
    request_head,
    request_id_of,
    retry_after_of,
    valid_traceparent,
)
from gateway.http.upstream import MAX_STARTS, UpstreamPool

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_head_is_made_not_copied():
    head = request_head(
        UpstreamPool("w", "http://worker:1").start_of("POST", "/v1/x"),
        [(b"host", b"client"), (b"content-length", b"9"), (b"transfer-encoding", b"chunked"), (b"accept", b"*/*")],
        request_id=b"r1",
        authorization=None,
        forward_authorization=False,
        length=2,
    )
    assert head == (
        b"POST /v1/x HTTP/1.1\r\nhost: worker:1\r\naccept: */*\r\nx-request-id: r1\r\ncontent-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize("name", ["idempotency-key", "custom-header", "baggage", "accept", "openai-beta", "x-title"])
def test_end_to_end_fields_cross(name: str):
    field = (name.encode(), b"1")
    assert forwarded_request_fields([field], authorization=False) == [field]


STAYING = """
host content-length transfer-encoding te trailer keep-alive upgrade expect proxy-authorization cookie forwarded via
range if-none-match origin sec-fetch-mode access-control-request-method x-forwarded-for x-real-ip priority
x-priority x-vllm-priority x-data-parallel-rank x-headrace-tenant x-tenant-id x-request-id x-http-method-override
x-prefiller-host-port x-original-url authorization x-api-key api-key
"""


@pytest.mark.parametrize("name", STAYING.split())
def test_fields_that_would_be_obeyed_or_believed_stay(name: str):
    assert forwarded_request_fields([(name.encode(), b"1")], authorization=False) == []


@pytest.mark.parametrize(
    ("own", "forward", "expected"),
    [(None, False, None), (None, True, b"client"), (b"worker", False, b"worker"), (b"worker", True, b"worker")],
)
def test_whose_credentials_go_upstream(own: bytes | None, forward: bool, expected: bytes | None):
    """The worker's own take the client's place; never both."""
    fields = [(b"authorization", b"client"), (b"x-api-key", b"k")]
    head = request_head(
        b"GET / HTTP/1.1\r\nhost: w",
        fields,
        request_id=b"r",
        authorization=own,
        forward_authorization=forward,
        length=UNKNOWN,
    )
    assert (b"authorization: " + expected in head) if expected else b"authorization" not in head
    assert head.count(b"authorization") == (expected is not None)
    assert (b"x-api-key" in head) == (forward and own is None)
    assert b"content-length" not in head


def test_how_requests_to_a_worker_begin():
    pool = UpstreamPool("w", "http://[::1]:8000/pre/")
    for _ in range(2):
        assert pool.start_of("POST", "/v1/x") == b"POST /pre/v1/x HTTP/1.1\r\nhost: [::1]:8000"
        assert pool.start_of("GET", "/v1/x") == b"GET /pre/v1/x HTTP/1.1\r\nhost: [::1]:8000"
    for number in range(3 * MAX_STARTS):
        assert pool.start_of("POST", f"/v1/{number}").startswith(b"POST /pre/v1/%d HTTP/1.1" % number)
    assert len(pool._starts) == MAX_STARTS


def test_trace_context_crosses_whole_or_not_at_all():
    state = (b"tracestate", b"a=b")
    good = (b"traceparent", TRACE)
    assert forwarded_request_fields([state, (b"te", b"x"), good], authorization=False) == [state, good]
    assert forwarded_request_fields([state], authorization=False) == []
    assert forwarded_request_fields([good, good], authorization=False) == []
    assert forwarded_request_fields([(b"traceparent", b"x"), state], authorization=False) == []


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (TRACE, True),
        (TRACE + b"-more", False),
        (b"01" + TRACE[2:] + b"-more", True),
        (b"ff" + TRACE[2:], False),
        (TRACE.upper(), False),
        (b"00-" + b"0" * 32 + TRACE[35:], False),
        (TRACE[:36] + b"0" * 16 + TRACE[52:], False),
        (b"", False),
    ],
)
def test_traceparent(value: bytes, valid: bool):
    assert valid_traceparent(value) is valid


def test_fields_named_in_connection_stay():
    fields = [(b"connection", b"X-Foo, close"), (b"x-foo", b"1"), (b"x-bar", b"2")]
    assert forwarded_request_fields(fields, authorization=False) == [(b"x-bar", b"2")]
    assert named_in_connection([*fields, (b"connection", b"Te")]) == {b"x-foo", b"close", b"te"}
    fields = [(b"connection", b"Vary"), (b"vary", b"x"), (b"date", b"now"), (b"x-own", b"1")]
    assert forwarded_response_fields(fields) == [(b"date", b"now")]
    assert forwarded_response_fields([(b"connection", b"Close"), (b"vary", b"x")]) == [(b"vary", b"x")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (b"abc-1.2:3/4", "abc-1.2:3/4"), (b"", None), (b"a b", None), (b"-a", None), (b"a" * 129, None)],
)
def test_request_ids_that_may_be_logged(value: bytes | None, expected: str | None):
    assert request_id_of(value) == expected


def test_values_cannot_split_a_response():
    assert header_value("pool-a") == b"pool-a"
    assert header_value("a\r\nb: c\u00e9") == b"a??b: c?"


NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"5", 5.0),
        (b"5000", 60.0),
        (b"9" * 20, 60.0),
        (b"Sun, 06 Nov 1994 08:49:41 GMT", 4.0),
        (b"Sunday, 06-Nov-94 08:49:41 GMT", 4.0),
        (b"Sun, 06 Nov 1994 08:49:41 +0000", 4.0),
        (b"Sun, 06 Nov 1994 08:49:30 GMT", 0.0),
        (b"Sun, 06 Nov 2094 08:49:41 GMT", 60.0),
        (b"Wed, 21 Oct", None),
        (b"Sun, 06 Nov 99999 99:99:99 GMT", None),
        (b"-1", None),
        (b"", None),
    ],
)
def test_retry_after(value: bytes, expected: float | None):
    assert retry_after_of([(b"date", b"x"), (b"retry-after", value)], NOW) == expected
    assert retry_after_of([], NOW) is None


def test_a_date_counts_from_the_answers_own():
    fields = [(b"date", b"Sun, 06 Nov 1994 08:49:00 GMT"), (b"retry-after", b"Sun, 06 Nov 1994 08:49:03 GMT")]
    assert retry_after_of(fields, NOW) == 3.0


@given(st.binary(max_size=80))
def test_no_retry_after_raises(value: bytes):
    found = retry_after_of([(b"retry-after", value)], NOW)
    assert found is None or 0.0 <= found <= 60.0
