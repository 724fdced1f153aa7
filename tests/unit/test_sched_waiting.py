"""Tickets that are not running: bounds, timeouts, refusals, retries."""

from __future__ import annotations

import pytest
from sched_support import Bench, leases, names, policy, spec

from gateway.scheduling import waiting
from gateway.scheduling.model import OutcomeKind, Reason, Refuse, Requeue, TicketState

RETRIES = {"max_attempts": 3, "backoff_base_s": 0.1, "backoff_cap_s": 1.0}


def full(rules: object = None) -> Bench:
    bench = Bench(rules or policy(), spec(max_num_seqs=1))  # type: ignore[arg-type]
    bench.lease("first", tenant="first")
    return bench


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_when_full_the_newest_of_the_lowest_class_goes() -> None:
    bench = full(policy(admission={"max_queued": 3}))
    low1, low2, mid = (bench.submit(name, klass=klass) for name, klass in (("l1", 2), ("l2", 2), ("m", 1)))
    high = bench.submit("h", klass=0)
    assert (bench.reason(low2), bench.refusal(low2).evicted) == (Reason.SHED, True)
    assert high.state is mid.state is low1.state is TicketState.QUEUED
    late = bench.submit("l3", klass=2)
    assert (bench.reason(late), bench.refusal(late).evicted) == (Reason.QUEUE_FULL, False)


def test_bytes_are_bounded_and_nobody_goes_in_vain() -> None:
    bench = full(policy(admission={"max_queued_bytes": 1000}))
    low = bench.submit("l", klass=2, body_bytes=400)
    mid = bench.submit("m", klass=1, body_bytes=600)
    greedy = bench.submit("m2", klass=1, body_bytes=500)
    assert bench.reason(greedy) is Reason.QUEUE_FULL
    assert low.state is mid.state is TicketState.QUEUED
    fits = bench.submit("h", klass=0, body_bytes=400)
    assert fits.state is TicketState.QUEUED
    assert bench.reason(low) is Reason.SHED


def test_a_tenants_own_bound() -> None:
    bench = full(policy(tenants={"default": {}, "t": {"max_queued": 1}}))
    bench.submit("1")
    assert bench.reason(bench.submit("2")) is Reason.TENANT_QUEUED
    assert bench.submit("3", tenant="u").state is TicketState.QUEUED


def test_who_may_not_queue_hears_at_once() -> None:
    bench = full(policy(tenants={"default": {}, "none": {"max_in_flight": 0}}))
    assert bench.reason(bench.submit("1", may_queue=False)) is Reason.QUEUE_NEVER
    assert bench.reason(bench.submit("2", may_queue=False, tenant="none")) is Reason.TENANT_IN_FLIGHT
    bench.scheduler.drain("w", 0.0)
    assert bench.reason(bench.submit("3", may_queue=False)) is Reason.NO_WORKER
    assert bench.scheduler.snapshot(0.0).queued == 0


def test_bounds_follow_the_policy() -> None:
    bench = full(policy(admission={"max_queued": 1}))
    bench.submit("1")
    bench.take(bench.scheduler.adopt(policy(admission={"max_queued": 2}), 0.0))
    assert bench.submit("2").state is TicketState.QUEUED
    assert bench.reason(bench.submit("3")) is Reason.QUEUE_FULL


def test_retry_after_grows_with_the_backlog() -> None:
    bench = full(policy(admission={"max_queued": 40}))
    for n in range(40):
        bench.submit(f"q{n}")
    late = bench.refusal(bench.submit("late"))
    assert 40.0 <= late.retry_after_s <= 60.0


# -- time ------------------------------------------------------------------------------------------------------------


def test_queue_timeout_and_deadline() -> None:
    bench = full()
    short, long = bench.submit("s", queue_timeout_s=2.0), bench.submit("l", queue_timeout_s=20.0, deadline=5.0)
    assert bench.scheduler.next_deadline() == 2.0
    bench.to(1.9)
    assert short.state is TicketState.QUEUED
    bench.to(2.0)
    assert (bench.reason(short), bench.refusal(short).evicted) == (Reason.QUEUE_TIMEOUT, True)
    bench.to(5.0)
    assert bench.reason(long) is Reason.DEADLINE
    assert bench.scheduler.next_deadline() == 10.0  # to look whether the worker gets on


def test_what_is_due_happens_before_a_place_is_given() -> None:
    """Nobody is sent after its deadline, even where the timer is late."""
    bench = Bench(policy(), spec(max_num_seqs=1))
    first = bench.lease("first")
    late, other = bench.submit("late", deadline=1.0), bench.submit("other")
    bench.now = 1.5
    assert names(bench.settle(first)) == ["other"]
    assert bench.reason(late) is Reason.DEADLINE
    assert other.lease is not None
    assert bench.reason(bench.submit("past", deadline=1.0)) is Reason.DEADLINE


def test_waiting_for_workers_that_may_return_ends_as_no_worker() -> None:
    bench = Bench(policy(), spec())
    bench.scheduler.drain("w", 0.0)
    ticket = bench.submit("r", queue_timeout_s=3.0)
    assert ticket.state is TicketState.QUEUED
    bench.to(3.0)
    assert bench.reason(ticket) is Reason.NO_WORKER


