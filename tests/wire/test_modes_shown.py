"""Each degraded mode is told in three places: the gauge, /readyz, and one log line a change."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from running_gateway import Running, running, settings_for

from gateway.modes import MEANING, Mode
from gateway.process import Child, start_valkey


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    os.kill(child.pid, signal.SIGCONT)
    await child.stop(grace_s=1.0)


async def shown(gateway: Running, mode: Mode, status: int, cause: Callable[[], object] = int) -> None:
    """Wait until the mode is told everywhere; `cause` brings it about again for as long as that takes."""
    deadline = time.monotonic() + 30
    while True:
        cause()
        gauge = await gateway.sample(f'headrace_mode{{mode="{mode}"}}')
        found, text = await gateway.get("/readyz")
        told = mode is Mode.NORMAL or f"{mode}: {MEANING[mode]}".encode() in text
        logged = [line["mode"] for line in gateway.lines("mode")]
        if gauge == 1 and found == status and told and (str(mode) in logged or mode is Mode.NORMAL):
            break
        assert time.monotonic() < deadline, (mode, gauge, found, text, logged)
        await asyncio.sleep(0.1)
    assert (b"degraded" in text) is (mode is not Mode.NORMAL)


async def test_modes_of_redis_and_of_pressure(tmp_path, valkey):
    async with (
        plain_worker() as worker,
        running(settings_for(tmp_path, [worker], redis=valkey.url, drain_s=0.2), fresh=True) as gateway,
    ):
        await shown(gateway, Mode.NORMAL, 200)
        redis = redis_client.Redis.from_url(valkey.url)
        await redis.flushall()
        await redis.aclose()
        await shown(gateway, Mode.REDIS_STALE, 200)
        os.kill(valkey.pid, signal.SIGSTOP)
        await shown(gateway, Mode.REDIS_GONE, 200)
        await shown(gateway, Mode.PRESSURE, 200, lambda: time.sleep(0.6))  # the loop itself is late
        modes = [line["mode"] for line in gateway.lines("mode")]
        assert all(one != two for one, two in pairwise(modes)), "a line a change"


async def test_no_worker_is_a_mode_too(tmp_path):
    async with running(settings_for(tmp_path, [], drain_s=0.2)) as gateway:
        await shown(gateway, Mode.NO_WORKER, 503)
