"""Row 35 over several gateways: what one learns of a request that kills workers, all know; with Redis gone and back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer
from redis.exceptions import ResponseError
from running_gateway import running, settings_for, until
from test_app_poison import POISON, deadly

from gateway.poison import PoisonGuard
from gateway.poison_sync import AT_ONCE, PoisonSync
from gateway.process import Child, start_valkey
from gateway.quarantine import MAX_KEPT, Sighting
from gateway.redis_link import RedisLink
from workers.redis_client import make_client

HASH = "headrace:{default}:poison"
ONE_TRY = "retries: {max_attempts: 1}\n"


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    server = await start_valkey()
    yield server
    await server.stop(grace_s=0.0)


@asynccontextmanager
async def fleet(
    tmp_path: Path, valkey: Child, *names: str, policy: str = "{}\n"
) -> AsyncIterator[tuple[list[Any], list[FaultServer]]]:
    """Gateways in front of the same four engines."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FaultServer(deadly)) for _ in range(4)]
        gateways = []
        for name in names:
            home = tmp_path / name
            home.mkdir()
            (home / "policy.yaml").write_text(policy)
            wanted = settings_for(home, engines, redis=valkey.url, policy=str(home / "policy.yaml"))  # type: ignore[arg-type]
            gateways.append(await stack.enter_async_context(running(wanted, fresh=True)))
        yield gateways, engines


async def ask(gateway: Any) -> tuple[int, str]:
    async with gateway.post(POISON) as answer:
        return answer.status, (await answer.json())["error"]["code"]


def lost(engines: list[FaultServer]) -> int:
    return sum(b'"die"' in request.body for engine in engines for request in engine.requests)


async def test_what_one_gateway_quarantines_all_refuse(tmp_path: Path, valkey: Child) -> None:
    async with fleet(tmp_path, valkey, "a", "b") as ((one, other), engines):
        assert await ask(one) == (500, "upstream_reset")
        await until(lambda: other.lines("quarantine_heard"))
        assert await ask(other) == (422, "request_quarantined")
        assert await ask(one) == (422, "request_quarantined")
        assert lost(engines) == 2, "two of the fleet, not two of each gateway"
        async with other.post({}) as answer:
            assert answer.status == 200
        assert await one.sample("headrace_poison_quarantined_total") == 1
        assert await other.sample("headrace_poison_quarantined_total") == 0


async def test_a_loss_at_each_of_two_gateways_makes_two(tmp_path: Path, valkey: Child) -> None:
    """Neither saw enough to quarantine anything by itself."""
    async with fleet(tmp_path, valkey, "a", "b", policy=ONE_TRY) as ((one, other), engines):
        assert await ask(one) == (502, "upstream_reset")
        assert not one.lines("request_quarantined")
        answer = await ask(other)
        for _ in range(20):
            if answer != (503, "no_healthy_worker"):  # it chose the engine that is dead already
                break
            answer = await ask(other)
        assert answer in {(502, "upstream_reset"), (500, "upstream_reset")}
        for gateway in (one, other):
            await until(
                lambda gateway=gateway: gateway.lines("request_quarantined") + gateway.lines("quarantine_heard")
            )
            assert await ask(gateway) == (422, "request_quarantined")
        assert lost(engines) == 2


async def test_redis_may_be_away_and_come_back_and_lose_its_memory(tmp_path: Path, valkey: Child) -> None:
    async with fleet(tmp_path, valkey, "a", "b") as ((one, other), engines):
        redis = make_client(valkey.url)
        await until_known(redis)
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            assert await ask(one) == (500, "upstream_reset")
            await until(lambda: one.lines("request_quarantined"))
            assert await ask(one) == (422, "request_quarantined")
            assert not other.lines("quarantine_heard")
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
        await until(lambda: other.lines("quarantine_heard"))
        assert await ask(other) == (422, "request_quarantined")
        await redis.flushall()
        await until_known(redis, 4)
        home = tmp_path / "c"
        home.mkdir()
        async with running(settings_for(home, engines, redis=valkey.url), fresh=True) as third:  # type: ignore[arg-type]
            await until(lambda: third.lines("quarantine_heard"))
            assert await ask(third) == (422, "request_quarantined")
        assert lost(engines) == 2
        await redis.aclose()


