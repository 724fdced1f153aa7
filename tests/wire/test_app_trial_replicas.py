"""A policy tried out by several gateways: together, counted together, and ended together, whatever Redis does."""

import asyncio
import os
import signal
from typing import Any

from admin_support import Api
from fleet_of_gateways import PATIENCE_S, one_redis, until

URGENT = "default_class: interactive\n"


async def classes(api: Api, count: int) -> set[str]:
    """The classes that so many requests got here which were served. Some may be turned away while the gateways share
    out the worker's slots, or when the machine is too slow for the test."""
    found, served = set(), 0
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while served < count:
        async with api.gateway.post({}) as answer:
            if answer.status == 200:
                served += 1
                found.add(answer.headers["X-Headrace-Class"])
                continue
            assert answer.status in (429, 503), await answer.text()
        assert asyncio.get_running_loop().time() < deadline, "requests are turned away for ever"
        await asyncio.sleep(0.1)
    return found


async def decided(api: Api) -> str:
    """The class that a request gets here, whether there is a place for it or not: without Redis nobody gives any."""
    async with api.gateway.post({}) as answer:
        return str(answer.headers["X-Headrace-Class"])


async def trial(api: Api) -> Any:
    return (await api.get("policy/trial"))["trial"]


async def until_tried(api: Api, expected: bool) -> None:
    async def seen() -> bool:
        return (await trial(api) is not None) is expected

    await until(seen)


async def test_they_try_together_and_count_together(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        assert (await one.post("policy:try?mode=canary&share=1", URGENT))[0] == 200
        await until_tried(other, True)
        assert await classes(one, 4) == {"interactive"}
        assert await classes(other, 3) == {"interactive"}

        async def agreed() -> bool:
            found = [await trial(api) for api in (one, other)]
            return [(each["gateways"], each["trial"]["ok"]) for each in found] == [(2, 7)] * 2

        await until(agreed)
        third = await fleet.start("c")
        await until_tried(third, True)
        assert (await trial(third))["trial"]["ok"] == 7
        status, answer = await other.post("policy:withdraw")
        assert (status, answer["ended"]["trial"]["ok"], answer["pending"]) == (200, 7, False)
        for api in (one, third):
            await until_tried(api, False)
        assert await fleet.redis.keys("*trial*") == []


async def test_a_shadow_is_counted_together(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        await one.post("policy:try?mode=shadow", URGENT)
        await until_tried(other, True)
        assert await classes(one, 2) | await classes(other, 3) == {"standard"}

        async def agreed() -> bool:
            found = [await trial(api) for api in (one, other)]
            return found[0]["seen"] == found[1]["seen"] == found[0]["different"] == found[1]["different"] >= 5

        await until(agreed)
        seen = await trial(other)
        difference = {"what": "class", "from": "standard", "to": "interactive", "requests": seen["seen"]}
        assert difference in seen["differences"]


async def test_a_canary_is_withdrawn_although_redis_hangs_and_does_not_come_back(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        await one.post("policy:try?mode=canary&share=1", URGENT)
        await until_tried(other, True)
        os.kill(fleet.valkey.pid, signal.SIGSTOP)
        try:
            status, answer = await one.post("policy:withdraw")
            assert (status, answer["pending"]) == (200, True)
            assert await decided(one) == "standard"
            assert await decided(other) == "interactive"
        finally:
            os.kill(fleet.valkey.pid, signal.SIGCONT)
        await until_tried(other, False)
        assert await trial(one) is None
        assert {await decided(one), await decided(other)} == {"standard"}

        async def told() -> bool:
            return not (await one.get("policy/trial"))["pending"]

        await until(told)


async def test_promoted_at_one_it_ends_at_all_and_leaves_nothing(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        await one.post("policy:try?mode=canary&share=1", URGENT)
        await until_tried(other, True)
        assert (await other.post("policy:promote"))[0] == 200
        await until_tried(one, False)
        assert await decided(one) == "interactive"

        async def clean() -> bool:
            return await fleet.redis.keys("*trial*") == []

        await until(clean)
