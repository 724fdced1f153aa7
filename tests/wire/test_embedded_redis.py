"""The embedded Valkey dies: it is there again at the same address, what was in it comes back, and no request fails."""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import aiohttp
import redis.asyncio as redis_client
from plain_worker import plain_worker
from replica_support import Fleet, engines
from running_gateway import running, settings_for, until

from gateway.embedded import EmbeddedRedis
from gateway.process import ChildError, start_valkey


async def test_it_is_started_again_at_its_address_and_not_when_it_was_stopped():
    told: list[str] = []
    redis = await EmbeddedRedis.start(lambda event, why: told.append(event))
    url, pids = redis.url, [redis.child.pid]
    keeping = asyncio.create_task(redis.keep())
    try:
        for times in (1, 2):
            os.kill(redis.child.pid, signal.SIGKILL)
            await until(lambda times=times: told.count("redis_started") == times, 30)
            assert redis.child.url == url
            pids.append(redis.child.pid)
        assert len(set(pids)) == 3
        assert told == ["redis_ended", "redis_started"] * 2
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await redis.stop()
    assert redis.child.returncode is not None


async def test_while_it_cannot_start_it_is_tried_again_with_growing_pauses(monkeypatch):
    """Somebody else has taken its port meanwhile; it is told once a try."""
    told: list[tuple[str, str]] = []
    redis = await EmbeddedRedis.start(lambda event, why: told.append((event, why)))
    monkeypatch.setattr("gateway.embedded.PAUSE_MAX_S", 0.5)
    port = int(redis.url.rpartition(":")[2].partition("/")[0])
    keeping = asyncio.create_task(redis.keep())
    thief = None
    try:
        os.kill(redis.child.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while thief is None:
            try:
                thief = await start_valkey(port=port)
            except ChildError:  # ours was faster: once more
                assert time.monotonic() < deadline
                os.kill(redis.child.pid, signal.SIGKILL) if redis.child.returncode is None else None
        await until(lambda: [event for event, _ in told].count("redis_not_started") >= 2, 30)
        assert "next try in 0.5 s" in told[-1][1]
        await thief.stop()
        await until(lambda: told[-1][0] == "redis_started", 30)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await redis.stop()
        if thief is not None:
            await thief.stop()


async def test_under_load_nothing_fails_and_what_was_in_it_comes_back(tmp_path):
    """Two processes, one limit: held through the loss; the policy that was applied is the one in force after it."""
    async with engines(2, 0.03) as workers:
        fleet = Fleet(tmp_path, workers, 4)
        gateway = await fleet.start("g", "embedded", processes=2)
        statuses: Counter[int] = Counter()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            stop = asyncio.Event()

            async def load() -> None:
                while not stop.is_set():
                    statuses[await gateway.chat(session)] += 1

            async def sample(line: str, wanted: float) -> None:
                deadline = time.monotonic() + 60
                while (found := await gateway.sample(session, line)) < wanted:
                    assert time.monotonic() < deadline, (line, found)
                    await asyncio.sleep(0.1)

            tasks = [asyncio.ensure_future(load()) for _ in range(12)]
            try:
                fleet.policy.write_text("tenants: {default: {weight: 2}}\n")
                await sample("headrace_policy_revision", 2)
                epoch = await gateway.sample(session, "headrace_lease_epoch")
                os.kill(valkey_of(gateway.child.pid), signal.SIGKILL)
                await sample("headrace_lease_epoch", epoch + 1)
                assert await gateway.sample(session, "headrace_policy_revision") >= 2
                await republished(valkey_of(gateway.child.pid))
            finally:
                stop.set()
                await asyncio.gather(*tasks)
                await fleet.stop()
    assert set(statuses) == {200}
    assert max(worker.most for worker in workers) <= 4
    log = (tmp_path / "g.log").read_text()
    assert log.count('"event":"redis_ended"') == log.count('"event":"redis_started"') == 1


async def republished(valkey: int) -> None:
    """Who started last finds the policy there."""
    redis = redis_client.Redis(host="127.0.0.1", port=port_of(valkey))
    deadline = time.monotonic() + 30
    while int(await redis.hget("headrace:{default}:policy", "number") or 0) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await redis.aclose()


def port_of(valkey: int) -> int:
    title = Path(f"/proc/{valkey}/cmdline").read_text()  # "valkey-server 127.0.0.1:PORT"
    found = re.search(r"127\.0\.0\.1:(\d+)", title)
    assert found is not None, title
    return int(found[1])


def valkey_of(supervisor: int) -> int:
    """The pid of the embedded Valkey under a process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline", "rb") as command:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
                    if parent == supervisor and b"valkey-server" in command.read():
                        return int(entry)
            except OSError:
                continue  # ended meanwhile
    raise AssertionError("no embedded Valkey")


async def test_one_process_keeps_its_valkey_too(tmp_path):
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker], redis="embedded")
        async with running(settings) as gateway:
            os.kill(valkey_of(os.getpid()), signal.SIGKILL)
            await until(lambda: gateway.lines("redis_started"), 30)
            async with gateway.post({}) as answer:
                assert answer.status == 200
            deadline = time.monotonic() + 30
            while await gateway.sample("headrace_lease_epoch") < 2:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
