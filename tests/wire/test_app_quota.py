"""Tenants' minutes over two gateways and a restart; what was learned comes back."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from replica_support import engines
from running_gateway import running, settings_for, until

from gateway.learned_state import FILE
from gateway.process import Child, start_valkey


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


POLICY = "tenants: {default: {requests_per_min: 10, tokens_per_min: 100000}}\n"


async def ask(gateway, count: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    for _ in range(count):
        async with gateway.post({}) as answer:
            statuses[answer.status] += 1
            assert answer.headers["x-ratelimit-limit-requests"] == "10"
            if answer.status == 429:
                assert (await answer.json())["error"]["code"] == "rate_limit_exceeded"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
    return statuses


async def test_a_minute_holds_over_gateways_and_over_a_restart(tmp_path, valkey):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with plain_worker() as worker:
        one = settings_for(tmp_path, [worker], redis=valkey.url, policy=str(policy))
        two = one.model_copy(update={"state_dir": tmp_path / "two", "event_log": str(tmp_path / "two.log")})
        async with running(one) as first:
            async with running(two) as second:
                # A gateway hears of a tenant's use from its own first request of that tenant on.
                assert (await ask(second, 1))[200] == 1
                assert (await ask(first, 5))[200] == 5
                await asyncio.sleep(1.5)  # two exchanges: the only way in which the other one hears of it
                assert await ask(second, 6) == {200: 4, 429: 2}
            assert len(worker.bodies) == 10
        async with running(one) as again:
            await until(lambda: again.lines("learned_restored"), 10)
            # It heard nothing yet of a tenant that nobody asked for: its first request makes it ask.
            await ask(again, 1)
            await asyncio.sleep(1.5)
            assert (await ask(again, 3))[429] == 3


async def test_a_minute_survives_a_restart_without_redis(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker], policy=str(policy))
        async with running(settings) as gateway:
            assert await ask(gateway, 6) == {200: 6}
        async with running(settings) as gateway:
            assert await ask(gateway, 6) == {200: 4, 429: 2}
        (settings.state_dir / "quota.json").write_text('{"at": [], "tenants": 5}')
        async with running(settings) as gateway:
            assert await ask(gateway, 1) == {200: 1}
        assert gateway.lines("quota_unreadable")


async def test_a_redis_that_forgot_a_minute_is_told_again(tmp_path, valkey):
    """Also where something else stands under the tenant's key: nobody's minute begins anew by that."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    key = "headrace:{default}:quota:default"
    redis = redis_client.Redis.from_url(valkey.url)

    async def known(count: int) -> None:
        deadline = time.monotonic() + 20
        while True:
            fields = {} if await redis.type(key) != b"hash" else await redis.hgetall(key)
            if sum(int(value) for name, value in fields.items() if name.startswith(b"r")) == count:
                return
            assert time.monotonic() < deadline, fields
            await asyncio.sleep(0.05)

    async with plain_worker() as worker:
        one = settings_for(tmp_path, [worker], redis=valkey.url, policy=str(policy))
        two = one.model_copy(update={"state_dir": tmp_path / "two", "event_log": str(tmp_path / "two.log")})
        async with running(one) as first, running(two) as second:
            assert await ask(first, 4) == {200: 4}
            assert await ask(second, 4) == {200: 4}
            await known(8)
            await redis.delete(key)
            await known(8)
            await redis.delete(key)
            await redis.set(key, "something else")
            await known(8)
            await asyncio.sleep(1.5)  # an exchange more, in which each hears of the other
            assert await ask(first, 4) == {200: 2, 429: 2}
    await redis.aclose()


async def test_a_refusal_uses_nothing_and_tokens_that_were_not_used_come_back(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {default: {tokens_per_min: 1000}}\n")
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker], policy=str(policy))) as gateway:
        for _ in range(5):
            async with gateway.post({"max_tokens": 900}) as answer:
                assert answer.status == 200, "each is settled with the nine tokens that it used"
                await answer.read()
        async with gateway.post({"max_tokens": 990}) as answer:
            assert answer.status == 429
            said = (await answer.json())["error"]["message"]
            assert (
                "has not so many left of its 1000 tokens a minute (tenants.default.tokens_per_min): try again" in said
            )
        async with gateway.post({"max_tokens": 5000}) as answer:
            assert answer.status == 429
            assert "and must not have used any: allow less output" in (await answer.json())["error"]["message"]
        async with gateway.post({"max_tokens": 900}) as answer:
            assert answer.status == 200


async def test_what_was_learned_is_on_disk_where_there_is_no_redis(tmp_path):
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker])
        async with running(settings) as gateway, gateway.post({}) as answer:
            assert answer.status == 200
        kept = json.loads((settings.state_dir / FILE).read_bytes())
        assert kept["outputs"]["rows"]
        async with running(settings) as gateway:
            await until(lambda: gateway.lines("learned_restored"))
            assert gateway.lines("learned_restored")[-1]["entries"] >= 1
        (settings.state_dir / FILE).write_text("{not json")
        async with running(settings) as gateway:
            await until(lambda: gateway.lines("learned_unreadable"))


async def test_a_tenants_requests_at_once_are_limited_over_gateways(tmp_path, valkey):
    """The limit is one, however many gateways there are, and all of it can be used from one of them."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {default: {max_in_flight: 4}}\n")
    async with engines(1, 0.1) as workers:
        one = settings_for(tmp_path, workers, redis=valkey.url, policy=str(policy))
        wide = tuple(each.model_copy(update={"max_num_seqs": 64}) for each in one.workers)
        one = one.model_copy(update={"workers": wide})
        two = one.model_copy(update={"state_dir": tmp_path / "two", "event_log": str(tmp_path / "two.log")})
        async with running(one) as first, running(two) as second:
            # One place may stay with a gateway that has no use for it, to go on with should Redis be gone.
            for gateways, least in (([first, second], 4), ([second], 3)):
                workers[0].most = 0
                for _ in range(5):  # on a busy machine a place may lie with the gateway that stands still just then
                    statuses = await asyncio.gather(*(status_of(gateways[n % len(gateways)]) for n in range(24)))
                    assert set(statuses) == {200}
                    if workers[0].most >= least:
                        break
                assert least <= workers[0].most <= 4


async def status_of(gateway) -> int:
    async with gateway.post({}) as answer:
        await answer.read()
        status: int = answer.status
        return status
