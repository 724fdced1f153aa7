"""What operators say about a worker by hand: drain, cap, eject, let back in."""

from sched_support import Bench, changes, names, policy, spec

from gateway.scheduling.model import NO_ORDER, Order, OutcomeKind, WorkerState


def ordered(bench: Bench, order: Order, worker: str = "w") -> list:
    return bench.take(bench.scheduler.order(worker, order, bench.now))


def test_a_drained_worker_gets_nothing_new_and_keeps_what_runs():
    bench = Bench(None, spec())
    running = bench.lease("a")
    assert changes(ordered(bench, Order(drain=True))) == [("w", "draining")]
    waiting = bench.submit("b")
    assert waiting.lease is None
    bench.settle(running)
    assert waiting.lease is None
    assert bench.shown().state is WorkerState.DRAINING
    assert bench.shown().operator == Order(drain=True)
    assert names(ordered(bench, NO_ORDER)) == ["b"]
    assert bench.shown().state is WorkerState.READY


def test_an_operators_drain_outlives_what_the_worker_says_of_itself():
    bench = Bench(None, spec())
    ordered(bench, Order(drain=True))
    bench.take(bench.scheduler.drain("w", bench.now, True))
    bench.take(bench.scheduler.drain("w", bench.now, False))
    assert bench.shown().state is WorkerState.DRAINING


def test_a_cap_bounds_the_places_and_lets_leases_finish():
    bench = Bench(None, spec())
    first, second = bench.lease("a"), bench.lease("b")
    ordered(bench, Order(cap=1))
    waiting = bench.submit("c")
    bench.settle(first)
    assert waiting.lease is None, "one is still running, and one is allowed"
    assert names(bench.settle(second)) == ["c"]
    assert bench.shown().limit == 1
    more = bench.submit("d")
    assert names(ordered(bench, Order())) == ["d"], "taking the cap off wakes who waits"
    assert more.lease is not None


def test_a_cap_above_the_limit_changes_nothing():
    bench = Bench(policy(limits={"max_in_flight_per_worker": 1}), spec())
    ordered(bench, Order(cap=9))
    assert bench.shown().limit == 1
    ordered(bench, Order(cap=0))
    assert bench.shown().limit == 0


def test_ejected_by_hand_stays_out_until_it_is_let_back_in():
    bench = Bench(None, spec())
    assert changes(ordered(bench, Order(eject=True))) == [("w", "ejected")]
    bench.to(25.0)
    assert bench.shown().state is WorkerState.EJECTED
    waiting = bench.submit("a")
    assert waiting.lease is None
    assert names(ordered(bench, NO_ORDER)) == ["a"]


def test_let_back_in_whatever_put_it_out():
    bench = Bench(policy(health={"slow_start_s": 0}), spec())
    for number in range(3):
        bench.settle(bench.lease(str(number)), OutcomeKind.CONNECT_FAILED)
    assert bench.shown().state is WorkerState.EJECTED
    waiting = bench.submit("x")
    effects = bench.take(bench.scheduler.readmit("w", bench.now))
    assert names(effects) == ["x"]
    assert waiting.lease is not None
    assert bench.shown().state is WorkerState.READY
    bench.settle(waiting.lease, OutcomeKind.CONNECT_FAILED)
    assert bench.shown().state is WorkerState.READY, "it starts with a clean slate"


def test_a_worker_that_rests_is_let_back_in_too():
    bench = Bench(None, spec())
    bench.settle(bench.lease("a"), OutcomeKind.BUSY, retry_after_s=60.0)
    waiting = bench.submit("b")
    assert names(bench.take(bench.scheduler.readmit("w", bench.now))) == ["b"]
    assert waiting.lease is not None


def test_orders_hold_for_the_next_incarnation_and_for_a_worker_that_comes_back():
    bench = Bench(None, spec(incarnation="1"))
    ordered(bench, Order(drain=True, cap=1))
    bench.observe(spec(incarnation="2"))
    assert bench.shown().operator == Order(drain=True, cap=1)
    bench.take(bench.scheduler.forget("w", bench.now))
    bench.observe(spec(incarnation="3"))
    assert bench.shown().state is WorkerState.DRAINING


def test_orders_for_workers_that_nobody_knows_wait_for_them():
    bench = Bench()
    assert ordered(bench, Order(cap=1)) == []
    assert bench.scheduler.readmit("w", bench.now) == []
    bench.observe(spec())
    assert bench.shown().limit == 1
    assert ordered(bench, Order(cap=1)) == [], "said again"


def test_tenants_as_they_are():
    bench = Bench(policy(tenants={"default": {}, "t": {"weight": 2, "max_in_flight": 3}}), spec())
    lease = bench.lease("a")
    bench.lease("b")
    bench.submit("c", tenant="other")
    other, t = bench.scheduler.tenants()
    assert (t.name, t.weight, t.in_flight, t.queued, t.max_in_flight, t.max_queued) == ("t", 2.0, 2, 0, 3, None)
    assert (other.name, other.in_flight, other.queued) == ("other", 0, 1)
    assert t.served[1] > 0
    bench.settle(lease)
