"""The dispatcher on virtual time with the real scheduler: decisions arrive once, re-entry is safe, one timer runs."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from virtual_loop import run_virtual

from gateway.dispatcher import Dispatcher
from gateway.scheduling.model import (
    Lease,
    Outcome,
    OutcomeKind,
    Reason,
    Refuse,
    Request,
    Signal,
    Ticket,
    WorkerChange,
    WorkerSpec,
    WorkerState,
)
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy, parse_policy

OK = Outcome(OutcomeKind.OK)
NUMBERS: Iterator[int] = iter(range(10**9))


def request(**changes: Any) -> Request:
    usual: dict[str, Any] = {
        "id": f"r{next(NUMBERS)}",
        "tenant": "default",
        "klass": 1,
        "model": "tiny",
        "pools": ("short-chat",),
        "prompt_tokens": 10,
        "max_output_tokens": 10,
        "queue_timeout_s": 30.0,
    }
    return Request(**{**usual, **changes})


class Sink:
    """An exchange that keeps what it hears; `then` runs inside the callback."""

    def __init__(self, then: Callable[["Sink", Lease], None] | None = None) -> None:
        self.then = then
        self.leases: list[Lease] = []
        self.refusals: list[tuple[Reason, bool]] = []

    def on_lease(self, lease: Lease) -> None:
        self.leases.append(lease)
        if self.then is not None:
            self.then(self, lease)

    def on_refused(self, refused: Refuse) -> None:
        assert refused.retry_after_s >= 0
        self.refusals.append((refused.reason, refused.evicted))


class Watched:
    """Counts leases as `explain` does, and the loop's timers."""

    def __init__(self) -> None:
        self.open = 0
        self.timers: list[asyncio.TimerHandle] = []

    def dispatched(self, lease: Lease) -> None:
        self.open += 1

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        self.open -= 1

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        handle = asyncio.get_running_loop().call_later(delay, callback)
        self.timers.append(handle)
        return handle

    def armed(self) -> int:
        now = asyncio.get_running_loop().time()
        return sum(not handle.cancelled() and handle.when() > now for handle in self.timers)


class Bench:
    """A dispatcher with a worker of two places."""

    def __init__(self, policy: Policy | None = None, seats: int = 2) -> None:
        self.watched = Watched()
        self.changes: list[WorkerChange] = []
        self.errors: list[BaseException] = []
        self.dispatcher = Dispatcher(
            Scheduler(policy or Policy(), random.Random(1)),
            clock=asyncio.get_running_loop().time,
            timers=self.watched,
            on_change=self.changes.append,
            on_error=self.errors.append,
            watch=self.watched,
        )
        if seats:
            self.add("w1", seats)

    def add(self, worker_id: str, seats: int, incarnation: str = "") -> None:
        spec = WorkerSpec(worker_id, "short-chat", frozenset({"tiny"}), max_num_seqs=seats, incarnation=incarnation)
        self.dispatcher.observe(spec, Signal(self.dispatcher.now(), 0, 0, 0))

    def submit(self, sink: Sink, **changes: Any) -> Ticket:
        return self.dispatcher.submit(request(**changes), sink)

    def idle(self) -> bool:
        snapshot = self.dispatcher.snapshot()
        booked = sum(worker.booked_prefill_s + worker.booked_decode_s for worker in snapshot.workers)
        return (snapshot.queued, snapshot.in_flight, booked, self.watched.open) == (0, 0, 0, 0)


def test_a_lease_comes_at_once_and_the_next_when_one_ends():
    async def main() -> None:
        bench = Bench()
        sinks = [Sink() for _ in range(4)]
        for sink in sinks:
            bench.submit(sink)
        assert [len(sink.leases) for sink in sinks] == [1, 1, 0, 0]
        bench.dispatcher.first_token(sinks[0].leases[0])
        bench.dispatcher.progress(sinks[0].leases[0], 5)
        bench.dispatcher.settle(sinks[0].leases[0], OK)
        assert [len(sink.leases) for sink in sinks] == [1, 1, 1, 0]
        for sink in sinks[1:]:
            bench.dispatcher.settle(sink.leases[0], OK)
        assert bench.idle()

    run_virtual(main())


