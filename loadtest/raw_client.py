"""A load generator that measures a process in front of `raw_engine`: `python -m loadtest.raw_client '{"port": …}'`.

Closed loop: each connection asks again as soon as it is answered. Prints one JSON line: what was answered within the
window, and the processor time that the watched process took meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import orjson


@dataclass(frozen=True, slots=True)
class Load:
    """What to do. `watch` is the process whose processor time is taken."""

    port: int
    watch: int
    connections: int
    body_bytes: int
    stream: bool
    warm_s: float
    seconds: float
    key: str = ""


@dataclass(slots=True)
class Tally:
    """What came back so far."""

    answers: int = 0
    chunks: int = 0
    refused: int = 0
    lost: int = 0


def cpu_s(pid: int) -> float:
    """Processor time that the threads of a process which live now have taken, in seconds (Linux)."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # the thread has just ended
    return spent / 1e9


def question(load: Load, max_tokens: int = 16) -> bytes:
    """The request that is sent over and over. `max_tokens` tells the engine which answer is wanted."""
    text = "the quick brown fox jumps over the lazy dogs while a model is thinking of tokens " * (
        load.body_bytes // 80 + 1
    )
    frame = {
        "model": "raw",
        "messages": [{"role": "user", "content": ""}],
        "max_tokens": max_tokens,
        "stream": load.stream,
    }
    text = text[: max(load.body_bytes - len(orjson.dumps(frame)), 1)]
    frame["messages"] = [{"role": "user", "content": text}]
    body = orjson.dumps(frame)
    key = f"Authorization: Bearer {load.key}\r\n" if load.key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\nUser-Agent: raw\r\nAccept: */*\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection that asks for ever. Reads answers only as closely as counting needs."""

    def __init__(self, request: bytes, stream: bool, tally: Tally) -> None:
        self._request = request
        self._stream = stream
        self._tally = tally
        self._held = b""
        self._missing = -1  # of an answer's body; -1: its head is not whole

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody closes but us, at the end."""
        self._tally.lost += 1

    def data_received(self, data: bytes) -> None:
        """Count, and ask again."""
        if self._stream and self._missing >= 0:
            self._tally.chunks += data.count(b"\ndata: ")
            return
        if self._missing < 0:
            self._held += data
            end = self._held.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            data, self._held = self._held, b""
            if data[9:12] != b"200":
                self._tally.refused += 1
                self._stream = False
            at = data[:end].lower().find(b"content-length:")
            if at < 0:
                self._missing = 0
                return
            self._missing = int(data[at + 15 : data.find(b"\r", at)])
            data = data[end:]
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing = -1
            self._tally.answers += 1
            self.transport.write(self._request)


async def run(load: Load) -> dict[str, float]:
    """Load for a while; what came of it."""
    loop = asyncio.get_running_loop()
    tally, request = Tally(), question(load)
    clients = []
    for _ in range(load.connections):
        _, client = await loop.create_connection(lambda: Client(request, load.stream, tally), "127.0.0.1", load.port)
        clients.append(client)
        await asyncio.sleep(0.3 / load.connections)
    await asyncio.sleep(load.warm_s)
    before, answers, chunks, began = cpu_s(load.watch), tally.answers, tally.chunks, loop.time()
    await asyncio.sleep(load.seconds)
    found = {
        "cpu_s": cpu_s(load.watch) - before,
        "answers": tally.answers - answers,
        "chunks": tally.chunks - chunks,
        "seconds": loop.time() - began,
        "refused": tally.refused,
        "lost": tally.lost,
    }
    for client in clients:
        client.transport.abort()
    return found


if __name__ == "__main__":
    import uvloop

    sys.stdout.write(orjson.dumps(uvloop.run(run(Load(**orjson.loads(sys.argv[1]))))).decode() + "\n")