async def until_known(redis: Any, fields: int = 3) -> None:
    async def known() -> bool:
        try:
            return bool(await redis.hlen(HASH) >= fields)
        except ResponseError:  # it is of another type still
            return False

    async with asyncio.timeout(30):
        while not await known():  # noqa: ASYNC110 - nothing to subscribe to
            await asyncio.sleep(0.02)


async def test_what_is_there_is_no_text_and_what_cannot_be_ours_goes(tmp_path: Path, valkey: Child) -> None:
    redis = make_client(valkey.url)
    await redis.set(HASH, "something else")
    async with fleet(tmp_path, valkey, "a", "b") as ((one, other), engines):
        await until_known(redis)
        strange = {b"x" * 5000: b"1", b"00:w": b"nan", b"ff" * 24 + b":": b"1e308", b"aa" * 24 + b":\x00": b"-1"}
        await redis.hset(HASH, mapping=strange)
        assert await ask(one) == (500, "upstream_reset")
        await until(lambda: other.lines("quarantine_heard"))
        held = await redis.hgetall(HASH)
        assert not any(name in held for name in strange)
        said = repr(held).encode()
        assert b"die" not in said
        assert b"messages" not in said
        assert 0 < await redis.ttl(HASH) <= 3600
        await redis.hset(HASH, mapping={"version": "x"})  # damaged: it begins anew, and hears all of it again
        await until_known(redis, 4)
        assert await ask(other) == (422, "request_quarantined")
        assert lost(engines) == 2
    await redis.aclose()


class Silent:
    """A log that nobody reads."""

    def event(self, name: str, **fields: object) -> None: ...


def a_sync(valkey: Child, clock: Any) -> tuple[PoisonSync, PoisonGuard, RedisLink]:
    link = RedisLink(valkey.url, clock=clock, on_change=lambda up, why: None, on_error=lambda kind: None)
    guard = PoisonGuard({}, clock, lambda workers: None)
    return PoisonSync("default", link, guard, clock, Silent()), guard, link  # type: ignore[arg-type]


async def test_one_key_for_all_and_bounds_for_everything(valkey: Child) -> None:
    clock = asyncio.get_running_loop().time
    (one, first, link), (other, second, link2) = a_sync(valkey, clock), a_sync(valkey, clock)
    second.quarantine.hear([Sighting(second.quarantine.fingerprint(b"early"), "", clock())], clock())
    assert await one.exchange()
    assert await other.exchange()
    assert first.quarantine.key == second.quarantine.key
    assert second.refusal(b"early") is not None, "what it held by its own key it still holds"
    for number in range(MAX_KEPT + 10):
        first.quarantine.hear([Sighting(first.quarantine.fingerprint(b"%d" % number), "", clock())], clock())
    redis = make_client(valkey.url)
    for _ in range(MAX_KEPT // AT_ONCE + 1):
        assert await one.exchange()
        assert await redis.hlen(HASH) <= 512 + 3
    assert await redis.hlen(HASH) == 512 + 3
    operations = link.operations
    assert await other.exchange()
    assert sum(second.refusal(b"%d" % number) is not None for number in range(MAX_KEPT + 10)) == 512
    assert link.operations == operations
    for each in (link, link2):
        await each.close()
    await redis.aclose()


async def test_nothing_is_told_twice(valkey: Child) -> None:
    clock = asyncio.get_running_loop().time
    (one, first, link), (other, second, link2) = a_sync(valkey, clock), a_sync(valkey, clock)
    await one.exchange()
    await other.exchange()
    first.on_reset(b"body", "w1")
    redis = make_client(valkey.url)
    for _ in range(3):
        await one.exchange()
        await other.exchange()
    assert await redis.hget(HASH, "version") == b"1"
    assert second.quarantine.workers_of(second.quarantine.fingerprint(b"body")) == ("w1",)
    assert second.on_reset(b"body", "w2"), "it is not tried a third time"
    await second.close()
    for each in (link, link2):
        await each.close()
    await redis.aclose()