def test_a_sink_may_settle_and_submit_inside_its_callback():
    """A thousand requests that each end at once and start the next: no recursion, nothing lost, nothing twice."""

    async def main() -> None:
        bench = Bench(seats=1)
        ended: list[Sink] = []

        def chain(sink: Sink, lease: Lease) -> None:
            ended.append(sink)
            if len(ended) < 1000:
                bench.submit(Sink(chain))
            bench.dispatcher.settle(lease, OK)

        bench.submit(Sink(chain))
        assert len(ended) == 1000
        assert bench.idle()

    run_virtual(main())


def test_a_queued_request_is_given_up_at_its_time_by_the_one_timer():
    async def main() -> None:
        bench = Bench(seats=1)
        holder, waiting, patient = Sink(), Sink(), Sink()
        bench.submit(holder)
        bench.submit(patient, queue_timeout_s=50.0)
        bench.submit(waiting, queue_timeout_s=10.0)
        assert bench.watched.armed() == 1
        await asyncio.sleep(9.9)
        assert waiting.refusals == []
        await asyncio.sleep(0.2)
        assert waiting.refusals == [(Reason.QUEUE_TIMEOUT, True)]
        assert bench.watched.armed() == 1
        await asyncio.sleep(50)
        assert patient.refusals == [(Reason.QUEUE_TIMEOUT, True)]
        bench.dispatcher.settle(holder.leases[0], OK)
        assert bench.idle()

    run_virtual(main())


def test_a_cancelled_ticket_hears_nothing_more():
    async def main() -> None:
        bench = Bench(seats=1)
        holder, leaver, stayer = Sink(), Sink(), Sink()
        bench.submit(holder)
        ticket = bench.submit(leaver)
        bench.submit(stayer)
        bench.dispatcher.cancel(ticket)
        bench.dispatcher.settle(holder.leases[0], OK)
        assert (leaver.leases, leaver.refusals) == ([], [])
        assert len(stayer.leases) == 1
        bench.dispatcher.settle(stayer.leases[0], Outcome(OutcomeKind.CLIENT_GONE))
        assert bench.idle()

    run_virtual(main())


def test_a_failed_attempt_comes_back_with_another_worker():
    async def main() -> None:
        bench = Bench(seats=1)
        bench.add("w2", 1)
        sink = Sink()
        bench.submit(sink)
        first = sink.leases[0]
        bench.dispatcher.settle(first, Outcome(OutcomeKind.CONNECT_FAILED), retry=True)
        await asyncio.sleep(5)
        second = sink.leases[1]
        assert {first.worker, second.worker} == {"w1", "w2"}
        bench.dispatcher.settle(second, OK)
        assert bench.idle()

    run_virtual(main())


def test_a_broken_sink_keeps_nobody_else_from_a_decision():
    async def main() -> None:
        bench = Bench(seats=1)
        holder, after = Sink(), Sink()

        def breaks(sink: Sink, lease: Lease) -> None:
            raise RuntimeError("bug")

        class Deaf(Sink):
            def on_refused(self, refused: Refuse) -> None:
                raise ValueError("deaf")

        bench.submit(holder)
        bench.submit(Sink(breaks))
        bench.submit(after)
        bench.submit(Deaf(), may_queue=False)
        bench.dispatcher.settle(holder.leases[0], OK)
        assert len(after.leases) == 1, "the broken sink's place went on to the next"
        assert [type(error) for error in bench.errors] == [ValueError, RuntimeError]
        bench.dispatcher.settle(after.leases[0], OK)
        assert bench.idle()

    run_virtual(main())


def test_a_sink_that_settles_and_then_breaks_settles_once():
    async def main() -> None:
        bench = Bench(seats=1)

        def settles(sink: Sink, lease: Lease) -> None:
            bench.dispatcher.settle(lease, OK)
            raise RuntimeError("bug")

        bench.submit(Sink(settles))
        assert bench.idle()
        assert len(bench.errors) == 1

    run_virtual(main())


def test_worker_changes_are_told_and_draining_stops_new_work():
    async def main() -> None:
        bench = Bench()
        bench.dispatcher.drain("w1")
        sink = Sink()
        bench.submit(sink)
        assert sink.leases == []
        bench.dispatcher.drain("w1", on=False)
        assert len(sink.leases) == 1
        bench.dispatcher.forget("w1")
        bench.dispatcher.settle(sink.leases[0], OK)
        states = [change.state for change in bench.changes]
        assert WorkerState.DRAINING in states
        assert states[-1] is WorkerState.GONE
        late = Sink()
        bench.submit(late)
        assert late.refusals == [(Reason.NO_WORKER, False)]

    run_virtual(main())


