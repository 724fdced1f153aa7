"""Places of several processes: one that dies young rests, one that was replaced may finish what it has."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import aiohttp
from replica_support import Fleet, engines
from test_processes import eventually, processes_of


def events(log: Path, name: str) -> int:
    return sum(json.loads(line)["event"] == name for line in log.read_text().splitlines())


def listeners(port: int) -> int:
    """How many sockets listen at a port of 127.0.0.1."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1] == f"0100007F:{port:04X}" and row[3] == "0A" for row in rows)


async def test_the_others_take_the_part_of_one_that_dies_young_and_it_gets_it_back(tmp_path):
    """What connects must not wait in a socket that nobody accepts from."""
    async with engines(1, 0.01) as workers:
        fleet = Fleet(tmp_path, workers, 8)
        gateway = await fleet.start("g", "embedded", processes=2)
        port = int(gateway.data.rpartition(":")[2])
        log = tmp_path / "g.log"
        try:
            assert listeners(port) == 2
            os.kill(processes_of(gateway.child.pid)[0], signal.SIGKILL)

            async def rests() -> bool:
                return events(log, "process_ended") == 1 and listeners(port) == 1

            async def is_back() -> bool:
                return listeners(port) == 2 and len(processes_of(gateway.child.pid)) == 2

            deadline = time.monotonic() + 30
            while not await rests():
                assert time.monotonic() < deadline or await is_back(), "it lived for more than five seconds"
                await asyncio.sleep(0.005)
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(connector=connector) as session:
                statuses = await asyncio.gather(*(gateway.chat(session) for _ in range(16)))
                assert set(statuses) == {200}
                await eventually(is_back)
                assert set(await asyncio.gather(*(gateway.chat(session) for _ in range(16)))) == {200}
        finally:
            await fleet.stop()
    assert gateway.child.returncode == 0


async def test_the_end_waits_for_those_that_were_replaced_too(tmp_path):
    """SIGTERM in the middle of a rolling restart: what the old process has still ends by itself."""
    async with engines(1, 0.05) as workers:
        fleet = Fleet(tmp_path, workers, 8)
        gateway = await fleet.start("g", "embedded", processes=2, drain_s=30)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
            try:
                before = processes_of(gateway.child.pid)
                workers[0].hold_s = 4.0
                running = [asyncio.ensure_future(gateway.chat(session)) for _ in range(8)]
                await eventually(lambda: all_run(workers[0]))
                os.kill(gateway.child.pid, signal.SIGUSR2)

                async def one_is_new() -> bool:
                    return (
                        len(set(processes_of(gateway.child.pid)) - set(before)) >= 1
                        and events(tmp_path / "g.log", "process_replaced") >= 1
                    )

                await eventually(one_is_new)
                os.kill(gateway.child.pid, signal.SIGTERM)
                assert await asyncio.gather(*running) == [200] * 8
                assert await gateway.child.wait() == 0
            finally:
                await fleet.stop()
    assert not processes_of(gateway.child.pid)


async def all_run(engine) -> bool:
    return engine.running == 8
