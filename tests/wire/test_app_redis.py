"""The way to Redis against a real server: stopped, killed, refusing, and full of garbage."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis_client
from redis import exceptions

from gateway.fleet_reports import NOT_TEXT, read_reports
from gateway.process import Child, start_valkey
from gateway.redis_link import OPEN_AFTER, RedisLink
from workers.redis_client import KINDS, kind_of
from workers.report import MAX_REPORT_BYTES, WorkerReport, encode, report_key, workers_key

REPORT = WorkerReport("w1", "i1", 1, "http://127.0.0.1:1", "vllm", "p", ("tiny",))


class Heard:
    """What a link said of itself."""

    def __init__(self) -> None:
        self.changes: list[tuple[bool, str]] = []
        self.errors: list[str] = []

    def link(self, url: str) -> RedisLink:
        return RedisLink(
            url,
            clock=time.monotonic,
            on_change=lambda up, why: self.changes.append((up, why)),
            on_error=self.errors.append,
        )


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    os.kill(child.pid, signal.SIGCONT)
    await child.stop(grace_s=1.0)


async def until(link: RedisLink, up: bool, within_s: float = 10.0) -> float:
    """Ask as the poll does until the link is up or down; how long that took."""
    began = time.monotonic()
    while link.up is not up:
        assert time.monotonic() - began < within_s, (link.up, link.why)
        await link.run(lambda redis: redis.ping())
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_a_connection_that_closes_under_a_write_is_a_lost_one(valkey):
    """uvloop says so with a RuntimeError, which is no error of redis-py's; others are faults of ours and stay so."""
    heard = Heard()
    link = heard.link(valkey.url)

    async def write_too_late(_: redis_client.Redis) -> None:
        host, _, port = valkey.url.removeprefix("redis://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port.split("/")[0]))
        writer.transport.abort()
        await writer.wait_closed()
        writer.writelines([b"PING\r\n"])

    async def fault(_: redis_client.Redis) -> None:
        raise RuntimeError("of ours")

    assert await link.run(write_too_late) is None
    assert heard.errors == ["connection"]
    with pytest.raises(RuntimeError, match="of ours"):
        await link.run(fault)
    await link.close()


async def test_a_hung_redis_costs_little_and_comes_back(valkey):
    """BR-10-01 and row 57: short timeouts, then a breaker, one line per change, recovery by itself."""
    heard = Heard()
    link = heard.link(valkey.url)
    await until(link, True)
    os.kill(valkey.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert await link.run(lambda redis: redis.get("x")) is None
    assert time.monotonic() - began < 0.8
    for _ in range(OPEN_AFTER):
        await link.run(lambda redis: redis.get("x"))
    began = time.monotonic()
    for _ in range(100):
        assert await link.run(lambda redis: redis.get("x")) is None
    assert time.monotonic() - began < 0.5, "the breaker is open: nothing is tried"
    assert [up for up, _ in heard.changes] == [True, False]
    assert "timeout" in heard.errors
    os.kill(valkey.pid, signal.SIGCONT)
    assert await until(link, True) < 4.0
    assert [up for up, _ in heard.changes] == [True, False, True]
    await link.close()


async def test_a_refused_connection_fails_at_once():
    heard = Heard()
    link = heard.link("redis://127.0.0.1:1/0")
    began = time.monotonic()
    assert await link.run(lambda redis: redis.ping()) is None
    assert time.monotonic() - began < 0.5
    assert link.up is False
    assert heard.errors == ["connection"]
    await link.close()


async def test_a_primary_that_became_a_replica_is_left_and_found_again(valkey):
    """BR-10-07: READONLY drops the connections; writes work again without a restart."""
    heard = Heard()
    link = heard.link(valkey.url)
    await until(link, True)
    admin = redis_client.Redis.from_url(valkey.url)
    await admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert await link.run(lambda redis: redis.set("x", "1")) is None
    assert heard.errors == ["readonly"]
    for _ in range(10):  # reading works all the time
        await link.run(lambda redis: redis.get("x"))
        await link.run(lambda redis: redis.set("x", "1"))
    assert [up for up, _ in heard.changes] == [True, False], "it is down for us, and that is told once"
    assert "readonly" in link.why
    await admin.execute_command("REPLICAOF", "NO", "ONE")
    await until(link, True)
    assert await link.run(lambda redis: redis.set("x", "1")) is True
    await admin.aclose()
    await link.close()


async def test_what_is_told_is_what_redis_refused_and_not_what_we_closed_for_it(valkey):
    """Row 59: a full Redis. Operations that were on their way beside the refused one have no fault of their own."""
    heard = Heard()
    link = heard.link(valkey.url)
    await until(link, True)
    admin = redis_client.Redis.from_url(valkey.url)
    await admin.config_set("maxmemory", 1)
    for _ in range(4):
        await asyncio.gather(
            link.run(lambda redis: redis.blpop(["nothing"], timeout=1)),
            link.run(lambda redis: redis.set("x", "1")),
        )
    assert "out_of_memory" in heard.errors
    assert "connection" not in heard.errors
    assert link.up is False
    await admin.config_set("maxmemory", 0)
    await until(link, True)
    assert [up for up, _ in heard.changes] == [True, False, True]
    await admin.aclose()
    await link.close()


async def test_cancelled_operations_leave_no_connection_behind(valkey):
    """BR-10-05: many operations cancelled half-way, then a normal one; connections stay within the pool."""
    link = Heard().link(valkey.url)
    for number in range(60):
        task = asyncio.create_task(link.run(lambda redis: redis.blpop(["nothing"], timeout=5)))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await link.run(lambda redis: redis.ping()) is True
    admin = redis_client.Redis.from_url(valkey.url)
    clients = await admin.client_list()
    assert len(clients) <= 4 + 1
    await admin.aclose()
    await link.close()


async def test_hostile_contents_are_read_within_bounds(valkey):
    """Row 60: wrong types, oversized values and names that cannot be ids."""
    link = Heard().link(valkey.url)
    admin = redis_client.Redis.from_url(valkey.url)
    assert await link.run(lambda redis: read_reports(redis, "f")) == {}
    await admin.sadd(workers_key("f"), "w1", "hash", "big", "gone", "not an id", b"\xff\xfe", "../x")
    await admin.set(report_key("f", "w1"), encode(REPORT))
    await admin.hset(report_key("f", "hash"), "a", "b")
    await admin.set(report_key("f", "big"), b"x" * (10 << 20))
    found = await link.run(lambda redis: read_reports(redis, "f"))
    assert found is not None
    assert found["w1"] == encode(REPORT)
    assert found["hash"] == NOT_TEXT
    assert len(found["big"]) == MAX_REPORT_BYTES + 1
    assert found.keys() == {"w1", "hash", "big"}
    await admin.delete(workers_key("f"))
    await admin.set(workers_key("f"), "not a set")
    assert await link.run(lambda redis: read_reports(redis, "f")) is None
    assert await link.run(lambda redis: read_reports(redis, "f")) == {}, "out of the agents' way"
    await admin.aclose()
    await link.close()


def test_every_failure_has_a_kind():
    assert kind_of(exceptions.BusyLoadingError()) == "loading"
    assert kind_of(exceptions.OutOfMemoryError()) == "out_of_memory"
    assert kind_of(exceptions.AuthenticationError()) == "auth"
    assert kind_of(exceptions.WatchError()) == "other"
    assert {kind_of(error()) for error in (OSError, TimeoutError, exceptions.ResponseError)} <= set(KINDS)
