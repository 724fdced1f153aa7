"""Very many requests, many of them given up half-way, and what a gateway holds afterwards: `headrace loadtest soak`.

A gateway and four engines run as processes of this run. Clients ask, leave in every state a request can be in, and ask
again. A first part fills what is bounded (records, caches, pools); what the gateway holds then, at rest, is compared
with what it holds at the end: tasks, descriptors, Python objects, memory, booked work. Linux only.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, cast

import orjson

from loadtest.compare import ENGINES, START_S, CompareError, ended

PLACES: Final = 8  # of an engine: fewer than there are clients, so that some leave while they wait
WARM_SHARE: Final = 0.2
REST_S: Final = 6.0  # idle connections to engines are closed after 3 s
ANSWER_S: Final = 60.0
REFUSED: Final = 0.001  # a gateway that gets no processor for a while turns work away
MORE_OBJECTS: Final = 3000
MORE_BYTES: Final = 4 << 20

Show = Callable[[str, float, str, bool], None]
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(stream: bool, tokens: int, session: int) -> bytes:
    """A chat request of some 200 bytes. The engine knows `"max_tokens":3,"stream":true` for a stream that ends."""
    body = b'{"model":"raw","messages":[{"role":"user","content":"how are you today?"}],"max_tokens":%d,"stream":%s}'
    body %= (tokens, b"true" if stream else b"false")
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{head}X-Session-Id: s{session}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class Clients:
    """So many clients at once, until so many requests were made.

    `faults`: answers that were not as they must be; `refused`: those that said, truthfully, not now.
    """

    port: int
    rng: Random
    left: int = 0
    made: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    async def make(self, count: int, clients: int) -> None:
        """Make `count` requests."""
        self.left = count
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client())

    async def _client(self) -> None:
        line: Line | None = None
        while self.left > 0:
            act = self.rng.choices(tuple(ACTS), WEIGHTS)[0]
            self.left -= 1
            self.made[act] += 1
            try:
                if line is None:
                    line = await asyncio.open_connection("127.0.0.1", self.port)
                async with asyncio.timeout(ANSWER_S):
                    kept = await ACTS[act](self, *line)
            except Refused as refusal:
                self.refused[str(refusal)] += 1
                kept = False
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
                self.faults[f"{act}: {type(error).__name__} {error}"[:200]] += 1
                kept = False
            if not kept and line is not None:
                line[1].transport.abort()
                line = None
        if line is not None:
            line[1].transport.abort()

    def _request(self, stream: bool, tokens: int = 16) -> bytes:
        return request(stream, tokens, self.rng.randrange(500))

    # -- what a client does; True: the connection is good for more -------------------------------------------------

    async def whole(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """An answer in one piece."""
        writer.write(self._request(False))
        await read_whole(reader)
        return True

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """A stream to its end."""
        writer.write(self._request(True, 3))
        await read_stream(reader)
        return True

    async def pipelined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Two questions in one breath."""
        writer.write(self._request(False) + self._request(True, 3))
        await read_whole(reader)
        await read_stream(reader)
        return True

    async def leaves_in_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Gone after the first token."""
        writer.write(self._request(True))
        await read_head(reader)
        await reader.readuntil(b"\n\n")
        return False

    async def leaves_at_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Gone while it waits, for a place or for the answer."""
        writer.write(self._request(True))
        await asyncio.sleep(self.rng.random() * 0.01)
        return False

    async def leaves_in_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Gone before the question is whole."""
        question = self._request(False)
        writer.write(question[: self.rng.randrange(1, len(question))])
        await asyncio.sleep(self.rng.random() * 0.002)
        return False

    async def half_closes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Says that it will say no more, which counts as having left."""
        writer.write(self._request(True))
        writer.write_eof()
        await reader.read()
        return False


class Refused(Exception):  # noqa: N818 - it names what came back
    """The gateway has no place just now, and says so."""


