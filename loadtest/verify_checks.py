"""Checks of `headrace verify` under load: outcomes, limits, pools, streams, order, deadlines, departures.

Each brings a situation about, notes what was seen, and leaves the judgement to `verify_judge.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from loadtest.verify_client import Caller, Fate, Told
from loadtest.verify_figures import Figure
from loadtest.verify_fleet import POLL_S, VerifyError
from loadtest.verify_judge import (
    Deadlines,
    Departures,
    Limits,
    Order,
    Outcomes,
    Pools,
    Streams,
    judge_deadlines,
    judge_departures,
    judge_limits,
    judge_order,
    judge_outcomes,
    judge_pools,
    judge_streams,
)
from loadtest.verify_stage import APART, Lateness, Stage
from loadtest.verify_tap import Tap

LIMIT: Final = 4  # requests at once on an engine, where a check sets it
FREE_S: Final = 5.0  # a place that is not free by then stays taken
LONG_PROMPT: Final = 6000  # tokens: more than the short pool takes
_OUTCOME: Final = re.compile(r'outcome="([a-z_]+)"')


async def outcomes(stage: Stage) -> list[Figure]:
    """A mix of whole answers, streams, departures and bad requests; then clients', gateway's and engines' counts."""
    fleet, caller, writer = stage.fleet, stage.caller, stage.writer
    gate = asyncio.Semaphore(24)

    async def one(act: str) -> Told:
        async with gate:
            if act == "leaves":
                return await caller.ask(writer.chat(output_tokens=2000), leave_at_first=True)
            if act == "bad":
                return await caller.ask(b'{"model": "tiny", "messages": [')
            if act == "unknown":
                return await caller.ask({**writer.chat(), "model": "nobody-serves-this"})
            return await caller.ask(writer.chat(output_tokens=stage.rng.randrange(4, 40), stream=act == "stream"))

    async def counts() -> tuple[Counter[str], float, int]:
        by_outcome: Counter[str] = Counter()
        for series, value in (await fleet.counted("headrace_requests_total")).items():
            if found := _OUTCOME.search(series):
                by_outcome[found[1]] += int(value)
        attempts = sum((await fleet.counted("headrace_attempts_total")).values())
        return by_outcome, attempts, await fleet.generations()

    before, attempts, generations = await counts()
    acts = stage.rng.choices(("stream", "whole", "leaves", "bad", "unknown"), (40, 25, 20, 10, 5), k=stage.count(160))
    told = await asyncio.gather(*map(one, [*acts, "stream", "whole", "leaves", "bad", "unknown"]))
    held = await fleet.rest()
    after, attempts_after, generations_after = await counts()
    after.subtract(before)
    return judge_outcomes(Outcomes(told, after, attempts_after - attempts, generations_after - generations, held))


async def limits(stage: Stage) -> list[Figure]:
    """More requests than places, then more tokens than KV cache. At a fresh fleet: engines count from their start."""
    fleet = stage.fleet
    await fleet.set_policy({"limits": {"max_in_flight_per_worker": LIMIT}})
    told = await stage.caller.many(stage.chats(stage.count(60), 40, 24))
    most = {name: int(state["max_concurrent_seen"]) for name, state in (await fleet.states()).items()}
    await fleet.set_policy({})
    told += await stage.caller.many(stage.chats(stage.count(28), 1400, 100))
    states = {name: state for name, state in (await fleet.states()).items() if name.startswith("short")}
    return judge_limits(
        Limits(
            LIMIT,
            most,
            max(state["max_kv_used_tokens_seen"] / state["kv_tokens"] for state in states.values()),
            max(int(state["max_concurrent_seen"]) for state in states.values()),
            min(fleet.engines[name].shape.max_num_seqs for name in states),
            sum(int(state["preemptions"]) for state in states.values()),
            told,
        )
    )


async def pools(stage: Stage) -> list[Figure]:
    """Short and long requests in turn, one at a time: nobody has to help out anybody."""
    short: list[Told] = []
    long: list[Told] = []
    for number in range(stage.count(12)):
        short.append(await stage.caller.ask(stage.writer.chat(stage.rng.randrange(20, 1500), 8)))
        if number % 3 == 0:
            long.append(await stage.caller.ask(stage.writer.chat(LONG_PROMPT, 8)))
    pool_of = {name: engine.shape.pool for name, engine in stage.fleet.engines.items()}
    return judge_pools(Pools(short, long, pool_of))


async def streams(stage: Stage) -> list[Figure]:
    """Streams through a gateway whose engine is behind a tap. The fleet's gateway is started here."""
    fleet = stage.fleet
    await fleet.start_engines()
    name, engine = next(iter(fleet.engines.items()))
    async with Tap(engine.url) as tap:
        await fleet.start_gateway(fleet.workers({name: tap.url}))
        bodies = [stage.writer.chat(40, stage.rng.randrange(1, 120)) for _ in range(stage.count(32))]
        told = await stage.caller.many(bodies)
        return judge_streams(Streams(told, tap.bodies))