def test_nothing_that_could_come_back_is_told_at_once() -> None:
    assert Bench(policy()).submit("r").state is TicketState.ENDED
    empty = Bench(policy())
    assert empty.reason(empty.submit("r")) is Reason.NO_WORKER
    bench = Bench(policy(), spec())
    assert bench.reason(bench.submit("1", model="unknown")) is Reason.MODEL_NOT_FOUND
    assert bench.reason(bench.submit("2", pools=("b",))) is Reason.NO_WORKER


def test_the_last_worker_gone_ends_what_waits() -> None:
    bench = full()
    ticket = bench.submit("r")
    bench.take(bench.scheduler.forget("w", 0.0))
    assert (bench.reason(ticket), bench.refusal(ticket).evicted) == (Reason.NO_WORKER, True)


def test_too_long_for_every_worker() -> None:
    bench = Bench(policy(), spec(max_model_len=1000), spec("v", max_model_len=2000))
    assert bench.reason(bench.submit("1", prompt_tokens=4001)) is Reason.CONTEXT_TOO_LONG
    assert bench.lease("2", prompt_tokens=3000).worker == "v"
    assert bench.reason(bench.submit("3", prompt_tokens=2001, prompt_exact=True)) is Reason.CONTEXT_TOO_LONG


def test_a_change_of_workers_changes_what_those_that_wait_need() -> None:
    bench = Bench(policy(), spec(max_model_len=4000, max_num_seqs=1), spec("v", max_model_len=1000, max_num_seqs=1))
    bench.lease("x", prompt_tokens=2000)
    bench.lease("y", prompt_tokens=100)
    waits = bench.submit("big", prompt_tokens=2500)
    exact = bench.submit("exact", prompt_tokens=2500, prompt_exact=True)
    bench.take(bench.scheduler.forget("w", 0.0))
    assert bench.reason(exact) is Reason.CONTEXT_TOO_LONG
    assert bench.reason(waits) is Reason.CONTEXT_TOO_LONG


# -- retries ---------------------------------------------------------------------------------------------------------


def two(**sections: object) -> Bench:
    return Bench(policy(retries=RETRIES, **sections), spec("w"), spec("v"))


def test_the_first_retry_goes_to_another_worker_at_once() -> None:
    bench = two()
    lease = bench.lease("r")
    effects = bench.settle(lease, OutcomeKind.RESET, retry=True)
    assert next(type(effect) for effect in effects) is Requeue
    again = lease.ticket.lease
    assert again is not None
    assert again.worker != lease.worker
    assert lease.ticket.attempts == 2


def test_attempts_are_bounded_and_later_ones_back_off() -> None:
    bench = two()
    bench.observe(spec("u"))
    lease = bench.lease("r")
    bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    ticket = lease.ticket
    second = ticket.lease
    assert second is not None
    bench.settle(second, OutcomeKind.SERVER_ERROR, retry=True)
    assert ticket.lease is None
    assert 0.0 < ticket.not_before <= 0.2
    bench.to(0.2)
    third = ticket.lease
    assert third is not None
    assert {lease.worker, second.worker, third.worker} == {"u", "v", "w"}
    bench.settle(third, OutcomeKind.SERVER_ERROR, retry=True)
    assert (bench.reason(ticket), bench.refusal(ticket).evicted) == (Reason.ATTEMPTS_EXHAUSTED, False)


def test_the_same_worker_again_only_where_there_is_no_other_and_after_a_pause() -> None:
    bench = Bench(policy(retries=RETRIES), spec())
    lease = bench.lease("r")
    bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    ticket = lease.ticket
    assert ticket.lease is None
    assert ticket.excluded == frozenset()
    bench.to(0.1)
    assert ticket.lease is not None


def test_who_waits_for_another_worker_goes_back_when_that_one_leaves() -> None:
    bench = Bench(policy(retries=RETRIES), spec("w"), spec("v", max_num_seqs=1))
    held = [bench.lease(f"h{n}") for n in range(3)]
    mine = next(lease for lease in held if lease.worker == "w")
    bench.settle(mine, OutcomeKind.SERVER_ERROR, retry=True)
    ticket = mine.ticket
    assert ticket.excluded == {"w"}
    assert ticket.lease is None
    bench.observe(spec("u", pool="elsewhere"))
    assert ticket.excluded == {"w"}
    bench.take(bench.scheduler.drain("v", 0.0))
    assert ticket.lease is not None
    assert ticket.lease.worker == "w"


def test_our_own_fault_excludes_nobody() -> None:
    bench = two()
    lease = bench.lease("r")
    bench.settle(lease, OutcomeKind.LOCAL, retry=True)
    assert lease.ticket.excluded == frozenset()
    assert lease.ticket.lease is not None


def test_the_budget_bounds_retries() -> None:
    bench = Bench(policy(retries=RETRIES, health={"consecutive_failures": 1000}), spec("w"), spec("v"))
    reasons = []
    for n in range(30):
        lease = bench.lease(str(n))
        bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
        if lease.ticket.lease is None:
            reasons.append(bench.reason(lease.ticket))
        else:
            bench.settle(lease.ticket.lease, OutcomeKind.CLIENT_GONE)
    assert reasons == [Reason.RETRY_BUDGET] * 20


