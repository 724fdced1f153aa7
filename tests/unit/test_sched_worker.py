"""A worker's ledger, what reports add to it, and the numbers it keeps for balancers."""

from __future__ import annotations

from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_support import request, spec, worker

from gateway.scheduling.model import Cost, Lease, Signal, Ticket, WorkerState
from gateway.scheduling.worker import FADE_S, QUANTUM_S, STALE_FACTOR, Worker, quantise


def lease_on(one: Worker, cost: Cost, canary: bool = False) -> Lease:
    lease = Lease(Ticket(request(), None, 0.0, 1.0), one.id, "a", cost, 0.0, 0.0, canary=canary, booked_on=one)
    one.book(lease)
    return lease


@given(st.floats(0.0, 1e12) | st.integers(0, 1 << 50).map(lambda halves: halves * QUANTUM_S / 2))
def test_seconds_are_rounded_to_whole_quanta_halves_to_even(seconds: float) -> None:
    assert quantise(seconds) == round(seconds / QUANTUM_S) * QUANTUM_S


COST = Cost(2, quantise(0.5), quantise(3.0), 700)


def test_what_was_booked_is_given_back_and_nothing_else() -> None:
    one = worker()
    first, second = lease_on(one, COST), lease_on(one, Cost(1, quantise(0.1), quantise(0.7), 5), canary=True)
    assert (one.leases, one.in_flight, one.canaries, one.kv_tokens) == (2, 3, 1, 705)
    one.give_back(second)
    assert (one.prefill_s, one.decode_s) == (COST.prefill_s, COST.decode_s)
    one.give_back(first)
    assert (one.leases, one.in_flight, one.canaries, one.kv_tokens) == (0, 0, 0, 0)
    assert (one.prefill_s, one.decode_s) == (0.0, 0.0)


def test_first_token_drops_prefill_and_tokens_shrink_decode() -> None:
    one = worker()
    lease = lease_on(one, COST)
    one.answered(lease)
    assert one.prefill_s == 0.0
    one.produced(lease, 25, 0.0)
    assert one.decode_s == pytest.approx(1.5)
    one.produced(lease, 10_000, 0.0)
    assert one.decode_s == lease.decode_left_s == 0.0
    one.give_back(lease)
    assert (one.prefill_s, one.decode_s) == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.integers(0, 400)), max_size=30), st.randoms())
def test_sums_are_exact_in_any_order(costs: list[tuple[float, float, int]], order: object) -> None:
    one = worker()
    held = [lease_on(one, Cost(1, quantise(a), quantise(b), n)) for a, b, n in costs]
    for lease, (_, _, tokens) in zip(held, costs, strict=True):
        one.produced(lease, tokens, 0.0)
    order.shuffle(held)  # type: ignore[attr-defined]
    for lease in held:
        one.give_back(lease)
    assert (one.prefill_s, one.decode_s, one.kv_tokens) == (0.0, 0.0, 0)


def test_quantum_is_small_and_binary() -> None:
    assert quantise(1.0) == 1.0
    assert abs(quantise(0.1) - 0.1) <= QUANTUM_S / 2


def test_price_books_places_within_the_limit() -> None:
    one = worker(max_model_len=120)
    one.limit = 2
    one.refresh(0.0, 0.1, 0.95)
    cost = one.price(100, 100, 50, 5)
    assert cost.count == 2
    assert cost.kv_tokens == 120 * 5
    assert cost.prefill_s == pytest.approx(one.step.prefill_s(100), abs=QUANTUM_S)
    assert one.price(100, 100, 50, 1, held=90).prefill_s < cost.prefill_s


def test_report_adds_what_is_not_ours_and_fades() -> None:
    one = worker(kv_tokens=10_000)
    lease_on(one, COST)
    one.observe(Signal(10.0, running=5, waiting=2, kv_used_tokens=2700))
    one.refresh(10.0, 0.1, 0.9)
    assert one.load == 7.0
    assert one.kv_used == 2700
    assert one.kv_free == pytest.approx(9000 - 2700)
    full = one.base_s
    one.refresh(12.0, 0.1, 0.9)
    weight = exp(-2.0 / FADE_S)
    assert one.load == pytest.approx(2 + 5 * weight)
    assert one.kv_used == pytest.approx(700 + 2000 * weight)
    assert one.base_s < full


