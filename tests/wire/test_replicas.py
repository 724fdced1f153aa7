"""Gateways on one Redis: limits hold over all of them, whatever happens to a gateway, to Redis, or between them.

Rows 56 to 58, 63 and 72 of the fault matrix; invariants 4, 5 and 22. The long run is in test_replicas_soak.py.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
import redis.asyncio as redis_client
from replica_support import Fleet, Gateway, Relay, engines, relay

from gateway.leasing.script import lease_keys
from gateway.process import Child, start_valkey

LIMIT = 6


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    if child.returncode is None:
        os.kill(child.pid, signal.SIGCONT)
    await child.stop(grace_s=1.0)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


class Load:
    """Clients that ask one of the living gateways, again and again."""

    def __init__(self, session: aiohttp.ClientSession, gateways: list[Gateway], clients: int, seed: int = 1) -> None:
        self.statuses: Counter[int] = Counter()
        self.slowest_s = 0.0
        self.gateways = gateways
        self._session = session
        self._rng = random.Random(seed)
        self._stop = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self.client()) for _ in range(clients)]

    async def client(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            status = await self._rng.choice(self.gateways).chat(self._session)
            self.statuses[status] += 1
            if status == 200:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def slots(gateways: list[Gateway], session: aiohttp.ClientSession) -> Counter[str]:
    """What all of them hold of each worker."""
    held: Counter[str] = Counter()
    for gateway in gateways:
        for name, worker in (await gateway.workers(session)).items():
            held[name] += worker["slots"] or 0
    return held


async def all_back(gateways: list[Gateway], session: aiohttp.ClientSession, within_s: float) -> float:
    """Wait until every slot is held again; how long that took."""
    began = time.monotonic()
    while set((await slots(gateways, session)).values()) != {LIMIT}:
        assert time.monotonic() - began < within_s, await slots(gateways, session)
        await asyncio.sleep(0.2)
    return time.monotonic() - began


async def test_the_limit_holds_through_kills_a_partition_and_a_redis_that_forgets(tmp_path, valkey):
    async with engines(2, 0.05) as workers, relay(port_of(valkey.url)) as line:
        fleet = Fleet(tmp_path, workers, LIMIT)
        gateways = [
            *await asyncio.gather(*(fleet.start(f"g{n}", valkey.url) for n in range(2))),
            await fleet.start("cut", line.url),
        ]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            try:
                load = Load(session, gateways, 18)
                await all_back(gateways, session, 30)
                await storm(fleet, gateways, session, valkey, line)
                await load.end()
                assert load.statuses.keys() <= {200, 0}
                assert load.statuses[0] <= 18, "only what the killed gateway had in hand"
                assert load.statuses[200] > 100
                assert [worker.most <= LIMIT for worker in workers] == [True, True]
                assert max(worker.most for worker in workers) == LIMIT, "and all of it is used"
                await all_back(gateways, session, 45)
            finally:
                await fleet.stop()


async def storm(
    fleet: Fleet, gateways: list[Gateway], session: aiohttp.ClientSession, valkey: Child, line: Relay
) -> None:
    """One of each: a kill, a partition, a frozen Redis, a Redis that has lost everything."""
    victim = gateways.pop(0)
    victim.child.kill()
    await victim.child.wait()
    took = await all_back(gateways, session, 45)
    assert took <= 45
    line.stall()
    await asyncio.sleep(1.5)
    line.flow()
    os.kill(valkey.pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)
    os.kill(valkey.pid, signal.SIGCONT)
    admin = redis_client.Redis.from_url(valkey.url)
    await admin.flushall()
    assert len(await admin.keys("*")) < 50
    await asyncio.sleep(2)
    gateways_key = lease_keys("default")[0]
    assert await admin.hlen(gateways_key) == len(gateways), "the gateways tell again what they hold"
    await admin.aclose()


async def test_what_one_does_not_use_another_gets(tmp_path, valkey):
    async with engines(2, 0.2) as workers:
        fleet = Fleet(tmp_path, workers, LIMIT)
        gateways = list(await asyncio.gather(*(fleet.start(f"g{n}", valkey.url) for n in range(2))))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            try:
                await all_back(gateways, session, 30)
                began = time.monotonic()
                statuses = await asyncio.gather(*(gateways[0].chat(session) for _ in range(2 * LIMIT - 2)))
                assert set(statuses) == {200}
                # One gateway's fair share is half: 10 requests on 6 places would take two rounds.
                assert sum(worker.most for worker in workers) > LIMIT, time.monotonic() - began
                assert max(worker.most for worker in workers) <= LIMIT
                await all_back(gateways, session, 30)
            finally:
                await fleet.stop()


async def test_redis_stopped_under_load_fails_no_request(tmp_path, valkey):
    """Rows 56, 57 and BR-10-03: stopped, started again, then gone for good; a line a change, however many requests."""
    async with engines(1, 0.02) as workers:
        fleet = Fleet(tmp_path, workers, LIMIT)
        gateways = [await fleet.start("g", valkey.url)]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            try:
                load = Load(session, gateways, 4)
                os.kill(valkey.pid, signal.SIGSTOP)
                await mode_is(gateways[0], session, "R2")
                os.kill(valkey.pid, signal.SIGCONT)
                await mode_is(gateways[0], session, "R0")
                os.kill(valkey.pid, signal.SIGKILL)
                await mode_is(gateways[0], session, "R2")
                status, text = await gateways[0].ready(session)
                assert status == 200
                assert "degraded" in text
                await load.end()
                assert load.statuses.keys() == {200}
                lines = (tmp_path / "g.log").read_text().splitlines()
                assert sum('"event":"mode"' in each for each in lines) <= 5, "a line a change"
                assert sum('"event":"redis_' in each for each in lines) <= 8, "of each of these too"
            finally:
                await fleet.stop()
    assert workers[0].most <= LIMIT


async def mode_is(gateway: Gateway, session: aiohttp.ClientSession, mode: str) -> None:
    deadline = time.monotonic() + 20
    while await gateway.sample(session, f'headrace_mode{{mode="{mode}"}}') != 1:
        assert time.monotonic() < deadline, f"not in {mode}"
        await asyncio.sleep(0.1)