def test_a_crash_costs_no_request_that_had_not_streamed() -> None:
    bench = Bench(policy(retries=RETRIES), spec("w", max_num_seqs=40), spec("v", max_num_seqs=80))
    held = [bench.lease(str(n)) for n in range(60)]
    victims = [lease for lease in held if lease.worker == "w"]
    assert len(victims) > 20
    for lease in victims:
        bench.settle(lease, OutcomeKind.RESET, retry=True)
    assert not [effect for effect in bench.effects if isinstance(effect, Refuse)]
    assert bench.shown("v").leases == 60
    assert bench.shown("w").state == "ejected"


@pytest.mark.parametrize(
    ("kind", "deadline", "reason"),
    [(OutcomeKind.DEADLINE, None, Reason.DEADLINE), (OutcomeKind.RESET, 1.0, Reason.DEADLINE)],
)
def test_time_that_ran_out_ends_it(kind: OutcomeKind, deadline: float | None, reason: Reason) -> None:
    bench = two()
    lease = bench.lease("r", deadline=deadline)
    bench.now = 1.0
    bench.settle(lease, kind, retry=True)
    assert bench.reason(lease.ticket) is reason


def test_a_retry_keeps_its_deadline_and_what_is_left_of_its_wait() -> None:
    bench = Bench(policy(retries=RETRIES), spec(max_num_seqs=1))
    first = bench.lease("first")
    ticket = bench.submit("r", queue_timeout_s=10.0, deadline=100.0)
    bench.to(4.0)
    bench.settle(first)
    bench.to(50.0)
    assert ticket.lease is not None
    bench.settle(ticket.lease, OutcomeKind.SERVER_ERROR, retry=True)
    assert (ticket.waited_s, ticket.queue_until) == (4.0, 56.0)


def test_no_retry_where_nothing_is_left_to_try() -> None:
    bench = Bench(policy(retries=RETRIES), spec(max_model_len=4000), spec("v", pool="b", max_model_len=1000))
    gone, long, closed = (bench.lease(name, pools=pools, prompt_tokens=size) for name, pools, size in
                          (("g", ("b",), 10), ("l", ("a", "b"), 3000), ("c", ("b",), 10)))  # fmt: skip
    bench.scheduler.forget("w", 0.0)
    bench.settle(long, OutcomeKind.RESET, retry=True)
    assert bench.reason(long.ticket) is Reason.CONTEXT_TOO_LONG
    bench.scheduler.forget("v", 0.0)
    bench.settle(gone, OutcomeKind.RESET, retry=True)
    assert bench.reason(gone.ticket) is Reason.NO_WORKER
    bench.take(bench.scheduler.close(0.0))
    bench.settle(closed, OutcomeKind.RESET, retry=True)
    assert bench.reason(closed.ticket) is Reason.SHUTTING_DOWN


def test_a_worker_that_leaves_during_a_backoff() -> None:
    bench = Bench(policy(retries=RETRIES), spec())
    lease = bench.lease("r")
    bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    bench.scheduler.forget("w", 0.0)
    bench.to(0.2)
    assert bench.reason(lease.ticket) is Reason.NO_WORKER


def test_books_of_pools_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_POOLS", 3)
    bench = Bench(policy(), *(spec(f"w{n}", f"p{n}") for n in range(9)))
    for n in range(9):
        bench.settle(bench.lease(str(n), pools=(f"p{n}",)))
    assert len(bench.scheduler._waiting._pools) == 3


@pytest.mark.parametrize("floor", [0.05, 0.0])
def test_the_low_class_goes_on_by_its_floor_or_is_told_in_time(floor: float) -> None:
    """BR-07-07: two places, high requests always queued for 20 s, five low ones that wait 15 s at the longest."""
    rules = policy(
        classes=[{"name": "high"}, {"name": "low", "floor": floor}],
        default_class="high",
        admission={"reject_when_hopeless": False},
    )
    bench = Bench(rules, spec(max_num_seqs=2))
    running = [bench.lease(f"first{at}", klass=0) for at in range(2)]
    for number in range(10):
        bench.submit(f"h{number}", klass=0)
    low = [bench.submit(f"l{number}", klass=1, queue_timeout_s=15.0) for number in range(5)]
    waits = []
    for step in range(1, 81):
        bench.to(step * 0.25)
        waits += [lease.queued_s for lease in running if lease.ticket.request.klass == 0]
        running += leases(bench.settle(running.pop(0)))
        bench.submit(f"x{step}", klass=0)
    served = [one for one in low if one.attempts]
    assert len(served) >= 3 if floor else not served
    for one in low:
        if not one.attempts:
            assert bench.reason(one) is Reason.QUEUE_TIMEOUT
            assert bench.refusal(one).retry_after_s >= 1.0
    assert sorted(waits)[int(0.95 * len(waits))] < 5.0, "who is high hardly notices"
