"""A scripted engine: raw bytes over real sockets, every kind of fault, and a record of exactly what it received.

A script is `async def script(call)`; it decides everything that happens after a request has been read. Scripts wait on
events, never on time. The factories below make one script for each row of the fault matrix.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Received:
    """One request as it came: the head's bytes and the body's."""

    head: bytes
    body: bytes
    raw_body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:-2]
        return [(name.lower(), value.strip()) for name, value in (line.split(b":", 1) for line in lines)]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


class Call:
    """One request in the hands of its script."""

    def __init__(self, server: FaultServer, connection: Connection, request: Received) -> None:
        self.server = server
        self.request = request
        self._connection = connection
        self.gone = connection.gone
        self.gate = asyncio.Event()

    async def send(self, data: bytes) -> None:
        """Write and wait until the kernel has room again."""
        if not self._connection.transport.is_closing():
            self._connection.transport.write(data)
            await self._connection.writable.wait()

    async def send_bytewise(self, data: bytes) -> None:
        """One write for each byte, each a turn of the loop of its own."""
        for i in range(len(data)):
            await self.send(data[i : i + 1])
            await asyncio.sleep(0)

    def write(self, data: bytes) -> None:
        """Write without waiting."""
        self._connection.transport.write(data)

    def close(self) -> None:
        """Send what was written, then FIN."""
        self._connection.transport.close()

    def half_close(self) -> None:
        """FIN for our side only; keep reading."""
        self._connection.transport.write_eof()

    def reset(self) -> None:
        """RST, dropping what is unsent."""
        transport = self._connection.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


class Connection(asyncio.Protocol):
    """Reads requests one after the other and runs a script for each."""

    def __init__(self, server: FaultServer) -> None:
        self.server = server
        self.buffer = bytearray()
        self.everything = bytearray()
        self.gone = asyncio.Event()
        self.lost = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._script: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(65536)
        self.server.connections.append(self)
        self.server.changed()

    def data_received(self, data: bytes) -> None:
        self.everything += data
        self.buffer += data
        self.server.changed()
        self._next()

    def eof_received(self) -> bool:
        self.gone.set()
        self.server.changed()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.gone.set()
        self.writable.set()
        self.server.changed()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def _next(self) -> None:
        if self._script is not None:
            return
        request = self._take()
        if request is None:
            return
        self.server.requests.append(request)
        call = Call(self.server, self, request)
        self.server.calls.append(call)
        self.server.changed()
        self._script = asyncio.get_running_loop().create_task(self._run(call))
        self.server.tasks.add(self._script)

    async def _run(self, call: Call) -> None:
        task = asyncio.current_task()
        try:
            await self.server.script_for()(call)
        finally:
            assert task is not None
            self.server.tasks.discard(task)
            self._script = None
        self._next()

    def _take(self) -> Received | None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.buffer[: end + 4])
        request = Received(head, b"", b"")
        rest = self.buffer[end + 4 :]
        if request.values(b"transfer-encoding"):
            raise AssertionError("the gateway frames bodies by length only")
        length = int((request.values(b"content-length") or [b"0"])[0])
        if len(rest) < length:
            return None
        request.body = request.raw_body = bytes(rest[:length])
        self.buffer = rest[length:]
        return request


@dataclass
class FaultServer:
    """Listens on a port of its own; `scripts` are used up one a request, then `script` answers."""

    script: Script
    scripts: list[Script] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> FaultServer:
        self.gate = asyncio.Event()
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), self.host, 0, backlog=1024, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in list(self.tasks):
            task.cancel()
        for connection in self.connections:
            connection.transport.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.until(lambda: all(connection.lost for connection in self.connections))
        await self._server.wait_closed()

    def script_for(self) -> Script:
        return self.scripts.pop(0) if self.scripts else self.script

    def changed(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Wait until something about this server holds."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def call(self, number: int = 0, timeout: float = 5.0) -> Call:
        """The request of that number, once it is there."""
        await self.until(lambda: len(self.calls) > number, timeout)
        return self.calls[number]

    @property
    def open_connections(self) -> int:
        return sum(not connection.gone.is_set() for connection in self.connections)


def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- pieces of answers ------------------------------------------------------------------------------------------------


def http(status: int, body: bytes, *fields: str, content_type: str = "application/json") -> bytes:
    """A whole answer with its length."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", f"content-length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b"0\r\n\r\n"


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def event(content: str | None = None, *, finish: str | None = None, usage: object = None) -> bytes:
    """One chat chunk as vLLM writes it."""
    delta = {} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    value: dict[str, object] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices}
    if usage is not None:
        value["choices"], value["usage"] = [], usage
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ERROR_EVENT = (
    b'data: {"error": {"message": "queue full", "type": "Service Unavailable", "param": null, "code": 503}}\n\n'
)
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
).encode()
WHOLE_STREAM = [event("Hel"), event("lo"), event("", finish="stop"), DONE]


# -- scripts ----------------------------------------------------------------------------------------------------------


def answers(data: bytes, *, bytewise: bool = False, then_close: bool = False) -> Script:
    """Send exactly these bytes."""

    async def script(call: Call) -> None:
        await (call.send_bytewise(data) if bytewise else call.send(data))
        if then_close:
            call.close()

    return script


def ok() -> Script:
    return answers(http(200, ANSWER))


def streams(events: Iterable[bytes] = tuple(WHOLE_STREAM), *, end: bool = True, bytewise: bool = False) -> Script:
    """Send these events, each a chunk; without `end` the connection just stays open."""
    chosen = list(events)

    async def script(call: Call) -> None:
        data = [STREAM_HEAD, *(chunked(one) for one in chosen), *([chunked(b"")] if end else [])]
        for piece in data:
            await (call.send_bytewise(piece) if bytewise else call.send(piece))
            await asyncio.sleep(0)

    return script


def streams_then(events: Iterable[bytes], ending: Callable[[Call], None]) -> Script:
    """Send these events, wait for the gate, then end in a way of its own."""
    chosen = list(events)

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD)
        for one in chosen:
            await call.send(chunked(one))
        await call.gate.wait()
        ending(call)

    return script


def hangs() -> Script:
    """Read the request and say nothing."""

    async def script(call: Call) -> None:
        await call.gone.wait()

    return script


def resets() -> Script:
    async def script(call: Call) -> None:
        call.reset()

    return script


def closes() -> Script:
    async def script(call: Call) -> None:
        call.close()

    return script


def floods(piece: bytes, count: int) -> Script:
    """Send a long stream as fast as the reader takes it."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD)
        for _ in range(count):
            if call.gone.is_set():
                return
            await call.send(chunked(piece))
            call.server.sent = getattr(call.server, "sent", 0) + len(piece)  # type: ignore[attr-defined]
        await call.send(chunked(DONE) + chunked(b""))

    return script
