"""Requests are read the same whatever the cuts; what is held meanwhile is bounded."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ErrorCode
from gateway.http import known_heads
from gateway.http.faults import RequestFault
from gateway.http.messages import HttpLimits, RawRequest
from gateway.http.request_reader import RequestReader

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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize("body", [CHUNKED, CHUNKED.replace(b"T: v\r\n", b"")])
def test_what_follows_a_chunked_body_is_the_next_request(body: bytes, size: int):
    first, second, third = read(body + BARE + FIXED, size)
    assert (first.method, first.body) == ("POST", b"hello")
    assert (second.method, second.path) == ("GET", "/livez")
    assert third.body == b"hello"
    assert first.keep_alive


def test_a_chunked_body_full_of_empty_lines_is_read_whole_and_where_it_ends_only_near():
    data = b"\r\n" * 500
    body = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    (request,) = read(body)
    assert request.body == data
    assert request.keep_alive
    (request,) = read(body + BARE)
    assert request.body == data
    assert not request.keep_alive  # the next one cannot be found
    first, second = read(body + BARE, 100)
    assert (first.body, second.method) == (data, "GET")


def test_garbage_behind_a_chunked_body_is_judged_in_its_turn():
    with pytest.raises(RequestFault):
        read(CHUNKED + b"\0")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("message", [FIXED, CHUNKED, BARE])
def test_an_upgrade_is_ignored(message: bytes):
    """RFC 9110 §7.8: a server may. Java's HttpClient asks every http server for h2c."""
    asked = message.replace(b"Host: a\r\n", b"Host: a\r\n" + UPGRADE)
    for size in (1, 1000):
        first, second = read(asked + BARE, size)
        assert first.body == (b"" if message is BARE else b"hello")
        assert first.keep_alive
        assert second.path == "/livez"


class TestKnownHeads:
    """A head read before is found again; what is found is what reading would give."""

    def test_only_the_length_may_differ(self):
        first, second = read(FIXED + FIXED.replace(b"5\r\n\r\nhello", b"007\r\n\r\nhello, "), limits=HttpLimits())
        assert first.notes is second.notes
        assert first.notes is not None
        assert (first.body, second.body) == (b"hello", b"hello, ")
        assert first.headers == second.headers
        assert first.header(b"content-length") is None, "no body has to be of the length of another one"

    @pytest.mark.parametrize(
        "other",
        [
            FIXED.replace(b"one", b"two"),
            FIXED.replace(b"/v1/x", b"/v1/y"),
            FIXED.replace(b"X-A", b"x-a"),
            b"\r\n".join(line for line in FIXED.split(b"\r\n") if b"Length" not in line)[:-5],
        ],
    )
    def test_any_other_difference_counts(self, other: bytes):
        first, second = read(FIXED + other, limits=HttpLimits())
        assert first.notes is not second.notes

    @pytest.mark.parametrize("length", [b"x", b"-1", b"+5", b"5, 5", b"", b"1" * 13, b"5\r\nContent-Length: 5"])
    def test_a_wrong_length_is_refused_beside_a_known_head(self, length: bytes):
        read(FIXED)
        with pytest.raises(RequestFault):
            read(FIXED.replace(b"Length: 5", b"Length: " + length))

    def test_limits_that_changed_since_count(self):
        read(FIXED)
        with pytest.raises(RequestFault):
            read(FIXED, limits=HttpLimits(header_count=1))
        with pytest.raises(RequestFault):
            read(FIXED, limits=HttpLimits(body_bytes=4))

    def test_a_known_head_still_closes_and_still_waits(self):
        closing = FIXED.replace(b"Host: a", b"Host: a\r\nConnection: close\r\nExpect: 100-continue")
        for _ in range(2):
            reader = RequestReader(HttpLimits())
            assert reader.feed(closing[:-5]) is None
            assert reader.wants_continue
            request = reader.feed(b"hello")
            assert request is not None
            assert not request.keep_alive

    def test_they_are_bounded(self):
        for number in range(3 * known_heads.MAX_HEADS):
            read(FIXED.replace(b"one", b"%d" % number))
        assert len(known_heads._heads) <= known_heads.MAX_HEADS
        assert read(FIXED.replace(b"one", b"x" * known_heads.MAX_HEAD_BYTES))[0].body == b"hello"


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


POST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d%b\r\nX-B: 1\r\n\r\n%b"


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Requests that are much like each other, and not quite."""
    kind = draw(st.integers(0, 9))
    if kind == 9:
        return draw(st.sampled_from([BARE, CHUNKED, FIXED, b"\r\n" + FIXED]))
    body = b"x" * draw(st.sampled_from([0, 1, 8, 9, 10, 11, 98, 99, 100, 101, 300]))
    length = len(body) + draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1, 10]))
    more = draw(
        st.sampled_from([b""] * 6 + [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"X-A: 2\r\n"])
    )
    return POST % (
        more,
        max(length, 0),
        draw(st.sampled_from([b""] * 6 + [b"1", b" ", b"\r\nContent-Length: 1"])),
        body,
    )


@given(
    st.lists(messages(), min_size=1, max_size=6),
    st.sampled_from([HttpLimits(), HttpLimits(body_bytes=100, header_bytes=90)]),
)
def test_heads_that_are_known_are_read_as_if_they_were_not(data: list[bytes], limits: HttpLimits):
    def told(forget: bool) -> list[object]:
        known_heads._heads.clear()
        reader, found = RequestReader(limits), []
        for message in data:
            if forget:
                known_heads._heads.clear()
                reader._last = None
            try:
                request = reader.feed(message)
                while request is not None:
                    found.append((request.method, request.path, request.headers, request.body, request.keep_alive))
                    request = reader.resume(limits)
            except RequestFault as fault:
                return [*found, fault.answer]
        return found

    assert told(forget=False) == told(forget=True)


@pytest.mark.parametrize("size", [65_536, 65_537, 131_073, 1 << 20, (1 << 20) + 1, (1 << 20) + 2, 3_000_000])
@pytest.mark.parametrize("step", [1000, 65_536, 400_000])
@pytest.mark.parametrize("begun", [0, 1, 50_000])
def test_a_large_body_is_read_to_where_it_stays(size: int, step: int, begun: int):
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    reader = RequestReader(HttpLimits())
    request = reader.feed(HEAD + b"Content-Length: %d\r\n\r\n" % size + body[:begun])
    at = begun
    while request is None:
        room = reader.room()
        if room is None:
            request = reader.feed(body[at:] + BARE)
        else:
            assert 0 < len(room) <= max(65_536, min(64 * at, 1 << 20), 2 * at)
            count = min(step, len(room))
            room[:count] = body[at : at + count]
            at += count
            reader.put(count)
            del room
    assert request.body == body
    assert type(request.body) is bytes
    assert reader.held
    assert at == (size - 1 if size - begun >= 65_536 else begun)
