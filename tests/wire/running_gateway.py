"""A whole gateway inside the test's process, as `serve` runs it, and ways to look at it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from plain_worker import PlainWorker

from gateway.app import Addresses, serve
from gateway.settings import Settings, load_settings

STOP_S = 60
"""How long it may take to stop: much longer than it does, since a busy machine may stand still for seconds."""


class Running:
    """Calls to a running gateway."""

    def __init__(self, addresses: Addresses, session: aiohttp.ClientSession, log: Path, stop: asyncio.Event) -> None:
        self.data = addresses.data
        self.admin = addresses.admin
        self.session = session
        self.log = log
        self.stop = stop

    def post(self, body: dict[str, Any], **headers: str) -> Any:
        """A chat request; use with `async with`."""
        usual = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
        return self.session.post(f"{self.data}/v1/chat/completions", json={**usual, **body}, headers=headers)

    async def get(self, path: str, *, admin: bool = True) -> tuple[int, bytes]:
        """Status and body."""
        async with self.session.get((self.admin if admin else self.data) + path) as answer:
            return answer.status, await answer.read()

    async def fleet(self) -> dict[str, Any]:
        """The one snapshot of everything."""
        status, body = await self.get("/admin/v1/fleet")
        assert status == 200
        found: dict[str, Any] = json.loads(body)
        return found

    async def sample(self, line_start: str) -> float:
        """One number of /metrics."""
        _, body = await self.get("/metrics")
        for line in body.decode().splitlines():
            if line.startswith(line_start + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def idle(self) -> None:
        """Wait until nothing runs, waits or is booked any more."""
        deadline = time.monotonic() + 5
        while True:
            fleet = await self.fleet()
            books = [
                worker[name]
                for worker in fleet["workers"]
                for name in ("leases", "in_flight", "booked_prefill_s", "booked_decode_s", "booked_kv_tokens")
            ]
            if fleet["in_flight"] == 0 and fleet["queue"]["queued"] == 0 and not any(books):
                return
            assert time.monotonic() < deadline, fleet
            await asyncio.sleep(0.02)

    async def queued(self, count: int) -> None:
        """Wait until that many requests wait for a worker."""
        deadline = time.monotonic() + 5
        while (found := (await self.fleet())["queue"]["queued"]) != count:
            assert time.monotonic() < deadline, found

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What the log says so far."""
        found = [json.loads(line) for line in self.log.read_bytes().splitlines()]
        return [line for line in found if line["event"] == event]


def settings_for(tmp_path: Path, workers: Sequence[PlainWorker], *pools: str, **more: Any) -> Settings:
    """Settings with these workers, in these pools, everything said so that nothing has to be asked."""
    described = [
        {
            "id": f"w{number}",
            "url": worker.url,
            "pool": pool,
            "models": ["tiny"],
            "max_model_len": 4096,
            "max_num_seqs": 4,
            "kv_tokens": 100_000,
        }
        for number, (worker, pool) in enumerate(zip(workers, pools or ["short-chat"] * len(workers), strict=True), 1)
    ]
    usual: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "redis": "none",
        "workers": described,
        "state_dir": str(tmp_path / "state"),
        "access_log": str(tmp_path / "gateway.log"),
        "event_log": str(tmp_path / "gateway.log"),
        "drain_s": 5,
    }
    return load_settings(overrides={**usual, **more}, environ={})


@asynccontextmanager
async def running(settings: Settings, *, fresh: bool = False) -> AsyncIterator[Running]:
    """A gateway that accepts traffic; stopped as by SIGTERM at the end, unless the test has. `fresh`: its Redis was
    started by the test just now, so that no slots can be out."""
    stop = asyncio.Event()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    gateway = asyncio.ensure_future(serve(settings, on_ready=ready.set_result, stop=stop, fresh=fresh))
    await asyncio.wait({ready, gateway}, return_when=asyncio.FIRST_COMPLETED)
    if gateway.done():
        gateway.result()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        try:
            yield Running(ready.result(), session, Path(settings.access_log), stop)
        finally:
            await session.close()
            stop.set()
            assert await asyncio.wait_for(gateway, STOP_S) == 0


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Poll something that another task brings about."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not become true in time"
        await asyncio.sleep(0.01)
