"""HTTP/1.1 of the simulated engine, as uvicorn speaks it: httptools on an `asyncio.Protocol`, no task per request.

Requests of one connection are answered in order. A client that leaves in any way, half-closing included, ends the
request it is waiting for, as at vLLM. Streams have no back-pressure to the engine: what a slow reader does not take
is joined into fewer, larger events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol, cast

import httptools

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_HEAD_BYTES: Final = 256 * 1024
MAX_PIPELINED: Final = 32
FIRST_REQUEST_S: Final = 60.0  # a connection that never says anything is closed then
SERVER: Final = b"uvicorn"

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_JSON: Final = "application/json"


class Clock(Protocol):
    """The wall clock, for the Date header."""

    def __call__(self) -> float:
        """Seconds since the epoch."""


class DateCache:
    """The Date header's value, formatted once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._value = b""

    def __call__(self) -> bytes:
        """The value now."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._value = formatdate(second, usegmt=True).encode()
        return self._value


class Exchange:
    """One request and its answer. `on_gone` is called once if the client leaves before the answer is whole."""

    __slots__ = (
        "_connection",
        "_streaming",
        "body",
        "ended",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "on_writable",
        "path",
        "status",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.method = ""
        self.path = ""
        self.headers: dict[bytes, bytes] = {}  # lower-cased names; of repeated ones the last
        self.body = b""
        self.keep_alive = True
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.ended = False
        self.status = 0
        self._streaming = False

    @property
    def writable(self) -> bool:
        """False while the client does not keep up."""
        return not self._connection.congested

    @property
    def streaming(self) -> bool:
        """The head of a streamed answer is out."""
        return self._streaming

    def header(self, name: bytes) -> str | None:
        """A request header's value."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = _JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Answer in one piece. After the client has left: nothing happens."""
        if self.ended:
            return
        head = [name + b": " + value for name, value in headers]
        head.append(b"content-length: %d" % len(body))
        if content_type is not None and body:
            head.append(b"content-type: " + content_type.encode())
        if self.method == "HEAD":
            body = b""
        self._write_head(status, head, body)
        self._end()

    def start_stream(self, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Send 200 and the head of an event stream at once."""
        if self.ended:
            return
        self._streaming = True
        head = [b"content-type: text/event-stream; charset=utf-8"]
        head.extend(name + b": " + value for name, value in headers)
        self._write_head(200, head, b"", b"transfer-encoding: chunked")

    def send(self, events: list[bytes]) -> None:
        """Send events, each as a chunk of its own, in one write."""
        if not self.ended and events:
            self._connection.write(b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events]))

    def finish_stream(self, events: list[bytes]) -> None:
        """Send the last events and the end of the stream."""
        if not self.ended:
            self.send(events)
            self._connection.write(b"0\r\n\r\n")
            self._end()

    def cut(self, *, reset: bool = False) -> None:
        """Break the connection off in the middle of everything."""
        if not self.ended:
            self.ended = True
            self.on_gone = self.on_writable = None
            self._connection.cut(reset)

    def _write_head(self, status: int, head: list[bytes], body: bytes, last: bytes | None = None) -> None:
        self.status = status
        lines = [
            b"HTTP/1.1 %d %b" % (status, _REASONS[status]),
            b"date: " + self._connection.date(),
            b"server: " + SERVER,
        ]
        lines += head
        lines.append(b"vary: Origin")
        if last is not None:
            lines.append(last)
        if not self.keep_alive:
            lines.append(b"connection: close")
        self._connection.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    def _end(self) -> None:
        self.ended = True
        self.on_gone = self.on_writable = None
        self._connection.exchange_done(self)

    def gone(self) -> None:
        """The client has left."""
        if not self.ended:
            self.ended = True
            callback, self.on_gone, self.on_writable = self.on_gone, None, None
            if callback is not None:
                callback()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        connections: set[Connection],
        date: DateCache,
        keep_alive_s: float,
    ) -> None:
        self._handle = handle
        self._connections = connections
        self.date = date
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: Exchange | None = None
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = 0
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._too_large = False
        self._dispatching = False
        self.congested = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._connections.add(self)
        self._idle(FIRST_REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._transport = None
        self._connections.discard(self)
        self._busy()
        self._drop_requests()

    def eof_received(self) -> None:
        """The client has closed its half: for this server, as for vLLM's, it has left."""
        self._drop_requests()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.congested = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.congested = False
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._busy()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse()  # an upgrade ends HTTP on this connection; there is none to offer
        except httptools.HttpParserError:
            self._refuse()
        self._next()

    # --- httptools

    def on_message_begin(self) -> None:
        """A request starts."""
        self._reading = Exchange(self)
        self._body.clear()
        self._body_bytes = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        assert self._reading is not None
        self._head_bytes += len(url)
        self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        assert self._reading is not None
        self._head_bytes += len(name) + len(value)
        if self._head_bytes <= MAX_HEAD_BYTES:
            self._reading.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is whole."""
        exchange = self._reading
        assert exchange is not None
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.path = exchange.path.partition("?")[0]
        if exchange.headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body.append(body)
        else:
            self._too_large = True
            self._body.clear()

    def on_message_complete(self) -> None:
        """A request is whole."""
        exchange = self._reading
        assert exchange is not None
        self._reading = None
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange.body = b"".join(self._body)
        self._body.clear()
        if self._too_large or self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()
            return
        self._waiting.append(exchange)
        if len(self._waiting) >= MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()

    # --- answers

    def write(self, data: bytes) -> None:
        """Send bytes, if anyone is there."""
        if self._transport is not None:
            self._transport.write(data)

    def cut(self, reset: bool) -> None:
        """End the connection without ending the answer."""
        transport = self._transport
        if transport is not None:
            if reset:
                transport.abort()
            else:
                transport.close()

    def close_idle(self) -> None:
        """Close, if no request is being answered."""
        if self._current is None and self._transport is not None:
            self._transport.close()

    def exchange_done(self, exchange: Exchange) -> None:
        """The current request has its whole answer."""
        self._current = None
        if not exchange.keep_alive:
            self._waiting.clear()
            self.cut(reset=False)
        else:
            self._next()

    def _next(self) -> None:
        """Take up the next request that is waiting; iterative, because answers may be immediate."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._current is None and self._waiting and self._transport is not None:
                self._current = self._waiting.popleft()
                self._transport.resume_reading()
                self._handle(self._current)
        finally:
            self._dispatching = False
        if self._current is None and self._reading is None and self._transport is not None and self._timer is None:
            self._idle(self._keep_alive_s)

    def _refuse(self) -> None:
        """Answer what is no HTTP, or too much of it, and close."""
        self._waiting.clear()
        if self._current is None:
            exchange = Exchange(self)
            exchange.keep_alive = False
            exchange.respond(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8")
        else:
            self.cut(reset=False)

    def _drop_requests(self) -> None:
        self._waiting.clear()
        current, self._current = self._current, None
        if current is not None:
            current.gone()

    def _idle(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self.close_idle)

    def _busy(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
