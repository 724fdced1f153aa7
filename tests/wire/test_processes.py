"""Several gateway processes behind one port, as `headrace serve` runs them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from replica_support import Fleet, Gateway, engines

LINE = 'headrace_requests_total{class="standard",endpoint="chat",outcome="ok",pool="short-chat"}'


def processes_of(supervisor: int) -> list[int]:
    """Pids of the gateway processes under a supervisor."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # ended meanwhile
            if int(stat[1]) == supervisor and b"supervision.child" in command:
                found.append(int(entry.name))
    return sorted(found)


async def eventually(condition, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, "did not become true in time"
        await asyncio.sleep(0.1)


async def test_two_processes_are_one_gateway(tmp_path):
    """Row 72 and the replicas' figures: one limit, one /metrics, no request lost by a rolling restart, a dead process
    restarted; counters only grow; SIGTERM ends all with status 0."""
    async with engines(2, 0.03) as workers:
        fleet = Fleet(tmp_path, workers, 4)
        gateway = await fleet.start("g", "embedded", processes=2)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        statuses: Counter[int] = Counter()
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                await everything(gateway, session, statuses, workers)
            finally:
                await fleet.stop()
    assert gateway.child.returncode == 0
    assert not processes_of(gateway.child.pid)


async def everything(gateway: Gateway, session, statuses, workers) -> None:
    supervisor = gateway.child.pid
    before = processes_of(supervisor)
    assert len(before) == 2
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            statuses[await gateway.chat(session)] += 1

    counts: list[float] = []

    async def scrape() -> None:
        while not stop.is_set():
            counts.append(await gateway.sample(session, LINE))

    tasks = [asyncio.ensure_future(load()) for _ in range(24)]
    tasks.append(asyncio.ensure_future(scrape()))

    async def restarted() -> bool:
        now = processes_of(supervisor)
        return len(now) == 2 and not set(now) & set(before)

    os.kill(supervisor, signal.SIGUSR2)
    await eventually(restarted)
    assert set(statuses) == {200}, "a rolling restart loses nothing"
    status, text = await gateway.ready(session)
    assert status == 200
    assert text.startswith("2 of 2 processes ready")

    async def shared() -> bool:
        views = await gateway.workers(session)
        return (
            all(each["slots"] == 4 for each in views.values())
            and await gateway.sample(session, "headrace_gateways") == 2
        )

    await eventually(shared)
    counted = await gateway.sample(session, LINE)
    assert counted > 0
    os.kill(processes_of(supervisor)[0], signal.SIGKILL)

    async def revived() -> bool:
        return await gateway.sample(session, "headrace_process_restarts_total") == 1

    await eventually(revived)
    assert await gateway.sample(session, LINE) >= counted, "a counter of a killed process does not vanish"
    assert await gateway.sample(session, "headrace_processes") == 2
    frozen = processes_of(supervisor)[0]
    os.kill(frozen, signal.SIGSTOP)
    assert await gateway.sample(session, LINE) >= counted, "nor one of a process that stands still"
    os.kill(frozen, signal.SIGCONT)
    stop.set()
    await asyncio.gather(*tasks)
    assert counts == sorted(counts), "no counter ever went back: not in a rolling restart, not by a death"
    assert statuses.keys() <= {200, 0}, "0: the killed process's own requests"
    assert statuses[0] <= 24
    assert max(worker.most for worker in workers) <= 4
    await eventually(shared)


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGHUP, 2), (signal.SIGUSR2, 1)])
async def test_signals_that_have_nothing_to_do_end_nothing(tmp_path, number, processes):
    """A service manager's reload without a policy file; a replacement where there is only one process."""
    async with engines(1, 0.02) as workers:
        fleet = Fleet(tmp_path, workers, 4)
        gateway = await fleet.start("g", "embedded", processes=processes, policy=None)
        try:
            async with aiohttp.ClientSession() as session:
                os.kill(gateway.child.pid, number)
                assert [await gateway.chat(session) for _ in range(4)] == [200] * 4
                assert gateway.child.returncode is None
        finally:
            await fleet.stop()
    assert gateway.child.returncode == 0


def test_several_processes_without_a_redis_are_refused(tmp_path):
    command = [sys.executable, "-P", "-m", "headrace", "serve", "--redis", "none", "--processes", "2"]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "processes" in done.stderr
    assert "redis is none" in done.stderr
