"""The data plane with the real scheduler in a storm: clients leave and workers fail at random; every book ends even."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from data_plane import STREAM, Plane, plane, request, until
from fault_server import (
    ANSWER,
    DONE,
    ERROR_EVENT,
    STREAM_HEAD,
    WHOLE_STREAM,
    Call,
    FaultServer,
    chunked,
    event,
    http,
)

from gateway.dispatcher import Dispatcher
from gateway.records import Terminal
from gateway.scheduling.model import Lease, Outcome, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy

WHOLE = b"".join(WHOLE_STREAM)


class Books:
    """Every lease that was given is settled once."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def dispatched(self, lease: Lease) -> None:
        self.open.add(id(lease))

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        self.open.remove(id(lease))


def schedule(p: Plane, policy: Policy, slots: int) -> Dispatcher:
    """Put the real scheduler in place of the first-come one."""
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(
        Scheduler(policy, random.Random(7)),
        clock=loop.time,
        timers=loop,
        on_change=lambda change: None,
        on_error=p.errors.append,
        watch=Books(),
    )
    p.server.dispatcher = dispatcher
    for name in p.pools:
        dispatcher.observe(WorkerSpec(name, "pool-a", frozenset({"tiny"}), 100_000, slots, 1_000_000), None)
    return dispatcher


def moody(rng: random.Random):
    """An engine that does any of what engines do."""

    async def script(call: Call) -> None:
        mood = rng.random()
        if mood < 0.04:
            call.reset()
        elif mood < 0.08:
            call.close()
        elif mood < 0.12:
            await call.send(http(503, b"", "retry-after: 1"))
        elif mood < 0.16:
            await call.send(http(500, b"oh"))
        elif mood < 0.20:
            await call.send(STREAM_HEAD + chunked(ERROR_EVENT) + chunked(DONE) + chunked(b""))
        elif mood < 0.26:
            await call.send(STREAM_HEAD + chunked(event("a")))
            call.reset()
        elif call.request.body != STREAM:
            await call.send(http(200, ANSWER))
        else:
            await call.send(STREAM_HEAD)
            for one in WHOLE_STREAM:
                await call.send(chunked(one))
                await asyncio.sleep(rng.random() * 0.002)
            await call.send(chunked(b""))

    return script


async def visit(p: Plane, rng: random.Random, seen: Counter[str]) -> None:
    """One client: some stay to the end, some leave at any point."""
    async with p.client() as client:
        body = STREAM if rng.random() < 0.8 else b"{}"
        patience = rng.random() * 0.05 if rng.random() < 0.4 else 10.0
        try:
            async with asyncio.timeout(patience):
                await client.send(request(body))
                answer = await client.answer()
        except TimeoutError:
            seen["left"] += 1
            return
        if answer.status != 200:
            assert answer.error["code"]
            seen["refused"] += 1
        elif answer.complete:
            assert answer.body in (WHOLE, ANSWER)
            seen["whole"] += 1
        else:
            assert b"[DONE]" not in answer.body
            assert answer.body.startswith(event("a"))
            assert b'"error"' in answer.body
            seen["broken"] += 1


@pytest.mark.parametrize("seed", [1])
async def test_every_book_ends_even(seed: int):
    rng = random.Random(seed)
    script = moody(rng)
    policy = Policy.model_validate({"health": {"consecutive_failures": 1000, "connect_failures": 1000}})
    async with FaultServer(script) as a, FaultServer(script) as b, FaultServer(script) as c, plane(a, b, c) as p:
        dispatcher = schedule(p, policy, slots=8)
        seen: Counter[str] = Counter()
        async with asyncio.timeout(40):
            await asyncio.gather(*(visit(p, rng, seen) for _ in range(250)))
        records = await p.notes.until(sum(seen.values()), 20)
        await until(lambda: dispatcher.snapshot().in_flight == 0)
        snapshot = dispatcher.snapshot()
        assert (snapshot.queued, snapshot.queued_bytes) == (0, 0)
        for worker in snapshot.workers:
            assert (worker.leases, worker.in_flight, worker.booked_kv_tokens) == (0, 0, 0)
            assert worker.booked_prefill_s == pytest.approx(0, abs=1e-9)
            assert worker.booked_decode_s == pytest.approx(0, abs=1e-9)
        # Clients that left early enough were never read; all others have exactly one record.
        assert len(records) <= 250
        assert seen["whole"] > 60
        assert min(seen["left"], seen["broken"]) > 0
        assert len({record.request_id for record in records}) == len(records)
        outcomes = Counter(record.outcome for record in records)
        assert outcomes[Terminal.INTERNAL] == 0
        assert outcomes[Terminal.OK] >= seen["whole"]
        assert p.errors == []
        dispatcher.stop()
        await until(lambda: all(one.open_connections <= 8 for one in (a, b, c)))
