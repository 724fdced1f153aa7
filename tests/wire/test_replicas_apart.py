"""Gateways that cannot see each other's processes, as on two hosts: each in a process namespace of its own.

What is left of one that stands still or was killed comes back by the lease's expiry and the engine's own count only.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import redis.asyncio as redis_client
from replica_support import CountingEngine, Fleet, Gateway, engines

from gateway.leasing.script import lease_keys
from gateway.process import Child, start_valkey
from workers.report import WorkerReport, encode, report_key, workers_key

LIMIT = 8
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
BACK_S = 45.0


def separable() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run([*APART, "true"], check=False).returncode


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


async def report(valkey: Child, engine: CountingEngine) -> None:
    """What an agent beside the engine says, once a second; for ever."""
    redis = redis_client.Redis.from_url(valkey.url)
    number = 0
    try:
        while True:
            number += 1
            one = WorkerReport("w1", "i1", number, engine.url, "vllm", "short-chat", ("tiny",))
            await redis.set(report_key("default", "w1"), encode(replace(one, running=engine.running)), ex=10)
            await redis.sadd(workers_key("default"), "w1")
            await asyncio.sleep(1.0)
    finally:
        await redis.aclose()


def gateway_pid(gateway: Gateway) -> int:
    """The gateway itself, under the `unshare` that started it."""
    found = subprocess.run(["pgrep", "-P", str(gateway.child.pid)], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


async def held(gateway: Gateway, session: aiohttp.ClientSession) -> int:
    slots: int = (await gateway.workers(session))["w1"]["slots"] or 0
    return slots


@pytest.mark.soak
@pytest.mark.skipif(not separable(), reason="this user may not make process namespaces")
async def test_what_a_silent_or_killed_gateway_held_comes_back_and_is_never_used_twice(tmp_path: Path, valkey):
    """Rows 63, 72, 74: forty seconds of standing still, then a kill. The engine never sees more than its limit."""
    async with engines(1, 0.2) as (engine,):
        reporting = asyncio.create_task(report(valkey, engine))
        fleet = Fleet(tmp_path, [engine], LIMIT)
        stop = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        try:
            one = await fleet.start("one", valkey.url, prefix=APART)
            other = await fleet.start("other", valkey.url, prefix=APART)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def client(gateway: Gateway) -> None:
                    while not stop.is_set():
                        await gateway.chat(session)

                tasks += [asyncio.create_task(client(gateway)) for gateway in (one, other) * 8]
                await until(lambda: held(other, session), LIMIT // 2, 30)
                pid = gateway_pid(one)
                os.kill(pid, signal.SIGSTOP)
                began = time.monotonic()
                await until(lambda: held(other, session), LIMIT // 2 + 1, 60)
                print(f"above the reserve: free after {time.monotonic() - began:.1f} s")
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(5)
                assert engine.most <= LIMIT, "it does not use what it has no more"
                os.kill(pid, signal.SIGKILL)
                began = time.monotonic()
                # Of a load that never pauses the count of the engine cannot tell the last place from the dead one's.
                await until(lambda: held(other, session), LIMIT - 2, BACK_S)
                print(
                    f"{await held(other, session)} back {time.monotonic() - began:.1f} s after a kill, under full load"
                )
                stop.set()
                await asyncio.gather(*tasks)
                assert engine.most <= LIMIT
                await until(lambda: back(valkey), 1, BACK_S)
                print(f"all back {time.monotonic() - began:.1f} s after it")
        finally:
            stop.set()
            reporting.cancel()
            await asyncio.gather(*tasks, reporting, return_exceptions=True)
            await fleet.stop()


async def back(valkey: Child) -> int:
    """Whether nothing of the worker is written down any more but for one gateway."""
    redis = redis_client.Redis.from_url(valkey.url)
    document = json.loads(await redis.hget(lease_keys("default")[1], "w1") or "{}")
    await redis.aclose()
    return sum(share[0] > 0 for share in document.values()) <= 1


async def until(number, least: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while (found := await number()) < least:
        assert time.monotonic() < deadline, f"{found} of {least} after {within_s} s"
        await asyncio.sleep(0.1)
