"""Several gateways in processes of their own, engines that count what runs at once, and a way to cut Redis off."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.process import Child

ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ab"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class CountingEngine:
    """Answers chat requests after `hold_s` and knows how many ran at once, at most."""

    def __init__(self, hold_s: float) -> None:
        self.hold_s = hold_s
        self.url = ""
        self.running = self.most = self.served = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                self.running += 1
                self.most = max(self.most, self.running)
                try:
                    await self.work(reader)
                finally:
                    # Before the last byte: whoever has that may send the next request.
                    self.running -= 1
                self.served += 1
                writer.write(HEAD + ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway hung up or was killed
        finally:
            writer.close()

    async def work(self, reader: asyncio.StreamReader) -> None:
        gone = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({gone}, timeout=self.hold_s)
        if done:
            raise ConnectionResetError
        gone.cancel()
        await asyncio.wait({gone})


@asynccontextmanager
async def engines(count: int, hold_s: float) -> AsyncIterator[list[CountingEngine]]:
    """Engines on ports of their own."""
    found, servers = [], []
    for _ in range(count):
        engine = CountingEngine(hold_s)
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found.append(engine)
        servers.append(server)
    try:
        yield found
    finally:
        for server in servers:
            server.close()


class Relay:
    """Passes bytes to Redis and back, until it is told to stall: then nothing moves and nobody hears of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionError:
            writer.close()
            return
        self._ends |= {writer, forth}
        pumps = [asyncio.ensure_future(self.pump(*ends)) for ends in ((reader, forth), (back, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self._ends -= {writer, forth}
        writer.close()
        forth.close()

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(65536):
                await self._flows.wait()
                sink.write(piece)
                await sink.drain()
        except ConnectionError:
            pass  # either end went; the other is closed next

    def stall(self) -> None:
        """Cut it off."""
        self._flows.clear()

    def flow(self) -> None:
        """Heal it; what was held comes through late."""
        self._flows.set()

    def lead_to(self, port: int) -> None:
        """Another server from now on; connections to the one before end."""
        self._port = port
        for end in list(self._ends):
            end.close()


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """A relay in front of a Redis on loopback."""
    found = Relay(port)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield found
    finally:
        found.flow()
        server.close()


class Fleet:
    """Gateways as processes, all with the same workers and the same Redis."""

    def __init__(self, directory: Path, workers: Sequence[CountingEngine], limit: int, policy: str = "{}\n") -> None:
        self.directory = directory
        self.policy = directory / "policy.yaml"
        self.policy.write_text(policy)
        self.workers = [
            {
                "id": f"w{number}",
                "url": worker.url,
                "pool": "short-chat",
                "models": ["tiny"],
                "max_model_len": 4096,
                "max_num_seqs": limit,
                "kv_tokens": 1_000_000,
            }
            for number, worker in enumerate(workers, 1)
        ]
        self.gateways: list[Gateway] = []

    async def start(self, name: str, redis: str, *, prefix: Sequence[str] = (), **more: Any) -> "Gateway":
        """One more gateway, ready; `prefix`: the command that starts it."""
        settings = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "redis": redis,
            "policy": str(self.policy),
            "workers": self.workers,
            "state_dir": str(self.directory / f"state-{name}"),
            "access_log": "none",
            "event_log": str(self.directory / f"{name}.log"),
            "drain_s": 5,
            **more,
        }
        file = self.directory / f"{name}.yaml"
        file.write_text(json.dumps(settings))
        argv = [*prefix, sys.executable, "-P", "-m", "headrace", "serve", "-c", str(file), "--json"]
        child = await Child.start(name, argv)
        ready = await child.wait_ready(30)
        gateway = Gateway(child, str(ready["data"]), str(ready["admin"]))
        self.gateways.append(gateway)
        return gateway

    async def stop(self) -> None:
        """End all that run."""
        for gateway in self.gateways:
            if gateway.child.returncode is None:
                os.kill(gateway.child.pid, signal.SIGCONT)
        await asyncio.gather(*(gateway.child.stop(grace_s=10) for gateway in self.gateways))


class Gateway:
    """One gateway process."""

    def __init__(self, child: Child, data: str, admin: str) -> None:
        self.child = child
        self.data = data
        self.admin = admin

    async def chat(self, session: aiohttp.ClientSession, **headers: str) -> int:
        """One chat request; its status, or 0 where the gateway has gone."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
        try:
            async with session.post(f"{self.data}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def workers(self, session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
        """What it knows of the workers, by id."""
        async with session.get(f"{self.admin}/admin/v1/workers") as answer:
            return {each["id"]: each for each in (await answer.json())["workers"]}

    async def sample(self, session: aiohttp.ClientSession, line_start: str) -> float:
        """One number of its /metrics."""
        async with session.get(f"{self.admin}/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith(line_start + " "):
                    return float(line.rpartition(" ")[2])
        return 0.0

    async def ready(self, session: aiohttp.ClientSession) -> tuple[int, str]:
        """Status and text of /readyz."""
        async with session.get(f"{self.admin}/readyz") as answer:
            return answer.status, await answer.text()
