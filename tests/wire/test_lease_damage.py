"""What happens to the lease protocol's keys from outside: garbage, wrong types, one key lost without the others.

Row 60, invariant 21: whatever is found there, no more is granted than there is, and it heals without anybody's help.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio as redis_client

from gateway.leasing.holder import Holder
from gateway.leasing.script import lease_keys, send
from gateway.leasing.words import Demand, read_heard
from gateway.process import Child, start_valkey

GATEWAYS, SLOTS, EPOCH, LEDGERS, INBOX = lease_keys("f")
LIMIT = 8


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


class Pair:
    """Two gateways that want everything of one worker; what runs is half of it at each, or what they hold."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.holders = [Holder("g1", "a", fresh=True), Holder("g2", "b")]

    async def beat(self) -> None:
        """One step of each; what is held never is more than there is."""
        for holder in self.holders:
            used = min(holder.shares["w1"].held, LIMIT // 2) if "w1" in holder.shares else 0
            step = holder.plan({"w1": Demand(LIMIT, used, LIMIT, 1)}, time.monotonic(), ledger="-")
            holder.answered(step, read_heard(await send(self.redis, "f", step)))
            assert self.held() <= LIMIT

    def held(self) -> int:
        """What both hold."""
        return sum(each.shares["w1"].held for each in self.holders if "w1" in each.shares)

    async def share(self, within_s: float = 30.0) -> None:
        """Beat until everything is held, by both, in an open epoch."""
        until = time.monotonic() + within_s
        while self.held() < LIMIT or not all(each.open and each.shares["w1"].held for each in self.holders):
            assert time.monotonic() < until, [(each.open, each.epoch, each.shares) for each in self.holders]
            await self.beat()
            await asyncio.sleep(0.02)


async def gone(redis: Any, key: str) -> None:
    await redis.delete(key)


async def other_type(redis: Any, key: str) -> None:
    await redis.delete(key)
    await redis.lpush(key, "a", "b")


Act = Callable[[Any], Awaitable[Any]]
DAMAGE: dict[str, Act] = {
    **{f"{key} gone": lambda redis, key=key: gone(redis, key) for key in (GATEWAYS, SLOTS, EPOCH)},
    **{f"{key} a list": lambda redis, key=key: other_type(redis, key) for key in lease_keys("f")},
    "a gateway gone": lambda redis: redis.hdel(GATEWAYS, "g1"),
    "a gateway unreadable": lambda redis: redis.hset(GATEWAYS, "g2", b"\xff"),
    "a stranger unreadable": lambda redis: redis.hset(GATEWAYS, "g9", "[1"),
    "many strangers": lambda redis: redis.hset(
        GATEWAYS, mapping={f"x{number}": '{"s":1,"e":1,"at":0,"who":""}' for number in range(5000)}
    ),
    "a worker's slots gone": lambda redis: redis.hdel(SLOTS, "w1"),
    "less written than is held": lambda redis: redis.hset(SLOTS, "w1", '{"g1":[0,0,8,0,0,0],"g2":[1,0,8,0,0,0]}'),
    "a class that is none": lambda redis: redis.hset(
        SLOTS, "w1", '{"g1":[4,0,8,4,1000000,0],"g2":[4,0,8,4,1000000,0]}'
    ),
}


async def test_damage_never_makes_more_slots_and_heals(valkey):
    """The gateways tell again what they hold; what takes seconds of listening is made short here."""
    redis = redis_client.Redis.from_url(valkey.url)
    pair = Pair(redis)
    await pair.share()
    for name, act in DAMAGE.items():
        epoch = max(each.epoch for each in pair.holders)
        await act(redis)
        for _ in range(3):
            await pair.beat()
        assert pair.held() == LIMIT, f"{name}: what is held stays"
        assert all(each.epoch >= epoch for each in pair.holders), name
        await shorten(redis)
        await pair.share()
        assert await redis.hlen(GATEWAYS) == 2, name
    await redis.aclose()


async def shorten(redis: Any) -> None:
    """End the listening of this epoch now, and let nobody be a newcomer."""
    await redis.set(EPOCH, re.sub(r'"window":\d+', '"window":0', (await redis.get(EPOCH)).decode()))
    for name, text in (await redis.hgetall(GATEWAYS)).items():
        await redis.hset(GATEWAYS, name, re.sub(r'"j":\d+', '"j":0', text.decode()))


async def test_what_nobody_holds_any_more_is_not_kept(valkey):
    """Workers come and go under new names, and gateways die without a word: neither leaves anything behind."""
    redis = redis_client.Redis.from_url(valkey.url)
    for generation in range(5):
        holder = Holder(f"g{generation}", "who", fresh=True)
        for _ in range(40):
            demands = {f"w{generation}-{number}": Demand(4) for number in range(20)}
            step = holder.plan(demands, time.monotonic(), dead=((f"g{generation - 1}", "who"),))
            holder.answered(step, read_heard(await send(redis, "f", step)))
            if any(share.held for share in holder.shares.values()):
                break
            await asyncio.sleep(0.05)
        assert await redis.hlen(SLOTS) <= 40
        assert await redis.hlen(GATEWAYS) == 1
    await redis.aclose()
