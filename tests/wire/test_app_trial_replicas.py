"""A policy tried out by several gateways: together, counted together, and ended together, whatever Redis does."""

import os
import signal
from typing import Any

from admin_support import Api
from fleet_of_gateways import one_redis, until

URGENT = "default_class: interactive\n"


async def classes(api: Api, count: int) -> set[str]:
    """The classes that requests got here."""
    found = set()
    for _ in range(count):
        async with api.gateway.post({}) as answer:
            assert answer.status == 200
            found.add(answer.headers["X-Headrace-Class"])
    return found


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
            counted = [(each["gateways"], each["trial"]["requests"], each["trial"]["ok"]) for each in found]
            return counted == [(2, 7, 7)] * 2 and all(each["trial"]["ttft_p95_s"] is None for each in found)

        await until(agreed)
        third = await fleet.start("c")
        await until_tried(third, True)
        assert (await trial(third))["trial"]["requests"] == 7
        status, answer = await other.post("policy:withdraw")
        assert (status, answer["ended"]["trial"]["requests"], answer["pending"]) == (200, 7, False)
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
            found = await trial(one)
            return (found["seen"], found["different"]) == (5, 5)

        await until(agreed)
        difference = {"what": "class", "from": "standard", "to": "interactive", "requests": 5}
        assert difference in (await trial(other))["differences"]


async def test_a_canary_is_withdrawn_although_redis_hangs_and_does_not_come_back(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        await one.post("policy:try?mode=canary&share=1", URGENT)
        await until_tried(other, True)
        os.kill(fleet.valkey.pid, signal.SIGSTOP)
        try:
            status, answer = await one.post("policy:withdraw")
            assert (status, answer["pending"]) == (200, True)
            assert await classes(one, 2) == {"standard"}
            assert await classes(other, 1) == {"interactive"}
        finally:
            os.kill(fleet.valkey.pid, signal.SIGCONT)
        await until_tried(other, False)
        assert await trial(one) is None
        assert await classes(one, 1) | await classes(other, 1) == {"standard"}

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
        assert await classes(one, 1) == {"interactive"}

        async def clean() -> bool:
            return await fleet.redis.keys("*trial*") == []

        await until(clean)
