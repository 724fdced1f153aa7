"""Keys of ours that somebody has put something else under: all of it heals, and no request hears of it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from running_gateway import running, settings_for

from gateway.leasing.script import lease_keys
from gateway.process import Child, start_valkey

KEYS = [
    *lease_keys("default")[:4],
    *(f"headrace:{{default}}:{name}" for name in ("policy", "policy:replicas", "quota:default")),
]


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


async def test_every_key_of_another_type_is_replaced(tmp_path, valkey):
    """Row 60: leases, gossip, the policy, tenants' minutes."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {default: {requests_per_min: 100000, max_in_flight: 50}}\n")
    redis = redis_client.Redis.from_url(valkey.url, decode_responses=True)
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker], redis=valkey.url, policy=str(policy))
        async with running(settings, fresh=True) as gateway:
            async with gateway.post({}) as answer:
                assert answer.status == 200
            deadline = time.monotonic() + 60
            while "none" in (expected := {key: await redis.type(key) for key in KEYS}).values():
                assert time.monotonic() < deadline, expected
                await asyncio.sleep(0.05)
            for key, kind in expected.items():
                assert kind in {"hash", "string"}
                await redis.delete(key)
                await redis.lpush(key, "x")
            while True:
                async with gateway.post({}) as answer:
                    assert answer.status == 200
                kinds = {key: await redis.type(key) for key in expected}
                if kinds == expected:
                    break
                assert time.monotonic() < deadline, kinds
                await asyncio.sleep(0.05)
            _, text = await gateway.get("/readyz")
            assert b"policy revision" not in text, "the fleet's policy is known again"
    await redis.aclose()
