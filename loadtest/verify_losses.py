"""Checks of `headrace verify` that a fleet does not survive as it was: keys, two gateways, deaths, and a stop.

Each has a fleet of its own, brings a situation about, notes what was seen, and leaves the judgement to
`verify_judge_faults.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from loadtest.verify_client import Told
from loadtest.verify_figures import Figure
from loadtest.verify_fleet import POLL_S, Fleet, VerifyError
from loadtest.verify_judge_faults import (
    EngineLoss,
    Keys,
    RedisLoss,
    Replicas,
    Stopped,
    judge_engine_loss,
    judge_keys,
    judge_redis_loss,
    judge_replicas,
    judge_stopped,
)
from loadtest.verify_stage import Stage, load

LIMIT: Final = 4
IN_FORCE_S: Final = 10.0  # a key is known a second later
STOP_S: Final = 30.0


async def keys(stage: Stage) -> list[Figure]:
    """A key that holds and one that was revoked; requests with none, a wrong one, either of them."""
    fleet = stage.fleet
    good, bad = await _make_key(fleet, "acme"), await _make_key(fleet, "acme")
    status, value, _ = await fleet.call("POST", f"keys/{bad['id']}:revoke", b"")
    if status != 200:
        raise VerifyError(f"revoke: {status} {value}"[:200])
    until = time.monotonic() + IN_FORCE_S
    while (told := await fleet.caller(bad["key"]).ask(stage.writer.chat())).status != 401:
        if time.monotonic() > until:
            raise VerifyError(f"a revoked key still works {IN_FORCE_S:g} s later: {told.status}")
    before = await fleet.generations()
    without = []
    for key in ("", "hr_wrong", bad["key"], good["key"][:-1] + ("a" if good["key"][-1] != "a" else "b")):
        told = await fleet.caller(key).ask(stage.writer.chat())
        without.append((told.status, told.code))
    through = await fleet.generations() - before
    spoofed = {"X-Headrace-Tenant": "somebody-else", "X-Tenant": "somebody-else"}
    right = await fleet.caller(good["key"]).ask(stage.writer.chat(), spoofed)
    _, story, _ = await fleet.call("GET", f"requests/{right.headers.get('x-request-id', '-')}")
    return judge_keys(Keys(without, right, b'"acme"' in orjson.dumps(story), through))


async def _make_key(fleet: Fleet, tenant: str) -> dict[str, Any]:
    status, value, _ = await fleet.call("POST", "keys", {"tenant": tenant})
    if status != 201:
        raise VerifyError(f"keys: {status} {value}"[:200])
    made: dict[str, Any] = value
    return made


async def replicas(stage: Stage) -> list[Figure]:
    """Two gateway processes on one port, one engine, more requests than it may have."""
    fleet = stage.fleet
    await fleet.set_policy({"limits": {"max_in_flight_per_worker": LIMIT}})
    until = time.monotonic() + IN_FORCE_S
    seen: list[Any] = []
    while time.monotonic() < until:
        _, state, _ = await fleet.call("GET", "policy/state")
        seen = state.get("replicas") or []
        if state.get("converged") and len(seen) == fleet.layout.processes:
            break
        await asyncio.sleep(POLL_S)
    told = await stage.caller.many(stage.chats(stage.count(60), 40, 24))
    most = int((await fleet.state("short-1"))["max_concurrent_seen"])
    return judge_replicas(Replicas(LIMIT, most, len(seen), told))


async def engine_loss(stage: Stage) -> list[Figure]:
    """Streams that run on two engines; one stands still, gets more, and is killed."""
    fleet, dying = stage.fleet, "short-2"
    begun: list[Told] = []
    async with asyncio.TaskGroup() as group:
        first = [
            group.create_task(stage.caller.ask(body, began=begun.append)) for body in stage.chats(6, 40, 300)
        ]  # fmt: skip
        await _begun(begun, len(first))
        await fleet.fault(dying, "stall")
        second = [group.create_task(stage.caller.ask(body)) for body in stage.chats(8, 40, 200)]
        await fleet.until("the requests were not placed", 10.0, in_flight=len(first) + len(second))
        at_it = sum(one.worker == dying for one in begun)
        unbegun = int((await fleet.worker(dying))["leases"]) - at_it
        fleet.kill(dying)
    ended = [task.result() for task in first]
    later = await stage.caller.many(stage.chats(stage.count(8)))
    return judge_engine_loss(
        EngineLoss(
            [one for one in ended if one.worker == dying],
            unbegun,
            [task.result() for task in second],
            [one for one in ended if one.worker != dying],
            dying,
            later,
        )
    )


async def _begun(begun: list[Told], count: int, within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while len(begun) < count:
        if time.monotonic() > until:
            raise VerifyError(f"{len(begun)} of {count} streams began within {within_s:g} s")
        await asyncio.sleep(POLL_S)


async def redis_loss(stage: Stage) -> list[Figure]:
    """The embedded Valkey is ended under load, and comes back."""
    fleet = stage.fleet
    async with load(stage.caller, stage.chats(stage.count(50), 40, 24)) as before:
        await before.answers(len(before.told) + 8)
        await _end_redis((fleet.home / "state" / "redis.url").read_text().strip())
        gone_s = time.monotonic()
    async with load(stage.caller, stage.chats(stage.count(50), 40, 24)) as after:
        await after.answers(8)
    noticed = await _event(fleet.home / "events", "redis_ended")
    back = await _event(fleet.home / "events", "redis_started")
    later = [one for one in before.told if one.sent_s > gone_s]
    earlier = [one for one in before.told if one.sent_s <= gone_s]
    return judge_redis_loss(RedisLoss(earlier, [*later, *after.told], noticed, back))


async def _end_redis(url: str) -> None:
    """Have it end at once, keeping nothing, as after a crash."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(b"SHUTDOWN NOSAVE NOW FORCE\r\n")
        with suppress(ConnectionError):
            async with asyncio.timeout(10.0):
                said = await reader.read(200)
            if said:
                raise VerifyError(f"Valkey would not end: {said.decode('utf-8', 'replace').strip()}")
    finally:
        writer.close()


async def _event(log: Path, name: str, within_s: float = 10.0) -> bool:
    """Whether the gateway's log tells of an event, by now or soon."""
    until = time.monotonic() + within_s
    wanted = f'"event":"{name}"'.encode()
    while True:
        if wanted in await asyncio.to_thread(log.read_bytes):
            return True
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_S)


async def graceful_stop(stage: Stage) -> list[Figure]:
    """SIGTERM while streams run and others wait."""
    fleet, gateway = stage.fleet, stage.fleet.gateway
    assert gateway is not None
    await fleet.set_policy({"limits": {"max_in_flight_per_worker": LIMIT}})
    places = LIMIT * len(fleet.engines)
    async with asyncio.TaskGroup() as group:
        accepted = [group.create_task(stage.caller.ask(body)) for body in stage.chats(places + 6, 40, 120)]
        await fleet.until("the places were not taken", 10.0, in_flight=places, queued=6)
        gateway.signal(signal.SIGTERM)
        unready = await _unready(fleet)
        later = [group.create_task(stage.caller.ask(body)) for body in stage.chats(4)]
    status = await gateway.wait(STOP_S)
    told = [task.result() for task in accepted]
    return judge_stopped(Stopped(told, [task.result() for task in later], status, places, unready))


async def _unready(fleet: Fleet, within_s: float = 2.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(aiohttp.ClientError, OSError):
            status, _, _ = await fleet.call("GET", "/readyz")
            if status == 503:
                return True
        await asyncio.sleep(POLL_S)
    return False