def test_report_never_takes_from_the_ledger() -> None:
    one = worker()
    lease = lease_on(one, COST)
    one.observe(Signal(0.0, running=0, waiting=0, kv_used_tokens=0))
    one.refresh(0.0, 0.1, 0.95)
    assert one.load == 2.0
    assert one.kv_free == inf
    one.answered(lease)
    one.refresh(0.0, 0.1, 0.95)
    assert one.cached_until == pytest.approx(3.0, abs=0.01)


def test_stale_report_is_neither_idle_nor_full() -> None:
    one = worker(kv_tokens=1000)
    one.observe(Signal(0.0, running=50, waiting=50, kv_used_tokens=990))
    lease_on(one, Cost(1, 0.0, 0.0, 100))
    one.refresh(3.5, 0.1, 1.0)
    assert one.load == pytest.approx(STALE_FACTOR)
    assert one.kv_used == pytest.approx(120)
    assert one.cached_until == inf


def test_recent_failures_weigh_on_the_score_and_make_the_numbers_short_lived() -> None:
    one = worker()
    one.health.penalty = 2.0
    one.refresh(0.0, 0.1, 0.95)
    assert one.base_s == 2.0
    assert one.cached_until < 1.0


def test_state_says_most_about_why_there_is_no_work() -> None:
    one = worker()
    assert one.state is WorkerState.READY
    assert one.in_rotation
    assert "w ready 0/0" in repr(one)
    one.draining = True
    assert one.state is WorkerState.DRAINING
    assert not one.in_rotation
    one.health.state = WorkerState.EJECTED
    assert one.state is WorkerState.EJECTED
    one.gone = True
    assert one.state is WorkerState.GONE


def test_new_facts_replace_the_old() -> None:
    one = worker()
    one.describe(spec(max_model_len=None, preset="llama3-8b/l4", max_num_batched_tokens=0))
    assert one.step.W == 0.062
    assert one.max_len > 10**9
    assert one.chunk_s > 0.0


def promised_on(one: Worker, cost: Cost, expected: int = 100) -> Lease:
    ticket = Ticket(request(expected_output=expected), None, 0.0, 1.0)
    lease = Lease(ticket, one.id, "a", cost, 0.0, 0.0, booked_on=one, tpot_slo_s=0.1)
    one.book(lease)
    return lease


def test_a_stream_with_a_promise_counts_from_its_first_token_to_its_end() -> None:
    one = worker()
    lease = promised_on(one, COST)
    assert (len(one.slack), one.promised) == (0, 2)
    lease.first_token_at = 1.0
    one.answered(lease)
    assert len(one.slack) == 1
    one.give_back(lease)
    assert (len(one.slack), one.promised, lease.breaks_at_s) == (0, 0, None)


def test_prefill_sent_before_the_first_token_takes_slack_too() -> None:
    early, late = worker(), worker()
    for one in (early, late):
        one.refresh(0.0, 0.1, 0.95)
    first = promised_on(early, COST, expected=60)
    promised_on(early, Cost(1, quantise(3.0), 0.0, 1))
    early.answered(first)
    alone = promised_on(late, COST, expected=60)
    late.answered(alone)
    assert early.slack.broken_by(1.0) > late.slack.broken_by(1.0)


def test_a_stream_that_outgrows_its_estimate_is_judged_by_what_it_has_lost() -> None:
    one = worker()
    lease = promised_on(one, COST, expected=10)
    lease.first_token_at = 0.0
    one.answered(lease)
    one.slack.delay(5.0)
    assert len(one.slack) == 0  # ten tokens could not bear that
    lease.tokens = 400
    one.produced(lease, 400, 12.0)
    assert len(one.slack) == 1  # four hundred could
    lease.tokens = 500
    one.produced(lease, 100, 90.0)
    assert len(one.slack) == 0
    one.give_back(lease)
    assert len(one.slack) == 0


def test_progress_before_the_first_token_says_nothing_of_slack() -> None:
    one = worker()
    lease = promised_on(one, COST, expected=10)
    lease.tokens = 50
    one.produced(lease, 50, 1.0)
    assert len(one.slack) == 0


def test_a_guest_holds_its_place_until_its_first_token_or_its_end() -> None:
    one = worker()
    ended, answered = (
        Lease(Ticket(request(), None, 0.0, 1.0), one.id, "a", COST, 0.0, 0.0, booked_on=one, guest=True) for _ in "ab"
    )
    one.book(ended)
    one.book(answered)
    assert one.guests == 2
    one.give_back(ended)
    one.answered(answered)
    assert one.guests == 0
    one.give_back(answered)
    assert one.guests == 0
