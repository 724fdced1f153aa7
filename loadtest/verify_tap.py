"""Stands between a gateway and an engine and keeps what the engine sends, to be compared with what clients got."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import httptools

PIECE: Final = 1 << 16
MAX_BODIES: Final = 10_000  # answers kept; further ones pass and are not


class _Answers:
    """Bodies of the answers on one connection, without their framing."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies
        self._parts: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        """A part of an answer."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Its end."""
        if len(self._bodies) < MAX_BODIES:
            self._bodies.append(b"".join(self._parts))
        self._parts = []


class Tap:
    """A relay of bytes to one engine. `bodies`: of its whole answers so far."""

    def __init__(self, engine_url: str) -> None:
        where = urlsplit(engine_url)
        self._engine = where.hostname, where.port
        self._server: asyncio.Server | None = None
        self._running: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.bodies: list[bytes] = []
        self.url = ""

    @property
    def running(self) -> int:
        """Connections that it relays now."""
        return len(self._running)

    async def __aenter__(self) -> Tap:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._running.values():
            connection.transport.abort()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = writer
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._engine)
        except OSError:
            writer.transport.abort()
        else:
            parser = httptools.HttpResponseParser(_Answers(self.bodies))
            both = [
                asyncio.ensure_future(_pass(reader, up_writer, None)),
                asyncio.ensure_future(_pass(up_reader, writer, parser)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, up_writer):
                end.close()
        finally:
            del self._running[task]


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: httptools.HttpResponseParser | None
) -> None:
    """Carry bytes over until one side has none or wants none."""
    with suppress(OSError):
        while data := await reader.read(PIECE):
            if parser is not None:
                parser.feed_data(data)
            writer.write(data)
            await writer.drain()
