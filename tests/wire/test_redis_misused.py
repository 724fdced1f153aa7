"""Keys of ours that somebody has put something else under: all of it heals, and no request hears of it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from running_gateway import running, settings_for

from gateway.process import Child, start_valkey
from workers.report import workers_key


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


async def test_every_key_of_another_type_is_replaced(tmp_path, valkey):
    """Row 60. The list of workers is the agents': they put their names into it once a second."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {default: {requests_per_min: 100000, max_in_flight: 50}}\n")
    redis = redis_client.Redis.from_url(valkey.url, decode_responses=True)
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker], redis=valkey.url, policy=str(policy))
        async with running(settings, fresh=True) as gateway:
            async with gateway.post({}) as answer:
                assert answer.status == 200
            expected: dict[str, str] = {}
            deadline = time.monotonic() + 30
            while not {"gateways", "slots", "epoch", "ledgers", "policy", "policy:replicas", "quota:default"} <= {
                key.partition("}:")[2] for key in expected
            }:
                assert time.monotonic() < deadline, expected
                expected = {key: await redis.type(key) for key in await redis.keys("headrace:*")}
                await asyncio.sleep(0.05)
            expected.pop(workers_key("default"), None)
            for key, kind in expected.items():
                await redis.delete(key)
                await (redis.set(key, "x") if kind == "list" else redis.lpush(key, "x"))
            while True:
                async with gateway.post({}) as answer:
                    assert answer.status == 200
                kinds = {key: await redis.type(key) for key in expected}
                # The history begins anew with the next revision.
                if all(kinds[key] == kind or key.endswith((":history", ":learned")) for key, kind in expected.items()):
                    break
                assert time.monotonic() < deadline, kinds
                await asyncio.sleep(0.05)
            _, text = await gateway.get("/readyz")
            assert b"policy revision" not in text, "the fleet's policy is known again"
    await redis.aclose()
