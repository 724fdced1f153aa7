"""A simulated engine in this process, and a client that shows raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.simulator import Simulator, SimulatorConfig

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
PATIENCE_S = 10.0


@asynccontextmanager
async def simulated(**changes: Any) -> AsyncIterator[Simulator]:
    """A running engine; it must have nothing left to do when the test is over."""
    simulator = Simulator(SimulatorConfig(**{"max_model_len": 2048, "speed": 10.0, **changes}))
    await simulator.start()
    try:
        yield simulator
        await settled(simulator)
        assert simulator.core.pool.used == 0
        assert not simulator.jobs
        assert not simulator._arrivals
    finally:
        simulator.close()
        await asyncio.sleep(0)


async def settled(simulator: Simulator) -> None:
    """Wait until the engine is idle."""
    await until(lambda: simulator.core.idle)


async def until(condition: Any) -> None:
    """Wait for a condition that another party brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it happens in a server that has nothing to tell us
            await asyncio.sleep(0.002)


@dataclass
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of each event but `[DONE]`."""
        return [orjson.loads(each[6:-2]) for each in self.chunks if each != b"data: [DONE]\n\n"]

    @property
    def text(self) -> str:
        """The text of choice 0 of a streamed answer."""
        choices = [
            event["choices"][0] for event in self.events if event["choices"] and event["choices"][0]["index"] == 0
        ]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    def send(self, path: str, body: Any = None, *, method: str = "", headers: str = "") -> None:
        raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        method = method or ("GET" if body is None else "POST")
        kind = "" if body is None or "content-type" in headers.lower() else "content-type: application/json\r\n"
        length = "" if body is None else f"content-length: {len(raw)}\r\n"
        self.writer.write(f"{method} {path} HTTP/1.1\r\nhost: sim\r\n{kind}{length}{headers}\r\n".encode() + raw)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = raw[:-4].split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)

    async def chunk(self) -> bytes:
        """The next chunk; empty at the end."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self) -> Answer:
        status, headers = await self.head()
        chunks: list[bytes] = []
        if headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                chunks.append(piece)
            return Answer(status, headers, b"".join(chunks), chunks)
        async with asyncio.timeout(PATIENCE_S):
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(status, headers, body, chunks)

    async def ask(self, path: str, body: Any = None, **options: str) -> Answer:
        self.send(path, body, **options)
        return await self.answer()

    async def eof(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def client(port: int) -> AsyncIterator[Client]:
    """A connection that is closed afterwards."""
    own = await Client.connect(port)
    try:
        yield own
    finally:
        own.close()


async def ask(port: int, path: str, body: Any = None, **options: str) -> Answer:
    """One request on a connection of its own."""
    async with client(port) as own:
        return await own.ask(path, body, **options)