def test_a_raised_limit_wakes_at_once():
    async def main() -> None:
        low = parse_policy("limits: {max_in_flight_per_worker: 1}")
        bench = Bench(low, seats=4)
        sinks = [Sink() for _ in range(3)]
        for sink in sinks:
            bench.submit(sink)
        assert [len(sink.leases) for sink in sinks] == [1, 0, 0]
        bench.dispatcher.adopt(Policy())
        assert [len(sink.leases) for sink in sinks] == [1, 1, 1]

    run_virtual(main())


def test_closing_refuses_what_waits_and_what_comes():
    async def main() -> None:
        bench = Bench(seats=1)
        holder, waiting, late = Sink(), Sink(), Sink()
        bench.submit(holder)
        bench.submit(waiting)
        bench.dispatcher.close()
        assert waiting.refusals == [(Reason.SHUTTING_DOWN, True)]
        bench.submit(late)
        assert late.refusals == [(Reason.SHUTTING_DOWN, False)]
        bench.dispatcher.settle(holder.leases[0], OK)
        assert bench.idle()
        bench.dispatcher.stop()
        assert bench.watched.armed() == 0

    run_virtual(main())


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_ends_with_empty_books(seed: int):
    """Each request ends in exactly one way, whoever leaves, fails or times out when."""

    async def main() -> None:
        rng = random.Random(seed)
        bench = Bench(seats=2)
        bench.add("w2", 2)
        sinks: list[Sink] = []
        ended = [0]

        async def client() -> None:
            sink = Sink()
            sinks.append(sink)
            await asyncio.sleep(rng.uniform(0, 5))
            ticket = bench.submit(sink, queue_timeout_s=rng.uniform(0.5, 5), klass=rng.randrange(3))
            patience = bench.dispatcher.now() + rng.uniform(0.1, 20)
            seen = 0
            while not sink.refusals:
                if len(sink.leases) > seen:
                    lease = sink.leases[seen]
                    seen += 1
                    await asyncio.sleep(rng.uniform(0.05, 3))
                    kind = rng.choice([OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.CLIENT_GONE, OutcomeKind.BUSY])
                    again = kind in {OutcomeKind.RESET, OutcomeKind.BUSY}
                    bench.dispatcher.settle(lease, Outcome(kind), retry=again)
                    if not again:
                        break
                elif bench.dispatcher.now() > patience:
                    bench.dispatcher.cancel(ticket)
                    break
                await asyncio.sleep(0.05)
            ended[0] += 1

        await asyncio.gather(*(client() for _ in range(60)))
        assert ended[0] == 60
        assert bench.idle()
        assert bench.errors == []

    run_virtual(main())


def test_leases_that_ran_out_hold_no_longer_than_the_clock_says():
    """Row 74: a loop that stood still runs exchanges first; nothing is placed by slots that are others' by then."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(
            Scheduler(Policy(), random.Random(1)),
            clock=loop.time,
            timers=loop,
            on_change=lambda change: None,
            on_error=lambda error: pytest.fail(repr(error)),
            watch=Watched(),
        )
        asked = []

        def overdue() -> None:
            asked.append(loop.time())
            dispatcher.lease_until = float("inf")
            dispatcher.lease({"w1": 0})

        dispatcher.govern(on=True)
        dispatcher.on_overdue = overdue
        dispatcher.on_waiting = lambda: asked.append(-1.0)
        dispatcher.observe(WorkerSpec("w1", "short-chat", frozenset({"tiny"}), max_num_seqs=4), None)
        dispatcher.lease({"w1": 4})
        dispatcher.lease_until = loop.time() + 20
        first, second = Sink(), Sink()
        dispatcher.submit(request(), first)
        assert len(first.leases) == 1
        await asyncio.sleep(25)
        dispatcher.submit(request(), second)
        assert not second.leases
        assert asked == [loop.time(), -1.0]
        dispatcher.settle(first.leases[0], OK)
        assert not second.leases, "what ends gives no place any more"
        dispatcher.close()
        dispatcher.stop()

    run_virtual(story())
