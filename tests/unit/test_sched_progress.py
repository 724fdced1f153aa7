"""Whether a worker gets on: what counts as life, how long it may take, and what becomes of one that does nothing."""

from __future__ import annotations

from typing import Any

from sched_support import Bench, changes, policy, request, spec, worker

from gateway.scheduling.model import Cost, Lease, OutcomeKind, Signal, Ticket
from gateway.scheduling.progress import GAPS, LEAST_S, MARGIN, RECENT_S
from gateway.scheduling.watchdog import LOOK_S
from gateway.scheduling.worker import Worker

TTFT_S = 60.0


def sent(one: Worker, now: float, prefill_s: float = 0.0, predicted_s: float = 1.0, **changes: Any) -> Lease:
    cost = Cost(1, prefill_s, 0.0, 1)
    lease = Lease(Ticket(request(), None, 0, 1), one.id, "a", cost, now, 0.0, booked_on=one, **changes)
    lease.predicted_ttft_s = predicted_s
    one.book(lease)
    return lease


def answered(one: Worker, lease: Lease, now: float) -> None:
    one.answered(lease)
    one.watch.answered(lease, now)


def counted(one: Worker, now: float, tokens: int | None, running: int = 1) -> None:
    one.observe(Signal(now, running, 0, 0, tokens_total=tokens))


def proven(now: float = 0.0) -> Worker:
    """A worker that holds a streaming lease, answered as fast as predicted, with a report of that time."""
    one = worker()
    answered(one, sent(one, now - 1.0), now)
    counted(one, now, 100)
    return one


def allowed(one: Worker, now: float) -> float:
    return one.watch.stalls_at(now, TTFT_S)


def test_the_clock_starts_with_the_first_lease_and_with_a_probe() -> None:
    one = worker()
    sent(one, 5.0)
    sent(one, 7.0)
    assert allowed(one, 7.0) == 65.0
    sent(one, 9.0, canary=True)
    assert allowed(one, 9.0) == 69.0


def test_fifteen_seconds_without_a_sign_of_life_are_enough_when_all_is_known() -> None:
    one = proven()
    assert allowed(one, 0.0) == allowed(one, RECENT_S) == LEAST_S
    counted(one, 10.0, 100)
    assert allowed(one, 10.0) == LEAST_S
    counted(one, 11.0, 101)
    assert allowed(one, 11.0) == 11.0 + LEAST_S
    one.watch.moved(12.0)
    assert allowed(one, 12.0) == 12.0 + LEAST_S


def test_without_recent_reports_that_count_tokens_it_takes_longer() -> None:
    one = proven()
    assert allowed(one, RECENT_S + 0.1) == TTFT_S
    counted(one, 10.0, None)
    assert allowed(one, 10.0) == TTFT_S
    counted(one, 10.0, 100)
    assert allowed(one, 10.0) == LEAST_S


def test_an_engine_that_has_nothing_to_do_is_not_hung_its_client_reads_slowly() -> None:
    one = proven()
    counted(one, 1.0, 100, running=0)
    assert allowed(one, 1.0) == TTFT_S


def test_nobody_knows_how_long_prefills_take_where_nothing_was_ever_answered() -> None:
    one = worker()
    answered(one, sent(one, 0.0, predicted_s=0.0), 1.0)
    counted(one, 1.0, 100)
    assert allowed(one, 1.0) == 61.0


def test_long_pauses_between_tokens_are_waited_for_and_fade() -> None:
    one = proven()
    one.watch.produced(4.0)
    counted(one, 4.0, 100)
    assert allowed(one, 4.0) == 4.0 + GAPS * 4.0
    for _ in range(200):
        one.watch.produced(4.0)
    assert allowed(one, 4.0) == 4.0 + LEAST_S


def test_a_long_prefill_is_no_stall_but_has_its_time() -> None:
    one = proven()
    sent(one, 0.0, prefill_s=10.0)
    held = sent(one, 0.0, prefill_s=20.0)
    one.stretch = 1.5
    assert allowed(one, 0.0) == MARGIN * 20.0 * 1.5
    # A pause beside a prefill is the prefill's.
    one.watch.produced(9.0)
    assert allowed(one, 0.0) == 9.0 + MARGIN * 20.0 * 1.5
    answered(one, held, 10.0)
    # What was predicted as one second took ten: so may the next.
    assert allowed(one, 2.0) == 10.0 + MARGIN * 10.0 * 1.5 * 10.0


def test_the_longest_prefill_is_forgotten_with_the_last_one() -> None:
    one = proven()
    one.stretch = 1.0
    answered(one, sent(one, 0.0, prefill_s=20.0), 1.0)
    assert allowed(one, 1.0) == 1.0 + LEAST_S
    sent(one, 1.0, prefill_s=10.0)
    assert allowed(one, 1.0) == 1.0 + MARGIN * 10.0


