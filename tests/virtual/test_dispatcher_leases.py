"""Leases and the dispatcher: whatever is called first after the leases have run out, nothing starts on them."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from virtual_loop import run_virtual

from gateway.dispatcher import Dispatcher
from gateway.scheduling.model import NO_ORDER, Lease, Order, Outcome, OutcomeKind, Refuse, Request, Signal, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy, policy_from_mapping

OK = Outcome(OutcomeKind.OK)
MODELS = frozenset({"tiny"})
SHORT = WorkerSpec("w1", "short-chat", MODELS, 4096, 4, 100_000)
OTHER = WorkerSpec("w2", "short-chat", MODELS, 4096, 4, 100_000)
POLICY = policy_from_mapping({"tenants": {"default": {}, "few": {"max_in_flight": 4}}})


class Sink:
    """Who waits for a place."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []

    def on_lease(self, lease: Lease) -> None:
        self.leases.append(lease)

    def on_refused(self, refused: Refuse) -> None:
        raise AssertionError(refused.reason)


class Nobody:
    """Watches nothing."""

    def dispatched(self, lease: Lease) -> None: ...
    def settled(self, lease: Lease, outcome: Outcome) -> None: ...


class Bench:
    """A dispatcher with two leased workers, whose leases run out 20 s after the start: then nothing is left."""

    def __init__(self, policy: Policy = POLICY) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.dispatcher = Dispatcher(
            Scheduler(policy, random.Random(1)),
            clock=loop.time,
            timers=loop,
            on_change=lambda change: None,
            on_error=lambda error: pytest.fail(repr(error)),
            watch=Nobody(),
        )
        self.lapses = 0
        self.dispatcher.govern(on=True)
        self.dispatcher.on_overdue = self.overdue
        for spec in (SHORT, OTHER):
            self.dispatcher.observe(spec, Signal(loop.time(), 0, 0, 0))
        self.dispatcher.lease({"w1": 1, "w2": 1, "@few": 1})
        self.dispatcher.lease_until = loop.time() + 20.0
        self.sinks: list[Sink] = []

    def overdue(self) -> None:
        self.lapses += 1
        self.dispatcher.lease_until = float("inf")
        self.dispatcher.lease({"w1": 0, "w2": 0, "@few": 0})

    def submit(self, tenant: str = "default") -> Sink:
        sink = Sink()
        name = f"r{len(self.sinks)}"
        self.sinks.append(sink)
        self.dispatcher.submit(Request(name, tenant, 1, "tiny", ("short-chat",), 10, 10, queue_timeout_s=900.0), sink)
        return sink

    def started(self) -> int:
        return sum(len(sink.leases) for sink in self.sinks)


Call = Callable[[Bench], Any]

FIRST_CALLS: dict[str, Call] = {
    "submit": lambda bench: bench.submit(),
    "settle": lambda bench: bench.dispatcher.settle(bench.sinks[0].leases[0], OK),
    "settle to try again": lambda bench: bench.dispatcher.settle(
        bench.sinks[0].leases[0], Outcome(OutcomeKind.CONNECT_FAILED), retry=True
    ),
    "first token": lambda bench: bench.dispatcher.first_token(bench.sinks[0].leases[0]),
    "observe": lambda bench: bench.dispatcher.observe(SHORT, Signal(bench.loop.time(), 0, 0, 0)),
    "a new incarnation": lambda bench: bench.dispatcher.observe(
        WorkerSpec("w1", "short-chat", MODELS, 4096, 4, 100_000, incarnation="2"), None
    ),
    "drain": lambda bench: bench.dispatcher.drain("w1", on=False),
    "order": lambda bench: bench.dispatcher.order("w1", Order(cap=4)),
    "readmit": lambda bench: bench.dispatcher.readmit("w1"),
    "adopt": lambda bench: bench.dispatcher.adopt(POLICY),
    "forget": lambda bench: bench.dispatcher.forget("w2"),
    "cancel": lambda bench: bench.dispatcher.cancel(bench.dispatcher.submit(waiting(), Sink())),
}


def waiting() -> Request:
    return Request("gone", "default", 1, "tiny", ("short-chat",), 10, 10, queue_timeout_s=900.0)


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_nothing_starts_on_leases_that_have_run_out(name):
    """Row 74: a process that stood still acts on what it held before anybody can look at the clock."""

    async def story() -> None:
        bench = Bench()
        for _ in range(4):
            bench.submit()
        assert bench.started() == 2
        # Time goes by without the loop: no timer has run when the call comes.
        bench.dispatcher.stop()
        await asyncio.sleep(25.0)
        FIRST_CALLS[name](bench)
        assert bench.lapses == 1
        assert bench.started() == 2
        bench.dispatcher.stop()

    run_virtual(story())


def test_what_is_taken_back_is_taken_before_anything_is_placed():
    """One worker's places come, the other's go: who waits must not be sent to those that are about to go."""

    async def story() -> None:
        bench = Bench()
        bench.dispatcher.lease({"w1": 0, "w2": 0})
        bench.dispatcher.drain("w2")
        sinks = [bench.submit() for _ in range(3)]
        bench.dispatcher.lease({"w2": 3})  # nobody can have them while it drains
        bench.dispatcher.drain("w2", on=False)
        assert [len(sink.leases) for sink in sinks] == [1, 1, 1]
        for sink in sinks:
            bench.dispatcher.settle(sink.leases[0], OK)
        more = [bench.submit("few") for _ in range(3)]
        assert sum(len(sink.leases) for sink in more) == 1, "one of the tenant's"
        bench.dispatcher.lease({"@few": 3, "w1": 1, "w2": 0})
        assert [sink.leases[0].worker for sink in more if sink.leases][1:] == ["w1"]
        bench.dispatcher.order("w1", NO_ORDER)
        bench.dispatcher.stop()

    run_virtual(story())


def test_a_worker_and_a_tenant_nobody_spoke_of_have_nothing():
    async def story() -> None:
        bench = Bench()
        bench.dispatcher.forget("w1")
        bench.dispatcher.forget("w2")
        bench.dispatcher.observe(SHORT, None)
        sink = bench.submit()
        assert not sink.leases, "what was leased of it went with it"
        bench.dispatcher.lease({"w1": 1})
        assert sink.leases
        bench.dispatcher.govern(on=False)
        bench.dispatcher.lease({"w1": None, "@few": None})
        assert bench.submit("few").leases
        bench.dispatcher.stop()

    run_virtual(story())
