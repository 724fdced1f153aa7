"""300 streams at once while clients leave and workers crash: every request ends once and every book is empty after."""

import asyncio
import random
from contextlib import AsyncExitStack

import aiohttp
from plain_worker import EVENTS, plain_worker
from running_gateway import Running, running, settings_for

STREAMS = 300
WHOLE = b"".join(EVENTS)


async def one(gateway: Running, rng: random.Random) -> str:
    """One client: patient, or gone before the answer, or gone in the middle of it."""
    mood = rng.choice(["patient", "patient", "impatient", "leaves"])
    await asyncio.sleep(rng.uniform(0, 0.5))
    try:
        async with asyncio.timeout(rng.uniform(0.001, 0.2) if mood == "impatient" else 30):
            async with gateway.post({"stream": True}) as answer:
                if answer.status != 200:
                    assert answer.status in {429, 500, 502, 503, 504}
                    assert (await answer.json())["error"]["code"]
                    return "told"
                if mood == "leaves":
                    await answer.content.readuntil(b"\n\n")
                    answer.close()
                    return "left"
                body = await answer.read()
    except TimeoutError:
        return "left"
    except aiohttp.ClientPayloadError:
        return "cut"
    assert body == WHOLE, "a stream that ends well is whole"
    return "whole"


async def test_nothing_is_left_after_a_storm(tmp_path):
    rng = random.Random(7)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(plain_worker()) for _ in range(3)]
        for worker in workers:
            worker.pause_s = 0.05
        gateway = await stack.enter_async_context(running(settings_for(tmp_path, workers)))

        async def crashes() -> None:
            for _ in range(10):
                await asyncio.sleep(0.1)
                rng.choice(workers).crash()

        chaos = asyncio.ensure_future(crashes())
        ends = await asyncio.gather(*(one(gateway, rng) for _ in range(STREAMS)))
        await chaos
        await gateway.idle()
        assert ends.count("whole") > 0
        assert ends.count("left") > 0
        for worker in workers:
            await asyncio.wait_for(worker.idle.wait(), 2)

        _, text = await gateway.get("/metrics")
        counted = [line for line in text.decode().splitlines() if line.startswith("headrace_requests_total{")]
        # A client that gives up before its request was sent was never there.
        assert len(ends) - ends.count("left") <= sum(float(line.rpartition(" ")[2]) for line in counted) <= STREAMS
        assert gateway.lines("internal_error") == []
        assert await gateway.sample("headrace_internal_errors_total") == 0
        assert await gateway.sample("headrace_requests_in_flight") == 0
        async with asyncio.timeout(10):  # connections rest before they are used again, and then end
            while any(worker["connections"] > 4 for worker in (await gateway.fleet())["workers"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_what_clients_invent_adds_no_series(tmp_path):
    """BR-11-01: invented models, tenants, classes, sessions and users; the scrape stays as it was."""

    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:

        async def invent(number: int) -> None:
            odd = f"x{number}"
            for changes, headers in (
                ({"model": odd + '"\n\\' + "y" * 10_000}, {}),
                ({"model": odd}, {"X-Headrace-Tenant": odd, "X-Session-Id": odd}),
                ({"user": odd}, {"X-Headrace-Priority": odd}),
                ({"user": odd, "metadata": {odd: odd}}, {"X-Headrace-Tenant": odd, "X-Request-Id": odd}),
            ):
                async with gateway.post(changes, **headers) as answer:
                    assert answer.status in {200, 400, 404, 503}

        async def series() -> int:
            _, text = await gateway.get("/metrics")
            return sum(not line.startswith(b"#") for line in text.splitlines())

        await asyncio.gather(*(invent(number) for number in range(10)))
        before = await series()
        await asyncio.gather(*(invent(number) for number in range(10, 210)))
        assert await series() == before
        await gateway.idle()
