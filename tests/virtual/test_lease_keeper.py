"""The keeper in virtual time: real leases, scheduler and dispatcher, and a store that is the reference in Python."""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_loop import run_virtual

from gateway.dispatcher import Dispatcher
from gateway.leasing.keeper import AWAKE_S, Keeper
from gateway.leasing.lows import Lows
from gateway.leasing.words import HOLD_S
from gateway.log import Log
from gateway.scheduling.model import Lease, Outcome, OutcomeKind, Refuse, Request, Signal, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import policy_from_mapping

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from lease_store import Store

LIMIT = 8
POLICY = policy_from_mapping({"tenants": {"default": {}, "few": {"max_in_flight": 2}}})
OK = Outcome(OutcomeKind.OK)


class Link:
    """A way to the store that can be cut; `lost` answers never arrive."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.up = True
        self.tries = 0

    async def run(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        self.tries += 1
        await asyncio.sleep(0.01)
        return await operation(self) if self.up else None

    async def evalsha(self, digest: str, count: int, *rest: Any) -> bytes:
        loop = asyncio.get_running_loop()
        self.store.wall = 1_700_000_000_000 + round(loop.time() * 1000)
        return json.dumps(self.store.step(json.loads(rest[count]))).encode()

    async def publish(self, channel: str, message: str) -> int:
        return 0


class Sink:
    def __init__(self) -> None:
        self.lease: Lease | None = None

    def on_lease(self, lease: Lease) -> None:
        self.lease = lease

    def on_refused(self, refused: Refuse) -> None:
        raise AssertionError(refused.reason)

    def dispatched(self, lease: Lease) -> None: ...
    def settled(self, lease: Lease, outcome: Outcome) -> None: ...


class Gateway:
    """A keeper and what it governs: one worker."""

    def __init__(self, store: Store, loss: str = "local_share") -> None:
        loop = asyncio.get_running_loop()
        lows = Lows(Sink(), loop.time)
        self.link = Link(store)
        self.dispatcher = Dispatcher(
            Scheduler(POLICY, random.Random(1)),
            clock=loop.time,
            timers=loop,
            on_change=lambda change: None,
            on_error=lambda error: pytest.fail(repr(error)),
            watch=lows,
        )
        self.keeper = Keeper(
            "f",
            link=self.link,  # type: ignore[arg-type] # all of a link that a keeper uses
            dispatcher=self.dispatcher,
            lows=lows,
            clock=loop.time,
            loss=lambda: loss,
            log=Log(None, None),
        )
        spec = WorkerSpec("w1", "short-chat", frozenset({"tiny"}), 4096, LIMIT, 1_000_000)
        self.dispatcher.observe(spec, Signal(loop.time(), 0, 0, 0))
        self.sinks: list[Sink] = []
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.keeper.start()
        self.task = asyncio.create_task(self.keeper.run())

    def ask(self, count: int, tenant: str = "default") -> int:
        """So many requests; how many may start at once."""
        fresh = [Sink() for _ in range(count)]
        for sink in fresh:
            name = f"r{len(self.sinks)}"
            self.sinks.append(sink)
            request = Request(name, tenant, 1, "tiny", ("short-chat",), 10, 10, queue_timeout_s=9000.0)
            self.dispatcher.submit(request, sink)
        return sum(sink.lease is not None for sink in fresh)

    def running(self) -> int:
        return sum(sink.lease is not None and not sink.lease.settled for sink in self.sinks)

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        self.dispatcher.stop()


async def two(loss: str = "local_share") -> tuple[Gateway, Gateway]:
    """Two gateways that have half of the worker each."""
    store = Store()
    found = Gateway(store, loss), Gateway(store, loss)
    for gateway in found:
        await gateway.start()
    await asyncio.sleep(8.0)
    held = [gateway.keeper.holder.shares["w1"].held for gateway in found]
    assert sum(held) == LIMIT
    assert min(held) >= LIMIT // 2
    return found


def stand_still(seconds: float) -> None:
    """Time goes by without anything of this process having run."""
    loop: Any = asyncio.get_running_loop()
    loop.jumping.now += seconds


def test_who_stood_still_starts_nothing_before_it_has_heard_what_others_have_now():
    """A frozen machine: elsewhere nobody vouches for it, and its reserve may have gone where the engine had room."""

    async def story() -> None:
        one, other = await two()
        stand_still(60.0)
        assert one.ask(2) == 0, "whatever was its reserve"
        await asyncio.sleep(AWAKE_S)
        assert one.running() == 2, "the next step has told what it has"
        await one.stop()
        await other.stop()

    run_virtual(story())


@pytest.mark.parametrize(("loss", "places"), [("local_share", 1), ("open", 2), ("closed", 0)])
def test_a_tenant_that_comes_while_redis_is_gone_is_not_turned_away_for_it(loss, places):
    async def story() -> None:
        one, other = await two(loss)
        one.link.up = False
        await asyncio.sleep(2.0)
        one.ask(3, "few")
        await asyncio.sleep(1.0)
        assert one.running() == places
        one.link.up = True
        await asyncio.sleep(3.0)
        assert one.running() == 2, "its limit, all of it from one gateway"
        await one.stop()
        await other.stop()

    run_virtual(story())


@pytest.mark.parametrize(("loss", "places"), [("local_share", LIMIT // 2), ("open", LIMIT), ("closed", 0)])
def test_who_asks_in_vain_goes_on_by_the_policys_word(loss, places):
    async def story() -> None:
        one, other = await two(loss)
        one.link.up = False
        await asyncio.sleep(HOLD_S / 2)
        assert one.ask(LIMIT) >= LIMIT // 2, "for a while as before"
        for sink in one.sinks:
            if sink.lease is not None:
                one.dispatcher.settle(sink.lease, OK)
        await asyncio.sleep(HOLD_S)
        assert one.running() <= max(places, LIMIT // 2)
        one.ask(LIMIT)
        assert one.running() <= max(places, LIMIT // 2)
        assert (one.running() > 0) is (places > 0)
        tries = one.link.tries
        await asyncio.sleep(10.0)
        assert one.link.tries <= tries + 10 * 20, "it asks on, no faster than ever"
        one.link.up = True
        await asyncio.sleep(3.0)
        assert one.keeper.warning() == ""
        await one.stop()
        await other.stop()

    run_virtual(story())


def test_in_a_storm_of_joining_and_leaving_no_more_runs_than_may():
    """Forty gateways come and go within a minute; each runs what it may, and those that stay have their part."""

    async def story() -> None:
        store, rng = Store(), random.Random(3)
        here: list[Gateway] = []

        def running() -> int:
            return sum(gateway.running() for gateway in here)

        for _ in range(40):
            gateway = Gateway(store)
            here.append(gateway)
            await gateway.start()
            gateway.ask(3)
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            assert running() <= LIMIT
            for sink in [sink for each in here for sink in each.sinks if sink.lease and not sink.lease.settled]:
                if rng.random() < 0.5:
                    owner = next(each for each in here if sink in each.sinks)
                    owner.dispatcher.settle(sink.lease, OK)  # type: ignore[arg-type]
            if len(here) > 4:
                leaver = here.pop(rng.randrange(len(here)))
                await leaver.stop()
                await leaver.keeper.leave()  # what ran there is over: its engine's connections are closed
        await asyncio.sleep(10.0)
        assert running() <= LIMIT
        held = [each.keeper.holder.shares["w1"].held for each in here]
        assert sum(held) <= LIMIT
        # Who has less to do than its part may have given some of it to the others.
        to_do = [sum(not (sink.lease and sink.lease.settled) for sink in each.sinks) for each in here]
        assert all(has >= min(max(need, 1), LIMIT // len(here)) for has, need in zip(held, to_do, strict=True))
        for gateway in here:
            await gateway.stop()

    run_virtual(story())
