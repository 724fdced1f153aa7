"""A worker that is not ours: a plain HTTP server that answers POST and nothing else, held by gates, not by sleeps."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
]
ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ab"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}'
)


class PlainWorker:
    """Streams when the body asks for it. `gate`: what has to be set before the second event goes out."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.gets = 0
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.idle = asyncio.Event()
        self.idle.set()
        self.pause_s = 0.0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                body = await reader.readexactly(length)
                if not head.startswith(b"POST "):
                    self.gets += 1
                    writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.bodies.append(body)
                self.running += 1
                self.most = max(self.most, self.running)
                self.idle.clear()
                try:
                    await self.answer(reader, writer, b'"stream":true' in body.replace(b" ", b""))
                finally:
                    self.running -= 1
                    if not self.running:
                        self.idle.set()
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
            pass  # the gateway closed the connection, or `crash` did: uvloop says RuntimeError to a write after that
        finally:
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: bool) -> None:
        if not stream:
            await self.held(reader)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
            writer.write(head + ANSWER)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, event in enumerate(EVENTS):
            await asyncio.sleep(self.pause_s)
            if number == 1:
                await self.held(reader)
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def held(self, reader: asyncio.StreamReader) -> None:
        """Wait for the gate, or for the gateway to hang up."""
        opened = asyncio.ensure_future(self.gate.wait())
        while not opened.done():
            await asyncio.wait({opened}, timeout=0.02)
            if reader.at_eof() or reader.exception() is not None:
                opened.cancel()
                raise ConnectionResetError

    def crash(self) -> None:
        """Reset every connection, as a killed process does."""
        for writer in list(self.writers):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@asynccontextmanager
async def plain_worker() -> AsyncIterator[PlainWorker]:
    """A running plain worker on a port of its own."""
    worker = PlainWorker()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(worker.serve(reader, writer))
        tasks.add(task)
        worker.writers.add(writer)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: worker.writers.discard(writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    worker.url = f"http://{host}:{port}"
    try:
        yield worker
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
