"""Requests are read the same whatever the cuts; what is held meanwhile is bounded."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ErrorCode
from gateway.http.messages import HttpLimits, RawRequest
from gateway.http.request_reader import RequestFault, RequestReader

HEAD = b"POST /v1/x?a=b?c HTTP/1.1\r\nHost: a\r\nX-A: one \r\n"
FIXED = HEAD + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n"
BARE = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"


def read(data: bytes, size: int | None = None, limits: HttpLimits | None = None) -> list[RawRequest]:
    """Everything in `data`, as a connection reads it: in order, one after the other."""
    reader, found = RequestReader(limits or HttpLimits()), []
    size = size or len(data)
    out = False
    for at in range(0, len(data), size):
        if out:
            assert reader.hold(data[at : at + size])
            continue
        request = reader.feed(data[at : at + size])
        out = request is not None
        if request is not None:
            found.append(request)
    while out:
        request = reader.resume(limits or HttpLimits())
        out = request is not None
        if request is not None:
            found.append(request)
    return found


def test_a_request():
    (request,) = read(FIXED)
    assert (request.method, request.path, request.query, request.body) == ("POST", "/v1/x", b"a=b?c", b"hello")
    assert request.headers[:2] == [(b"host", b"a"), (b"x-a", b"one")]
    assert request.header(b"x-a") == b"one"
    assert request.header(b"nope") is None
    assert request.keep_alive
    assert not request.http10


@pytest.mark.parametrize("data", [FIXED, CHUNKED, BARE, b"\r\n" + FIXED])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 31, 1000])
def test_cuts_do_not_matter(data: bytes, size: int):
    (request,) = read(data, size)
    assert request.body == (b"" if data is BARE else b"hello")
    assert (b"t", b"v") not in request.headers


@given(st.lists(st.sampled_from([FIXED, BARE]), min_size=1, max_size=6), st.integers(1, 300))
def test_pipelined_requests_come_in_order(messages: list[bytes], size: int):
    found = read(b"".join(messages), size)
    assert [one.method == "POST" for one in found] == [one is FIXED for one in messages]


@given(st.binary(max_size=400), st.integers(1, 50))
def test_only_one_kind_of_failure(data: bytes, size: int):
    for start in (b"", HEAD, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"):
        with contextlib.suppress(RequestFault):
            read(start + data, size)


@pytest.mark.parametrize(
    ("fields", "http10", "expected"),
    [
        (b"", False, True),
        (b"Connection: close\r\n", False, False),
        (b"Connection: x, Close\r\n", False, False),
        (b"Connection: keep-alive\r\n", False, True),
        (b"", True, False),
        (b"Connection: Keep-Alive\r\n", True, True),
        (b"Connection: x\r\n", True, False),
    ],
)
def test_keep_alive(fields: bytes, http10: bool, expected: bool):
    version = b"1.0" if http10 else b"1.1"
    (request,) = read(b"GET / HTTP/" + version + b"\r\nHost: a\r\n" + fields + b"\r\n")
    assert request.keep_alive is expected
    assert request.http10 is http10


def test_what_is_waited_for():
    reader = RequestReader(HttpLimits())
    assert not reader.in_head
    assert not reader.in_body
    assert reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n") is None
    assert reader.in_head
    assert not reader.wants_continue
    assert reader.feed(b"\r\n") is None
    assert reader.in_body
    assert reader.wants_continue
    request = reader.feed(b"{}")
    assert request is not None
    assert not reader.wants_continue
    assert not reader.in_body
    assert reader.resume(HttpLimits()) is None
    assert not reader.in_head


def test_a_continue_that_nobody_needs():
    """In 1.0 there is none; with the body there already there is no wait."""
    reader = RequestReader(HttpLimits())
    reader.feed(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert not reader.wants_continue
    reader = RequestReader(HttpLimits())
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}")
    assert not reader.wants_continue


def test_what_is_held_is_bounded():
    reader = RequestReader(HttpLimits(pipelined_bytes=100))
    assert reader.feed(BARE) is not None
    assert reader.hold(b"x" * 100)
    assert not reader.hold(b"x")
    reader = RequestReader(HttpLimits(pipelined_bytes=100))
    request = reader.feed(BARE + b"x" * 101)
    assert request is not None
    assert not request.keep_alive
    reader = RequestReader(HttpLimits(body_bytes=3))
    reader.restart(HttpLimits())
    assert reader.feed(FIXED) is not None


def test_what_follows_a_chunked_body_ends_the_connection():
    for more in (BARE, b"\0", BARE[:10]):
        (request,) = read(CHUNKED + more)
        assert request.body == b"hello"
        assert not request.keep_alive


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_body_limits(size: int):
    limits = HttpLimits(body_bytes=4)
    for data in (FIXED, CHUNKED):
        with pytest.raises(RequestFault) as caught:
            read(data, size, limits)
        assert caught.value.answer.code is ErrorCode.REQUEST_TOO_LARGE
    assert len(read(FIXED, size, HttpLimits(body_bytes=5))) == 1
    assert len(read(CHUNKED, size, HttpLimits(body_bytes=5))) == 1


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        (HttpLimits(header_bytes=40), HEAD + b"\r\n"),
        (HttpLimits(header_bytes=50), HEAD + b"X-B: " + b"b" * 60),
        (HttpLimits(line_bytes=20), b"GET / HTTP/1.1\r\nX-Long: 0123456789abcdef\r\n\r\n"),
        (HttpLimits(line_bytes=20), b"GET /0123456789abcdef"),
        (HttpLimits(header_count=1), HEAD + b"\r\n"),
    ],
)
def test_head_limits(limits: HttpLimits, data: bytes):
    with pytest.raises(RequestFault) as caught:
        read(data, None, limits)
    assert caught.value.answer.code is ErrorCode.HEADERS_TOO_LARGE


def test_the_peer_is_told():
    reader = RequestReader(HttpLimits(), "10.0.0.1", secure=True)
    request = reader.feed(BARE)
    assert request is not None
    assert (request.peer, request.secure) == ("10.0.0.1", True)