async def order(stage: Stage) -> list[Figure]:
    """The one place that there is taken by an engine that stands still; batch requests wait, then interactive ones.

    One place only: with several, who begins first is not who was sent first.
    """
    fleet, caller = stage.fleet, stage.caller
    one_each = {"limits": {"max_in_flight_per_worker": 1}, "admission": {"reject_when_hopeless": False}}
    await fleet.set_policy({**one_each, "pools": APART})
    short = [name for name, engine in fleet.engines.items() if engine.shape.pool == "short-chat"]
    begun: list[str] = []

    async def one(name: str) -> Told:
        return await caller.ask(
            stage.writer.chat(40, 8), {"X-Headrace-Priority": name}, began=lambda _: begun.append(name)
        )

    for name in short[1:]:
        await fleet.order(name, "drain")
    try:
        await fleet.fault_all("stall")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(one("standard"))
            await fleet.until("the place was not taken", 10.0, in_flight=1)
            low = [group.create_task(one("batch")) for _ in range(8)]
            await fleet.until("batch requests did not wait", 10.0, queued=len(low))
            high = [group.create_task(one("interactive")) for _ in range(6)]
            await fleet.until("interactive requests did not wait", 10.0, queued=len(low) + len(high))
            await fleet.fault_all("none")
    finally:
        for name in short[1:]:
            await fleet.order(name, "undrain")
    told = [task.result() for task in (first, *low, *high)]
    return judge_order(Order([name for name in begun if name != "standard"], told))


async def deadlines(stage: Stage) -> list[Figure]:
    """Engines that stand still; requests with a time of their own on them, and behind these a class that waits 1 s."""
    fleet, caller = stage.fleet, stage.caller
    classes = [{"name": "interactive"}, {"name": "standard"}, {"name": "batch", "queue_timeout_s": 1}]
    bound = {"limits": {"max_in_flight_per_worker": 1}, "admission": {"reject_when_hopeless": False}}
    await fleet.set_policy({**bound, "classes": classes})
    places = len(fleet.engines)
    await fleet.fault_all("stall")
    timed, waiting = {"X-Headrace-Timeout-Ms": "2000"}, {"X-Headrace-Priority": "batch"}
    async with Lateness() as late, asyncio.TaskGroup() as group:
        running = [group.create_task(caller.ask(stage.writer.chat(40, 8), timed)) for _ in range(places)]
        await fleet.until("the places were not taken", 1.5, in_flight=places)
        queued = [group.create_task(caller.ask(stage.writer.chat(40, 8), waiting)) for _ in range(4)]
    await fleet.fault_all("none")
    return judge_deadlines(
        Deadlines(
            [(task.result(), 2.0) for task in running], [(task.result(), 1.0) for task in queued], late.most_s
        )
    )  # fmt: skip


async def departures(stage: Stage) -> list[Figure]:
    """Clients that leave: while an engine answers them, directly and through the gateway, and while they wait."""
    fleet = stage.fleet

    async def engines_idle() -> bool:
        return not any(state["requests"] for state in (await fleet.states()).values())

    async def all_idle() -> bool:
        return await engines_idle() and not await fleet.held()

    async def nobody_waits() -> bool:
        return not (await fleet.fleet())["queue"]["queued"]

    async def time_to_leave(caller: Caller, idle: Callable[[], Awaitable[bool]]) -> float:
        told = await caller.ask(stage.writer.chat(40, 3000), leave_at_first=True)
        if told.fate is not Fate.LEFT or told.left_s is None:
            raise VerifyError(f"a request that was to be left was {told.fate} ({told.status} {told.code})")
        return await until_free(idle, told.left_s)

    async def until_free(free: Callable[[], Awaitable[bool]], since_s: float) -> float:
        while not await free():
            if time.monotonic() - since_s > FREE_S:
                return FREE_S
            await asyncio.sleep(POLL_S / 10)
        return time.monotonic() - since_s

    times = stage.count(9)
    direct = Caller(fleet.session, next(iter(fleet.engines.values())).url)
    alone = [await time_to_leave(direct, all_idle) for _ in range(times)]
    through = [await time_to_leave(stage.caller, all_idle) for _ in range(times)]
    await fleet.set_policy({"limits": {"max_in_flight_per_worker": 1}})
    places = len(fleet.engines)
    ended = asyncio.Event()
    waiting: list[float] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(places):
            group.create_task(stage.caller.ask(stage.writer.chat(40, 3000), leave=ended))
        try:
            await fleet.until("the places were not taken", 10.0, in_flight=places)
            for _ in range(times):
                leave = asyncio.Event()
                asked = group.create_task(stage.caller.ask(stage.writer.chat(40, 8), leave=leave))
                await fleet.until("a request did not wait", 10.0, queued=1)
                left_s = time.monotonic()
                leave.set()
                await asked
                waiting.append(await until_free(nobody_waits, left_s))
        finally:
            ended.set()
    return judge_departures(Departures(through, alone, waiting, await fleet.rest()))
