"""Whether a request that has to wait can still be served in time."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
from sched_support import Bench, policy, spec

from gateway.scheduling.limits import full_limit
from gateway.scheduling.model import Lease, Order, OutcomeKind, Reason, Ticket, TicketState
from gateway.scheduling.outlook import DOUBT, FRESH_S, RETURNS_S, SURE, before, freed_per_s
from gateway.scheduling.pace import LEAST_RUNS, Pace

CLASSES = [{"name": "high"}, {"name": "mid"}, {"name": "low", "floor": 0.5}]


def busy(took_s: float = 1.0, runs: int = LEAST_RUNS, **sections: Any) -> Bench:
    """One worker with two places, both taken, whose requests were seen to take so long."""
    bench = Bench(policy(**{"classes": CLASSES, **sections}), spec())
    for n in range(runs):
        lease = bench.lease(str(n))
        bench.now += took_s
        bench.settle(lease)
    for n in range(2):
        bench.lease(f"held {n}", tenant="holder")
    return bench


def queued(bench: Bench, count: int, **changes: Any) -> int:
    """Submit so many; how many of them may wait."""
    tickets = [bench.submit(str(n), **changes) for n in range(count)]
    for ticket in tickets:
        if ticket.state is TicketState.ENDED:
            assert bench.reason(ticket) is Reason.HOPELESS
            assert not bench.refusal(ticket).evicted
            assert 1.0 <= bench.refusal(ticket).retry_after_s <= 60.0
    return sum(ticket.state is TicketState.QUEUED for ticket in tickets)


def room(per_s: float, seconds: float) -> int:
    """Tickets that the formula of `outlook` lets wait."""
    expected = DOUBT * per_s * seconds
    return int(expected + SURE * sqrt(expected) + SURE)


def test_what_cannot_get_a_place_before_its_wait_ends_is_refused_at_once() -> None:
    assert queued(busy(), 100, queue_timeout_s=5.0) == room(2.0, 5.0)
    assert queued(busy(took_s=10.0), 100, queue_timeout_s=5.0) == room(0.2, 5.0)


def test_only_where_the_policy_says_so_and_enough_was_measured() -> None:
    assert queued(busy(admission={"reject_when_hopeless": False}), 100, queue_timeout_s=5.0) == 100
    assert queued(busy(runs=LEAST_RUNS - 1), 100, queue_timeout_s=5.0) == 100


def test_the_deadline_counts_and_the_prefill_with_it() -> None:
    bench = busy()
    assert queued(bench, 100, queue_timeout_s=30.0, deadline=bench.now + 5.0) == room(2.0, 5.0)
    # Half of what the prefill of 100,000 tokens should take is more than the time there is.
    long = {"queue_timeout_s": 30.0, "prompt_tokens": 100_000}
    bench = busy()
    assert queued(bench, 9, deadline=bench.now + 5.0, **long) == SURE
    bench = busy()
    assert queued(bench, 9, deadline=bench.now + 5.0, prefix_hashes=(1,), prefix_ends=(99_000,), **long) == 9
    bench = busy()
    assert queued(bench, 9, deadline=bench.now + 5.0, prefill_tokens=100, **long) == 9


def test_a_free_place_is_given_however_bad_the_outlook() -> None:
    bench = busy(took_s=100.0)
    queued(bench, 20, queue_timeout_s=1.0)
    bench.observe(spec("v"))
    bench.to(bench.now + 60.0)
    bench.now += 1.0
    assert bench.submit(queue_timeout_s=0.01).lease is not None


def test_those_of_lower_classes_do_not_stand_before_it() -> None:
    bench = busy()
    queued(bench, 100, klass=2, queue_timeout_s=600.0)
    assert queued(bench, 1, klass=0, queue_timeout_s=0.1) == 1


def test_those_of_higher_classes_do_but_a_floor_is_a_floor() -> None:
    bench = busy()
    queued(bench, 100, klass=0, queue_timeout_s=600.0)
    assert queued(bench, 1, klass=1, queue_timeout_s=5.0) == 0
    assert queued(bench, 1, klass=2, queue_timeout_s=5.0) == 1


def test_a_flood_of_one_tenant_does_not_turn_another_away() -> None:
    bench = busy()
    queued(bench, 100, tenant="flood", queue_timeout_s=600.0)
    assert queued(bench, 10, tenant="quiet", queue_timeout_s=2.0) == room(2.0, 2.0) // 2


def counted(bench: Bench, ticket: Ticket, floor: float = 0.0) -> float:
    assert ticket.place is not None
    flow = ticket.place.line.flow
    return before(ticket, ticket.place.lane, flow, floor)


def test_who_stands_before_whom() -> None:
    tenants = {"default": {}, "heavy": {"weight": 3}, "full": {"max_in_flight": 0}}
    bench = busy(tenants=tenants, admission={"reject_when_hopeless": False})
    mine = [bench.submit(str(n)) for n in range(4)]
    shorter = bench.submit("shorter", prompt_tokens=10)
    assert counted(bench, mine[0]) == 4.0  # of one age: the sample can't tell, all count
    assert counted(bench, shorter) == 0.0
    for tenant, count in (("heavy", 30), ("other", 2), ("full", 9)):
        for n in range(count):
            bench.submit(str(n), tenant=tenant)
    last = bench.submit("last")
    assert counted(bench, last) == 5.0 + 15.0 + 2.0
    for n in range(7):
        bench.submit(str(n), klass=0)
        bench.submit(str(n), klass=0, tenant="full")
    assert counted(bench, last) == 22.0 + 7.0
    assert counted(bench, last, floor=0.9) == 22.0 / 0.9
    bench.scheduler._queue.step_out(last)
    lane = mine[0].place.lane if mine[0].place is not None else None
    assert lane is not None
    assert before(last, lane, bench.scheduler._tenants.get("t").flow(1), 0.0) == 0.0


def test_a_long_line_is_counted_by_a_sample() -> None:
    bench = busy(admission={"reject_when_hopeless": False, "max_queued": 5000})
    for n in range(2000):
        bench.submit(str(n))
    for n in range(100):
        bench.submit(str(n), prompt_tokens=5000)
    assert counted(bench, bench.submit("last")) == pytest.approx(2000.0, rel=0.05)


def per_s(bench: Bench, took_s: float | None) -> float | None:
    pace = Pace()
    for _ in range(LEAST_RUNS if took_s is not None else 0):
        pace.took(took_s or 0.0)
    bench.now += FRESH_S
    (lane,) = bench.scheduler._fleet.lanes.values()
    return freed_per_s(lane, bench.scheduler._policy, lambda pool: pace, bench.now)


def test_places_come_free_as_fast_as_what_runs_takes() -> None:
    bench = busy()
    assert per_s(bench, None) is None
    assert per_s(bench, 4.0) == 0.5
    assert per_s(bench, 0.0) == 2000.0
    worker = bench.scheduler._fleet.workers["w"]
    (lane,) = bench.scheduler._fleet.lanes.values()
    bench.observe(spec("v", "b", max_num_seqs=7))  # it starts slowly: all its places may come
    assert per_s(bench, 1.0) == 9.0
    bench.scheduler.drain("v", bench.now)
    assert per_s(bench, 1.0) == 2.0
    assert freed_per_s(lane, bench.scheduler._policy, lambda pool: Pace(), bench.now) == 2.0  # as just measured
    bench.scheduler.order("w", Order(drain=True), bench.now)
    assert per_s(bench, 1.0) is None
    bench.scheduler.order("w", Order(eject=True), bench.now)
    assert per_s(bench, 1.0) is None
    bench.scheduler.order("w", Order(), bench.now)
    worker.leases = 1
    worker.health.cool_until = bench.now + 60.0
    worker.ready = False
    assert per_s(bench, 1.0) == full_limit(worker, bench.scheduler._policy) == 2


@pytest.mark.parametrize(("back_s", "places"), [(RETURNS_S / 2, 2.0), (RETURNS_S * 2, None)])
def test_workers_that_come_back_in_time_count(back_s: float, places: float | None) -> None:
    bench = busy(health={"connect_failures": 1, "ejection_s": back_s})
    lease = next(effect for effect in reversed(bench.effects) if isinstance(effect, Lease))
    bench.settle(lease, OutcomeKind.CONNECT_FAILED)
    assert bench.shown().state == "ejected"
    assert per_s(bench, 1.0) == places


def test_who_comes_after_a_quiet_hour_is_not_told_to_wait_for_long() -> None:
    """Little ended lately because little was asked for: what a place takes says how soon one becomes free."""
    bench = Bench(policy(classes=CLASSES, admission={"max_queued": 2}), spec())
    for n in range(3):
        lease = bench.lease(str(n))
        bench.now += 1.5
        bench.settle(lease)
    bench.now += 3600.0
    tickets = [bench.submit(str(n)) for n in range(7)]
    refused = [ticket for ticket in tickets if ticket.state is TicketState.ENDED]
    assert len(refused) == 3
    # Two places of 1.5 s, three requests in front: 2.25 s, and up to half as much again.
    assert all(bench.reason(ticket) is Reason.QUEUE_FULL for ticket in refused)
    assert all(bench.refusal(ticket).retry_after_s <= 4.0 for ticket in refused)
