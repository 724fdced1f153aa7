"""What gateways ask of Redis: nothing for a request when they hold what it needs, little in the background.

Counted at the wire, against the gateways' own time: what timers cause cannot be more in a longer time, however slow
the machine is.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from running_gateway import Running, running, settings_for

from gateway.process import Child, start_valkey
from workers.report import WorkerReport, encode, report_key, workers_key

PER_S = 20
PER_S_AT_500 = 60
AT_ONCE = 40
"""Commands of a moment: greetings of connections made just then, and steps saved up while nobody needed any."""


class Meter:
    """Passes commands on to Redis and counts them by name."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.counts: Counter[str] = Counter()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)

        async def answers() -> None:
            while piece := await back.read(65536):
                writer.write(piece)
                await writer.drain()

        answering = asyncio.ensure_future(answers())
        try:
            while True:
                head = await reader.readuntil(b"\r\n")
                forth.write(head)
                for number in range(int(head[1:])):
                    size = await reader.readuntil(b"\r\n")
                    word = await reader.readexactly(int(size[1:]) + 2)
                    forth.write(size + word)
                    if number == 0:
                        self.counts[word[:-2].decode().upper()] += 1
                await forth.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway has hung up
        finally:
            answering.cancel()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait({answering})
            writer.close()
            forth.close()

    async def during(self, seconds: float) -> tuple[float, float]:
        """Commands sent in some time, at least so long, and how long it really was."""
        began, before = time.monotonic(), self.counts.total()
        await asyncio.sleep(seconds)
        return self.counts.total() - before, time.monotonic() - began


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


@contextlib.asynccontextmanager
async def metered(valkey: Child) -> AsyncIterator[Meter]:
    meter = Meter(int(valkey.url.rpartition(":")[2].partition("/")[0]))
    server = await asyncio.start_server(meter.serve, "127.0.0.1", 0)
    meter.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield meter
    finally:
        server.close()


async def leased(gateway: Running, worker: str, slots: int) -> None:
    """Wait until it holds so many places of the worker."""
    deadline = time.monotonic() + 30
    while True:
        held = {each["id"]: each["slots"] for each in (await gateway.fleet())["workers"]}
        if (held.get(worker) or 0) >= slots:
            return
        assert time.monotonic() < deadline, held
        await asyncio.sleep(0.2)


async def test_requests_cost_redis_nothing_where_places_are_held(tmp_path, valkey):
    """Also with tenants' minutes kept: only time sends commands, requests do not."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {default: {requests_per_min: 100000, max_in_flight: 100}}\n")
    async with plain_worker() as worker, metered(valkey) as meter:
        settings = settings_for(tmp_path, [worker], redis=meter.url, policy=str(policy))
        async with running(settings, fresh=True) as gateway:
            await leased(gateway, "w1", 4)
            async with gateway.post({}) as answer:  # the tenant's places are leased with its first request
                assert answer.status == 200
            began, before = time.monotonic(), meter.counts.total()
            served = 0
            # Many more than time alone allows commands for, on any machine.
            while served < 3 * (PER_S * (time.monotonic() - began) + AT_ONCE):
                async with gateway.post({}) as answer:
                    assert answer.status == 200
                served += 1
                if time.monotonic() - began > 5:
                    break  # too slow a machine to tell requests from time; the bound holds all the same
            spent = meter.counts.total() - before
            assert spent <= PER_S * (time.monotonic() - began) + AT_ONCE, meter.counts


async def test_at_500_workers_the_background_stays_small(tmp_path, valkey):
    admin = redis_client.Redis.from_url(valkey.url)
    report = WorkerReport("w", "i1", 1, "http://127.0.0.1:1", "vllm", "short-chat", ("tiny",), max_num_seqs=8)
    names = [f"r{number}" for number in range(500)]
    await admin.sadd(workers_key("default"), *names)
    await admin.mset({report_key("default", name): encode(replace(report, id=name)) for name in names})
    await admin.aclose()
    async with (
        plain_worker() as worker,
        metered(valkey) as meter,
        running(settings_for(tmp_path, [worker], redis=meter.url), fresh=True) as gateway,
    ):
        await leased(gateway, "r499", 8)
        count, seconds = await meter.during(1.0)
        assert count <= PER_S_AT_500 * seconds + AT_ONCE, meter.counts
        assert count <= PER_S * seconds + AT_ONCE, "as few as with one worker, in fact"