ACTS: Final[dict[str, Callable[[Clients, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]]] = {
    "whole": Clients.whole,
    "stream": Clients.stream,
    "pipelined": Clients.pipelined,
    "leaves in stream": Clients.leaves_in_stream,
    "leaves at once": Clients.leaves_at_once,
    "leaves in body": Clients.leaves_in_body,
    "half closes": Clients.half_closes,
}
WEIGHTS: Final = (45, 20, 2, 13, 12, 5, 3)


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of an answer that must be 200. Raises `Refused` for one that says when to come again."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = head[9:12].decode()
    if status in {"429", "503"} and b"\r\nretry-after:" in head:
        raise Refused(f"{status} {orjson.loads(await read_body(reader, head))['error']['code']}")
    if status != "200":
        raise ValueError(f"status {status}")
    return head


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """A body with a length."""
    at = head.index(b"content-length:") + 15
    return await reader.readexactly(int(head[at : head.index(b"\r", at)]))


async def read_whole(reader: asyncio.StreamReader) -> None:
    """An answer with a length."""
    if not (await read_body(reader, await read_head(reader))).endswith(b"}"):
        raise ValueError("not the whole body")


async def read_stream(reader: asyncio.StreamReader) -> None:
    """A chunked stream to its end."""
    await read_head(reader)
    text = await reader.readuntil(b"\r\n0\r\n\r\n")
    if b"data: [DONE]" not in text or b'"error"' in text:
        raise ValueError("a stream without its end")


def run_soak(
    show: Show, say: Callable[[str], None], *, requests: int, clients: int, seed: int, rest_s: float = REST_S
) -> bool:
    """Soak a gateway; whether it holds no more at the end than at the beginning, and failed nobody.

    `rest_s`: how long it is left alone before it is looked at.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-soak-")))
        gateway = Gateway(stack, home)
        return asyncio.run(_soak(gateway, show, say, requests, clients, seed, rest_s))


async def _soak(
    gateway: Gateway, show: Show, say: Callable[[str], None], requests: int, clients: int, seed: int, rest_s: float
) -> bool:
    driven = Clients(gateway.port, Random(seed))
    warm = max(1, round(requests * WARM_SHARE))
    began = time.monotonic()
    await driven.make(warm, clients)
    await asyncio.sleep(rest_s)
    before = await asyncio.to_thread(gateway.counts)
    say(f"after {warm} requests: {before}")
    await driven.make(requests - warm, clients)
    await asyncio.sleep(rest_s)
    after = await asyncio.to_thread(gateway.counts)
    say(f"after {requests} requests in {time.monotonic() - began:.0f} s: {after}")
    booked = await asyncio.to_thread(gateway.booked)
    say(f"clients: {dict(driven.made)}")
    for fault, count in driven.faults.most_common(20):
        say(f"fault, {count} times: {fault}")
    if driven.refused:
        say(f"refused: {dict(driven.refused)}")
    refused = sum(driven.refused.values()) / requests
    more = {name: after[name] - before[name] for name in after}
    figures = (
        ("answers that were not as they must be", sum(driven.faults.values()), "0", not driven.faults),
        ("share that was refused for want of a place", refused, f"at most {REFUSED}", refused <= REFUSED),
        ("requests running or waiting at the end, and work booked", booked, "0", booked == 0),
        ("tasks more than after the first part", more["tasks"], "0", more["tasks"] <= 0),
        ("descriptors more", more["descriptors"], "at most 2", more["descriptors"] <= 2),
        ("Python objects more", more["objects"], f"at most {MORE_OBJECTS}", more["objects"] <= MORE_OBJECTS),
        (
            "resident MiB more",
            round(more["resident_bytes"] / 2**20, 2),
            f"at most {MORE_BYTES >> 20}",
            more["resident_bytes"] <= MORE_BYTES,
        ),
    )
    for name, value, target, ok in figures:
        show(name, value, target, ok)
    return all(ok for *_, ok in figures)


class Gateway:
    """The gateway's process and the engines behind it."""

    def __init__(self, stack: ExitStack, home: Path) -> None:
        self._stack = stack
        self._home = home
        engine = self._start(["loadtest.raw_engine", str(ENGINES)])
        ports = [int(port) for port in _line(engine).split()]
        if len(ports) != ENGINES:
            raise CompareError("the engines did not start")
        workers = [
            {"id": f"w{at}", "url": f"http://127.0.0.1:{port}", "pool": "short-chat", "models": ["raw"],
             "max_model_len": 100_000, "max_num_seqs": PLACES, "kv_tokens": 10**7}
            for at, port in enumerate(ports)
        ]  # fmt: skip
        settings = home / "settings.yaml"
        settings.write_bytes(
            orjson.dumps(
                {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "redis": "none", "workers": workers,
                 "state_dir": str(home / "state"), "access_log": "none", "event_log": str(home / "events")}
            )
        )  # fmt: skip
        self._process = self._start(["gateway.census", str(settings)])
        said = _line(self._process)
        if not said:
            told = (home / "output").read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise CompareError(f"the gateway did not start: {told}")
        told_addresses: dict[str, str] = orjson.loads(said)
        self.port = int(told_addresses["data"].rpartition(":")[2])
        self._admin = told_addresses["admin"]

    def counts(self) -> dict[str, int]:
        """What it holds now."""
        stdin = cast(IO[bytes], self._process.stdin)
        stdin.write(b"\n")
        stdin.flush()
        found: dict[str, int] = orjson.loads(_line(self._process))
        return found

    def booked(self) -> float:
        """Requests running or waiting and the work booked for them; 0 when nothing goes on."""
        with closing(HTTPConnection(self._admin.removeprefix("http://"), timeout=START_S)) as admin:
            admin.request("GET", "/admin/v1/fleet")
            fleet: dict[str, Any] = orjson.loads(admin.getresponse().read())
        names = ("leases", "in_flight", "booked_prefill_s", "booked_decode_s", "booked_kv_tokens")
        held = sum(float(worker[name]) for worker in fleet["workers"] for name in names)
        return held + float(fleet["in_flight"]) + float(fleet["queue"]["queued"])

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        errors = self._stack.enter_context((self._home / "output").open("ab"))
        command = [sys.executable, "-m", *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        return self._stack.enter_context(ended(process))


def _line(process: subprocess.Popen[bytes]) -> bytes:
    return cast(IO[bytes], process.stdout).readline()