# -- with the scheduler ----------------------------------------------------------------------------------------------


def fleet(**sections: Any) -> tuple[Bench, Lease]:
    """A worker w beside another of its pool that takes nothing, and a lease on w whose prompt is done."""
    bench = Bench(policy(**sections), spec("w", max_num_seqs=4), spec("v"))
    bench.scheduler.drain("v", 0.0)
    held = bench.lease("held")
    bench.scheduler.first_token(held, 0.0)
    bench.effects.clear()
    return bench, held


def run(bench: Bench, seconds: int, tokens: int = 0) -> None:
    """Let time go by with a report of w each second that says it has work and made `tokens` more tokens."""
    for _ in range(seconds):
        bench.to(bench.now + 1.0)
        total = 100 + int(bench.now) * tokens
        bench.observe(spec("w", max_num_seqs=4), Signal(bench.now, 1, 0, 0, tokens_total=total))


def test_a_hung_engine_is_out_within_twenty_seconds() -> None:
    """facts/reliability.md, row 31."""
    bench, _ = fleet()
    run(bench, 14)
    assert changes(bench.effects) == []
    run(bench, 6)
    assert changes(bench.effects)[0] == ("w", "ejected")
    assert bench.scheduler._fleet.workers["w"].health.soft


def test_an_engine_that_works_stays_whatever_its_clients_see() -> None:
    bench, _ = fleet()
    run(bench, 120, tokens=1)
    assert changes(bench.effects) == []


def test_answers_that_end_well_are_life() -> None:
    bench, _ = fleet()
    for n in range(6):
        lease = bench.lease(str(n))
        run(bench, 10)
        bench.settle(lease)
    assert changes(bench.effects) == []


def test_a_hung_engine_fails_its_probe_too() -> None:
    bench, _ = fleet()
    run(bench, 17)
    assert changes(bench.effects) == [("w", "ejected")]
    probe = bench.submit("probe", queue_timeout_s=600.0)
    run(bench, 30)
    assert changes(bench.effects)[:3] == [("w", "ejected"), ("w", "probing"), ("w", "ejected")]
    assert probe.lease is not None
    assert probe.lease.canary


def test_a_probing_worker_without_a_probe_is_left_alone() -> None:
    bench, held = fleet()
    run(bench, 14)
    bench.submit("keeps the timer", may_queue=False)
    for _ in range(5):
        bench.settle(bench.lease(), OutcomeKind.RESET)
    run(bench, 60)
    assert changes(bench.effects) == [("w", "ejected"), ("w", "probing")]
    bench.settle(held)


def test_what_a_pool_cannot_spare_stays_and_is_looked_at_again() -> None:
    bench, _ = fleet(health={"max_ejected": 0.0})
    run(bench, 60)
    assert changes(bench.effects) == []
    due = bench.scheduler.next_deadline()
    assert due is not None
    assert due - bench.now <= LOOK_S
    bench.take(bench.scheduler.adopt(policy(health={"max_ejected": 1.0}), bench.now))
    run(bench, 6)
    assert changes(bench.effects)[0] == ("w", "ejected")


def test_when_we_slept_ourselves_the_clock_starts_anew() -> None:
    """facts/reliability.md, row 74: a stopped and continued gateway blames nobody."""
    bench, _ = fleet()
    run(bench, 10)
    bench.now += 300.0
    bench.take(bench.scheduler.tick(bench.now))
    run(bench, 14)
    assert changes(bench.effects) == []
    run(bench, 6)
    assert changes(bench.effects)[0] == ("w", "ejected")


def test_a_worker_without_reports_has_its_time_to_first_token() -> None:
    bench, _ = fleet(timeouts={"ttft_s": 40.0})
    bench.to(39.9)
    assert changes(bench.effects) == []
    bench.to(40.0)
    assert changes(bench.effects) == [("w", "ejected")]


def test_those_that_are_idle_gone_or_out_already_are_not_looked_at() -> None:
    bench, held = fleet()
    bench.settle(held)
    bench.to(100.0)
    assert changes(bench.effects) == []
    assert bench.scheduler.next_deadline() is None
    bench, _ = fleet()
    bench.take(bench.scheduler.forget("w", 0.0))
    bench.to(100.0)
    assert changes(bench.effects) == [("w", "gone")]
    bench, _ = fleet(health={"connect_failures": 1, "ejection_s": 300.0, "ejection_cap_s": 300.0})
    bench.settle(bench.lease(), OutcomeKind.CONNECT_FAILED)
    bench.to(100.0)
    assert changes(bench.effects) == [("w", "ejected")]
