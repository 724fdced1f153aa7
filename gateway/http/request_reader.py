"""Bytes of a client connection to requests, strictly, one message at a time.

llhttp (strict mode) parses heads and chunked bodies; it refuses obsolete folding, bare CR or LF, control characters,
length and encoding together and duplicate lengths. What it lets pass and a gateway must not is checked here. Each
message gets a parser of its own, which is fed that message's head and nothing behind it: no state crosses from one
request to the next, and pipelined bytes stay bytes until their turn comes. A head that was read before, its length
apart, is not parsed again (`known_heads`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import httptools

from gateway.errors import ErrorCode, shown

from .answer_fields import Fields
from .chunked_body import ChunkedBody, ChunkedFault
from .faults import RequestFault, body_too_large, head_too_large, malformed
from .known_heads import LENGTH_DIGITS, KnownHead, find, known_head_of, remember, without_length
from .large_body import LARGE_BYTES, LargeBody
from .messages import HttpLimits, RawRequest

_REQUEST_LINE = re.compile(rb"([A-Z]{1,32}) ([!-~]+) HTTP/([0-9])\.([0-9])\r\n")
_BARE_LF = re.compile(rb"(?:^|[^\r])\n")
_HOST = re.compile(rb"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_NAME_CHARS = b"abcdefghijklmnopqrstuvwxyz0123456789-"

_HEADER_BYTES: Final = "limits.header_bytes"
_HEAD_METHOD: Final = b"HEAD "

_HEAD: Final = 0
_FIXED: Final = 1
_CHUNKED: Final = 2
_HELD: Final = 3


class RequestReader:
    """Reads the requests of one connection in order.

    `feed` takes bytes while no request is out, `hold` while one is; `resume` goes on with what was held. Those of a
    large body may be read to its `room` instead, `put` is told how many. `in_head` and `in_body` tell which deadline
    runs; `wants_continue` that the client waits for `100 Continue`.
    """

    __slots__ = (
        "_chunked", "_fault_of_head", "_fields", "_large", "_last", "_limits", "_missing", "_parts", "_request",
        "_rest", "_secure", "_state", "peer", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, peer: str = "", *, secure: bool = False) -> None:
        self._limits = limits
        self.peer = peer
        self._secure = secure
        self._state = _HEAD
        self._rest = bytearray()
        self._chunked: ChunkedBody | None = None
        self._request: RawRequest | None = None
        self._fields: Fields = []
        self._parts: list[bytes] = []
        self._missing = 0
        self._large: LargeBody | None = None
        self._last: KnownHead | None = None
        self.wants_continue = False
        self._fault_of_head = False  # what was refused is a HEAD request

    @property
    def bodyless(self) -> bool:
        """What is being read, or was refused, is a HEAD request: its answer has no body."""
        request = self._request
        if request is not None:
            return request.method == "HEAD"
        return self._fault_of_head or self._rest.lstrip(b"\r\n").startswith(_HEAD_METHOD)

    @property
    def in_head(self) -> bool:
        """A head has begun and is not whole yet."""
        return self._state == _HEAD and len(self._rest) > 0

    @property
    def in_body(self) -> bool:
        """A head was read, its body is not whole yet."""
        return self._state in (_FIXED, _CHUNKED)

    def feed(self, data: bytes) -> RawRequest | None:
        """Read on; the request when it is whole. Raises `RequestFault`; nothing can be read after that."""
        if self._state == _HEAD:
            return self._feed_head(data)
        return self._feed_fixed(data) if self._state == _FIXED else self._feed_chunked(data)

    @property
    def long_way(self) -> bool:
        """So much of a body of known length is missing that it is better read with `room` and `put`."""
        return self._state == _FIXED and self._missing >= LARGE_BYTES

    def room(self) -> memoryview | None:
        """Where to read the next bytes of a large body to; None: to anywhere, for `feed`."""
        if self._large is None:
            if not self.long_way:
                return None
            self._large, self._parts = LargeBody(self._parts, self._missing), []
        return self._large.room()

    def put(self, count: int) -> None:
        """So many bytes were read to where `room` had said."""
        assert self._large is not None
        self._large.got += count
        self._missing -= count

    def hold(self, data: bytes) -> bool:
        """Keep bytes that came while a request is out; False when there is no more room for them."""
        if len(self._rest) + len(data) > self._limits.pipelined_bytes:
            return False
        self._rest += data
        return True

    @property
    def held(self) -> bool:
        """Bytes are there that no request has been made of yet."""
        return bool(self._rest)

    def restart(self, limits: HttpLimits) -> None:
        """The request before has been answered and nothing came meanwhile: be ready for the next, in these limits."""
        self._limits = limits
        self._state = _HEAD

    def resume(self, limits: HttpLimits) -> RawRequest | None:
        """The request before has been answered: go on with the bytes held meanwhile."""
        self.restart(limits)
        if not self._rest:
            return None
        held = bytes(self._rest)
        self._rest.clear()
        return self._feed_head(held)

    # -- head -----------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> RawRequest | None:
        rest = self._rest
        known, last = len(rest), self._last
        if last is not None and not known:
            body = last.body_of(data, self._limits)
            if body is not None:
                self._state = _HELD
                return self._request_like(last, len(body), body)
        if known:
            rest += data
            end = rest.find(b"\r\n\r\n", max(0, known - 3))
            if end >= 0:
                data = bytes(rest)
                rest.clear()
        else:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                rest += data
        if end < 0:
            self._check_unfinished(known)
            return None
        end += 4
        # One empty line before a request is tolerated, as RFC 9112 §2.2 asks.
        start = 2 if data.startswith(b"\r\n") else 0
        if end == start + 2:
            raise malformed("That is not the beginning of an HTTP request.")
        try:
            return self._read_head(data[start:end], data[end:] if end < len(data) else b"")
        except RequestFault:
            self._fault_of_head = data.startswith(_HEAD_METHOD, start)
            raise

    def _check_unfinished(self, known: int) -> None:
        """Refuse at once what can never become a request, instead of at the deadline."""
        rest, limits = self._rest, self._limits
        if len(rest) > limits.header_bytes:
            raise head_too_large(f"head has {len(rest)} bytes", limits.header_bytes, _HEADER_BYTES, whole=False)
        start = 2 if rest.startswith(b"\r\n") else 0
        if len(rest) > start and not 65 <= rest[start] <= 90 and rest[start] != 13:
            raise malformed("That is not the beginning of an HTTP request.")
        if _BARE_LF.search(rest, max(0, known - 1)):
            raise malformed("A line ends without CR.")
        line_end = rest.find(b"\r\n", start)
        if line_end >= 0:
            _request_line(bytes(rest[start : line_end + 2]))
        elif len(rest) > limits.line_bytes:
            raise head_too_large(f"request line has {len(rest) - start} bytes", limits.line_bytes, whole=False)

    def _read_head(self, head: bytes, rest: bytes) -> RawRequest | None:
        limits = self._limits
        if len(head) > limits.header_bytes:
            raise head_too_large(f"head has {len(head)} bytes", limits.header_bytes, _HEADER_BYTES)
        if len(head) > limits.line_bytes and (longest := max(map(len, head.split(b"\r\n")))) > limits.line_bytes:
            raise head_too_large(f"longest line of the head has {longest} bytes", limits.line_bytes)
        key, digits = without_length(head)
        known = find(key, digits, limits)
        if known is None:
            method, path, query, http10 = _request_line(head[: head.find(b"\r\n") + 2])
            fields = self._parse_fields(head)
            request = RawRequest(method, path, query, fields, b"", self.peer, self._secure, True, http10)
            length = self._check_fields(request)
            if length is None:
                self._request, self._chunked, self._state = request, ChunkedBody(), _CHUNKED
                return self._feed_chunked(rest) if rest else None
            known = known_head_of(request, limits, head, self.wants_continue)
            request.notes = known.notes
            if known.length_at >= 0:
                del fields[known.length_at]
            if not remember(key, known):
                known = None
        else:
            length = int(digits) if digits else 0
            request = self._request_like(known, length, b"")
            self.wants_continue = known.expects_continue
        self._last = known
        self._request = request
        if length == len(rest):
            request.body = rest
            return self._out(b"")
        self._missing = length
        self._state = _FIXED
        if not length:
            return self._out(rest)
        return self._feed_fixed(rest) if rest else None

    def _request_like(self, known: KnownHead, length: int, body: bytes) -> RawRequest:
        """A request with a head that was read before, its length apart."""
        if length > self._limits.body_bytes:
            self._fault_of_head = known.method == "HEAD"
            raise body_too_large(length, self._limits.body_bytes)
        return RawRequest(
            known.method, known.path, known.query, known.fields, body,
            self.peer, self._secure, known.keep_alive, known.http10, known.notes,
        )  # fmt: skip

    def _parse_fields(self, head: bytes) -> Fields:
        fields: Fields = []
        self._fields = fields
        try:
            httptools.HttpRequestParser(self).feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # a server may ignore the wish (RFC 9110 §7.8)
        except httptools.HttpParserError as error:
            raise malformed(f"The head is not well-formed HTTP: {error}.") from None
        if len(fields) > self._limits.header_count:
            raise head_too_large(f"head has {len(fields)} fields", self._limits.header_count)
        return fields

    def _check_fields(self, request: RawRequest) -> int | None:
        """What the fields say about host, framing and connection; the body's length, None for a chunked one."""
        fields = request.headers
        host = encoding = length = expect = None
        request.keep_alive = not request.http10
        for name, value in fields:
            if name in _PLAIN_NAMES:
                continue
            if name not in _CHECKED:
                _learn_name(name)
            elif name == b"host":
                if host is not None:
                    raise malformed("More than one Host.")
                host = value
                if _HOST.fullmatch(value) is None:
                    raise malformed(f"Host is not a host name with an optional port: {shown(value)}.")
            elif name == b"content-length":
                if length is not None or encoding is not None:
                    raise malformed("Content-Length twice, or beside Transfer-Encoding.")
                length = value
            elif name == b"transfer-encoding":
                if encoding is not None or length is not None or request.http10 or value.lower() != b"chunked":
                    raise malformed("Transfer-Encoding must be 'chunked', once, in HTTP/1.1.")
                encoding = value
            elif name == b"connection":
                tokens = value.lower().split(b",")
                if any(token.strip() == b"close" for token in tokens):
                    request.keep_alive = False
                elif request.http10 and any(token.strip() == b"keep-alive" for token in tokens):
                    request.keep_alive = True
            elif name == b"expect":
                if expect is not None or value.lower() != b"100-continue":
                    raise malformed(f"Expect can only be 100-continue, not {shown(value)}.")
                expect = value
            elif name == b"upgrade":
                pass  # ignored, and never forwarded
            elif value.lower() != b"identity":  # content-encoding
                raise RequestFault(
                    ErrorCode.UNSUPPORTED_ENCODING,
                    f"Content-Encoding {shown(value)} is not read; send the body as it is.",
                    ((b"accept-encoding", b"identity"),),
                )
        if host is None and not request.http10:
            raise malformed("Host is missing.")
        self.wants_continue = expect is not None and not request.http10
        if encoding is not None:
            return None
        if length is None:
            return 0
        if not length.isdigit():
            raise malformed(f"Content-Length is not a number: {shown(length)}.")
        if len(length) > LENGTH_DIGITS or int(length) > self._limits.body_bytes:
            raise body_too_large(length, self._limits.body_bytes)
        return int(length)

    # -- body -----------------------------------------------------------------------------------------------------

    def _feed_fixed(self, data: bytes) -> RawRequest | None:
        size, missing = len(data), self._missing
        if self._large is not None:  # `room` leaves its last byte
            self._parts.append(self._large.whole(data[:missing]))
            self._large = None
            return self._out(data[missing:])
        if size < missing:
            self._parts.append(data)
            self._missing = missing - size
            return None
        if size == missing:
            self._parts.append(data)
            return self._out(b"")
        self._parts.append(data[:missing])
        return self._out(data[missing:])

    def _feed_chunked(self, data: bytes) -> RawRequest | None:
        body, request = self._chunked, self._request
        assert body is not None
        assert request is not None
        try:
            rest = body.feed(data)
        except ChunkedFault as fault:
            raise malformed(str(fault)) from None
        if body.size > self._limits.body_bytes:
            raise body_too_large(body.size, self._limits.body_bytes, whole=rest is not None)
        if rest is None:
            return None
        if body.surplus:
            # Where the next message begins cannot be known, so it is not read.
            request.keep_alive = False
        self._parts = body.parts
        return self._out(rest)

    def _out(self, rest: bytes) -> RawRequest:
        request = self._request
        assert request is not None
        parts = self._parts
        if parts:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
        self._request = self._chunked = None
        self._state = _HELD
        self.wants_continue = False
        if len(rest) > self._limits.pipelined_bytes:
            request.keep_alive = False
        elif rest:
            self._rest += rest
        return request

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, told by llhttp, which strips the left side of values only."""
        self._fields.append((name.lower(), value.rstrip()))


_PLAIN_NAMES: set[bytes] = set()
"""Well-formed names that say nothing about framing, as seen so far: clients use few, so each is looked at once."""
_PLAIN_NAMES_MAX = 4096


def _learn_name(name: bytes) -> None:
    bad = name.translate(None, _NAME_CHARS)
    if bad:
        raise malformed(f"A header name has a character other than letters, digits and '-': {shown(bad)}.")
    if len(_PLAIN_NAMES) < _PLAIN_NAMES_MAX:
        _PLAIN_NAMES.add(name)


_CHECKED = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade", b"content-encoding"}
)


@lru_cache(maxsize=256)  # of lines with their CRLF: few different ones, asked over and over
def _request_line(line: bytes) -> tuple[str, str, bytes, bool]:
    """Method, path of a target in origin form (or `*` of OPTIONS), query, whether it is HTTP/1.0."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise malformed("The request line is not 'METHOD /path HTTP/1.1'.")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise RequestFault(
            ErrorCode.HTTP_VERSION_NOT_SUPPORTED,
            f"HTTP/{major.decode()}.{minor.decode()} is not spoken here; use HTTP/1.1.",
        )
    if method == b"CONNECT":
        raise RequestFault(ErrorCode.METHOD_NOT_ALLOWED, "CONNECT is not served.", ((b"allow", b"GET, HEAD, POST"),))
    if (target[0] != 47 and (target != b"*" or method != b"OPTIONS")) or b"#" in target or b"\\" in target:
        raise malformed(f"The request target must be a path: {shown(target)}.")
    path, _, query = target.partition(b"?")
    return method.decode("ascii"), path.decode("ascii"), query, minor == b"0"
