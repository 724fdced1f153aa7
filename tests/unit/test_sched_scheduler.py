"""The scheduler as the shell sees it: events in, effects out."""

from __future__ import annotations

import pytest
from sched_support import OK, Bench, changes, leases, names, policy, request, spec

from gateway.scheduling.model import (
    Cost,
    Lease,
    OutcomeKind,
    Reason,
    Signal,
    Ticket,
    TicketState,
)

HEALTH = {"consecutive_failures": 2, "connect_failures": 2, "ejection_s": 5.0, "max_ejected": 0.5}


def test_a_request_runs_at_once_and_gives_everything_back() -> None:
    bench = Bench(policy(), spec())
    ticket, effects = bench.scheduler.submit(request(), "mine", 0.0)
    (lease,) = effects
    assert isinstance(lease, Lease)
    assert (lease.ticket, lease, ticket.owner, ticket.state) == (ticket, ticket.lease, "mine", "leased")
    assert (lease.worker, lease.pool, lease.cost.count, lease.queued_s) == ("w", "a", 1, 0.0)
    assert lease.choice is not None
    assert lease.choice.told() == [("w", lease.score, None)]
    bench.scheduler.first_token(lease, 1.0)
    bench.scheduler.first_token(lease, 2.0)
    assert lease.first_token_at == 1.0
    bench.scheduler.progress(lease, 3, 2.0)
    assert lease.tokens == 3
    assert bench.scheduler.settle(lease, OK, 3.0) == []
    shown = bench.shown()
    assert (shown.leases, shown.in_flight, shown.booked_prefill_s, shown.booked_decode_s) == (0, 0, 0.0, 0.0)
    bench.scheduler.first_token(lease, 4.0)
    bench.scheduler.progress(lease, 3, 4.0)
    assert lease.tokens == 3
    with pytest.raises(RuntimeError, match="settled already"):
        bench.scheduler.settle(lease, OK, 4.0)


def test_a_lease_that_somebody_made_up_is_refused() -> None:
    fake = Lease(Ticket(request(), None, 0.0, 1.0), "w", "a", Cost(1, 0.0, 0.0, 0), 0.0, 0.0)
    with pytest.raises(RuntimeError, match="not made by the scheduler"):
        Bench(policy(), spec()).settle(fake)


def test_late_binding_the_next_free_worker_takes_it() -> None:
    bench = Bench(policy(), spec("w", max_num_seqs=1), spec("v", max_num_seqs=1))
    one, two = bench.lease("1"), bench.lease("2")
    ticket = bench.submit("3")
    assert ticket.state is TicketState.QUEUED
    bench.now = 2.0
    (lease,) = leases(bench.settle(two))
    assert (lease.ticket, lease.worker, lease.queued_s) == (ticket, two.worker, 2.0)
    assert one.worker != two.worker


def test_cancel_takes_exactly_one_ticket_out() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    running = bench.lease("r")
    tickets = [bench.submit(str(n), body_bytes=5) for n in range(3)]
    bench.scheduler.cancel(tickets[1], 0.0)
    bench.scheduler.cancel(tickets[1], 0.0)
    bench.scheduler.cancel(running.ticket, 0.0)
    assert running.ticket.state is TicketState.LEASED
    shown = bench.scheduler.snapshot(0.0)
    assert (shown.queued, shown.queued_bytes, shown.in_flight) == (2, 10, 1)
    assert names(bench.settle(running)) == ["0"]


def test_a_client_that_leaves_frees_its_tenants_place_every_time() -> None:
    """BR-07-01, BR-07-03: no slot is lost to failures or to clients that leave."""
    bench = Bench(policy(tenants={"default": {}, "t": {"max_in_flight": 1}}), spec())
    for n in range(50):
        bench.submit("bad", model="unknown")
        bench.settle(bench.lease(str(n)), OutcomeKind.CLIENT_GONE)
        bench.settle(bench.lease(str(n)), OutcomeKind.CLIENT_ERROR, status=400)
    assert bench.shown().state == "ready"


def test_a_burst_never_exceeds_the_limit() -> None:
    """BR-07-05."""
    bench = Bench(policy(), spec(max_num_seqs=4))
    tickets = [bench.submit(str(n)) for n in range(100)]
    assert bench.shown().in_flight == 4
    for ticket in tickets:
        assert ticket.lease is not None
        bench.settle(ticket.lease)
        assert bench.shown().in_flight <= 4
    assert bench.shown().in_flight == 0


def test_raised_limits_wake_at_once_and_lowered_ones_let_leases_finish() -> None:
    bench = Bench(policy(limits={"max_in_flight_per_worker": 1}), spec(max_num_seqs=8))
    held = [bench.lease("0")]
    for n in range(1, 6):
        bench.submit(str(n))
    adopted = bench.take(bench.scheduler.adopt(policy(limits={"max_in_flight_per_worker": 3}), 0.0))
    assert names(adopted) == ["1", "2"]
    held += leases(adopted)
    assert bench.scheduler.adopt(policy(limits={"max_in_flight_per_worker": 1}), 0.0) == []
    assert bench.shown().in_flight == 3
    assert names(bench.settle(held[0])) == []
    assert names(bench.settle(held[1])) == []
    assert names(bench.settle(held[2])) == ["3"]


def test_slots_leased_to_this_replica_bound_a_worker() -> None:
    bench = Bench(policy())
    assert bench.scheduler.set_slots("w", 0, 0.0) == []
    bench.observe(spec())
    ticket = bench.submit("r")
    assert ticket.lease is None
    assert names(bench.take(bench.scheduler.set_slots("w", 1, 0.0))) == ["r"]
    assert bench.scheduler.set_slots("w", 1, 0.0) == []
    other = bench.submit("s")
    assert other.lease is None
    assert names(bench.scheduler.set_slots("w", None, 0.0)) == ["s"]
    assert bench.shown().slots is None


def test_an_engine_that_preempts_gets_less_at_once() -> None:
    bench = Bench(policy(), spec(max_num_seqs=10))
    for n in range(10):
        bench.scheduler.first_token(bench.lease(str(n)), 0.0)
    bench.observe(spec(max_num_seqs=10), Signal(0.0, 10, 0, 0, 0))
    bench.now = 5.0
    bench.observe(spec(max_num_seqs=10), Signal(5.0, 10, 0, 0, 3))
    assert bench.shown().limit == 8


def test_predictions_follow_what_a_worker_does() -> None:
    bench = Bench(policy(), spec())
    worker = bench.scheduler._fleet.workers["w"]
    for n in range(60):
        lease = bench.lease(str(n), prompt_tokens=20_000)
        bench.now += 1.5 * lease.predicted_ttft_s
        bench.scheduler.first_token(lease, bench.now)
        bench.now += 0.7 * worker.step.decode_step_s(1, 20_000) * 99
        bench.settle(lease, output_tokens=100)
    assert 1.3 < worker.prefill_scale <= 2.0
    assert 0.5 <= worker.decode_scale < 0.8


def test_draining_finishes_and_resumes() -> None:
    bench = Bench(policy(), spec())
    lease = bench.lease("1")
    assert changes(bench.take(bench.scheduler.drain("w", 0.0))) == [("w", "draining")]
    assert bench.scheduler.drain("w", 0.0) == []
    assert bench.scheduler.drain("nobody", 0.0) == []
    ticket = bench.submit("2")
    assert bench.settle(lease) == []
    resumed = bench.scheduler.drain("w", 1.0, False)
    assert changes(resumed) == [("w", "ready")]
    assert names(resumed) == ["2"]
    assert ticket.lease is not None


def test_a_new_incarnation_takes_over_and_old_leases_settle_exactly() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    old = bench.lease("1")
    bench.submit("2")
    effects = bench.observe(spec(max_num_seqs=1, incarnation="next"))
    assert changes(effects) == [("w", "ready")]
    (new,) = leases(effects)
    states = [(one.incarnation, str(one.state), one.leases) for one in bench.scheduler.snapshot(0.0).workers]
    assert states == [("next", "ready", 1), ("", "gone", 1)]
    assert bench.settle(old, OutcomeKind.CONNECT_FAILED) == []
    assert len(bench.scheduler.snapshot(0.0).workers) == 1
    assert bench.shown().failures == 0
    bench.settle(new)


def test_the_end_of_an_old_incarnation_changes_no_state() -> None:
    bench = Bench(policy(health=HEALTH), spec(max_num_seqs=3))
    old = [bench.lease(str(n)) for n in range(3)]
    assert changes(bench.scheduler.forget("w", 0.0)) == [("w", "gone")]
    assert bench.scheduler.forget("w", 0.0) == []
    assert [changes(bench.settle(lease, OutcomeKind.CONNECT_FAILED)) for lease in old] == [[], [], []]
    assert bench.scheduler.snapshot(0.0).workers == ()


def test_new_facts_about_a_worker_count_at_once() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    bench.lease("1")
    bench.submit("2")
    bench.submit("3", model="m2", pools=("a",))
    assert names(bench.observe(spec(max_num_seqs=2))) == ["2"]


def test_failures_eject_then_a_probe_lets_it_back() -> None:
    bench = Bench(policy(health=HEALTH), spec("w"), spec("v"))
    for lease in [bench.lease(str(n)) for n in range(4)]:
        bench.settle(lease, OutcomeKind.SERVER_ERROR if lease.worker == "w" else OutcomeKind.OK)
    assert changes(bench.effects)[-1] == ("w", "ejected")
    assert all(bench.lease(str(n)).worker == "v" for n in range(2))
    waits = [bench.submit("3"), bench.submit("4")]
    effects = bench.to(10.0)
    assert changes(effects) == [("w", "probing")]
    assert [ticket.lease is not None for ticket in waits] == [True, False]
    probe = waits[0].lease
    assert probe is not None
    assert probe.canary
    effects = bench.settle(probe)
    assert changes(effects) == [("w", "ready")]
    assert names(effects) == ["4"]


def test_a_failed_probe_ejects_again() -> None:
    bench = Bench(policy(health=HEALTH), spec("w", max_num_seqs=4))
    held = [bench.lease(str(n)) for n in range(4)]
    for lease in held[:2]:
        bench.settle(lease, OutcomeKind.CONNECT_FAILED)
    assert bench.shown().state == "ejected"
    probe = bench.submit("p")
    bench.to(7.0)
    assert probe.lease is not None
    # What was sent before the ejection is not the probe; its end makes no second one possible.
    bench.settle(held[2])
    assert bench.shown().state == "probing"
    assert bench.submit("q").lease is None
    assert changes(bench.settle(probe.lease, OutcomeKind.RESET)) == [("w", "ejected")]
    bench.settle(held[3])
    assert bench.shown().returns_in_s > 5.0


def test_busy_is_not_broken() -> None:
    bench = Bench(policy(health=HEALTH), spec("w"), spec("v"))
    lease = bench.lease("1")
    bench.settle(lease, OutcomeKind.BUSY, retry_after_s=4.0)
    assert bench.shown(lease.worker).cooling_s == 4.0
    assert bench.shown(lease.worker).state == "ready"
    others = [bench.submit(str(n)) for n in range(3)]
    assert [ticket.lease is None or ticket.lease.worker != lease.worker for ticket in others] == [True] * 3
    assert others[2].lease is None
    assert names(bench.to(4.0)) == ["2"]


def test_a_worker_that_fails_fast_does_not_look_idle() -> None:
    """BR-06-09: each request fails at once; it must not draw all traffic before it is ejected, nor after."""
    bench = Bench(policy(), *(spec(f"w{n}", max_num_seqs=8) for n in range(2)))
    hits = 0
    for n in range(100):
        bench.now += 0.1
        lease = bench.lease(str(n))
        if lease.worker == "w0":
            hits += 1
            bench.settle(lease, OutcomeKind.SERVER_ERROR)
        else:
            bench.settle(lease)
    assert hits < 15


def test_a_report_that_contradicts_us_does_not_starve_a_worker() -> None:
    """BR-06-03: an engine that says it is full for ever, while we have nothing there, is still used."""
    bench = Bench(policy(), spec(kv_tokens=1000))
    bench.observe(spec(kv_tokens=1000), Signal(0.0, 30, 30, 990))
    first = bench.lease("1")
    assert bench.submit("2").lease is None
    assert names(bench.settle(first)) == ["2"]


def test_a_newcomer_gets_some_but_not_all() -> None:
    """BR-06-11."""
    bench = Bench(policy(), *(spec(f"w{n}", max_num_seqs=64) for n in range(4)))
    for n in range(80):
        bench.lease(str(n))
    bench.now = 30.0
    bench.observe(spec("new", max_num_seqs=64))
    got = [bench.lease(f"n{n}").worker for n in range(100)].count("new")
    assert 0 < got <= 40


def test_a_model_that_a_worker_denies_three_times_goes_elsewhere() -> None:
    bench = Bench(policy(), spec("w", max_num_seqs=1))
    for n in range(3):
        bench.settle(bench.lease(str(n)), OutcomeKind.MISROUTED, status=404)
    assert bench.shown().state == "ready"
    assert bench.reason(bench.submit("r")) is Reason.MODEL_NOT_FOUND
    bench.to(30.0)
    assert bench.submit("r").lease is not None


def test_what_a_tenant_is_charged_is_what_it_used() -> None:
    bench = Bench(policy(), spec())
    flow = bench.scheduler._tenants.get("t").flow(1)
    lease = bench.lease("1", expected_output=50)
    assert flow.counter == 200.0
    bench.settle(lease, prompt_tokens=120, output_tokens=10)
    assert flow.counter == 140.0
    lease = bench.lease("2")
    bench.scheduler.progress(lease, 7, 0.0)
    bench.settle(lease, OutcomeKind.CLIENT_GONE)
    assert flow.counter == 140.0 + 114.0
    lease = bench.lease("3", prefill_tokens=500)
    bench.settle(lease, OutcomeKind.RESET, retry=True)
    assert flow.counter == 254.0


def test_closing_ends_all_that_waits_and_all_that_comes() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    lease = bench.lease("1")
    ticket = bench.submit("2")
    bench.take(bench.scheduler.close(0.0))
    assert (bench.reason(ticket), bench.refusal(ticket).evicted) == (Reason.SHUTTING_DOWN, True)
    assert bench.reason(bench.submit("3")) is Reason.SHUTTING_DOWN
    assert bench.settle(lease) == []


def test_those_that_wait_elsewhere_keep_nobody_from_a_free_worker() -> None:
    bench = Bench(policy(), spec("w", max_num_seqs=1), spec("v", "b"))
    bench.lease("1", pools=("a",))
    assert bench.submit("2", pools=("a",)).lease is None
    assert bench.lease("3", pools=("b",)).worker == "v"


def test_what_cannot_be_is_refused_before_it_is_queued() -> None:
    bench = Bench(policy(), spec(max_model_len=1000, max_num_seqs=1))
    assert bench.reason(bench.submit("1", deadline=0.0)) is Reason.DEADLINE
    assert bench.reason(bench.submit("2", prompt_tokens=9000)) is Reason.CONTEXT_TOO_LONG
    assert bench.submit("3", may_queue=False).lease is not None
    assert bench.reason(bench.submit("4", may_queue=False)) is Reason.QUEUE_NEVER


def test_a_ticket_waits_out_its_backoff_and_its_time() -> None:
    bench = Bench(policy(), spec("w"), spec("v", max_num_seqs=1))
    held = [bench.lease(str(n), queue_timeout_s=3.0) for n in range(3)]
    mine = next(lease for lease in held if lease.worker == "w")
    other = next(lease for lease in held if lease.worker == "v")
    bench.settle(mine, OutcomeKind.SERVER_ERROR, retry=True)
    (again,) = leases(bench.settle(other))
    assert (again.ticket, again.worker) == (mine.ticket, "v")
    bench.settle(again, OutcomeKind.SERVER_ERROR, retry=True)
    assert again.ticket.state is TicketState.QUEUED
    bench.scheduler.drain("w", 0.0)
    bench.scheduler.drain("v", 0.0)
    bench.to(3.0)
    assert bench.reason(again.ticket) is Reason.NO_WORKER


def test_snapshot_shows_who_waits_for_what() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    bench.lease("1")
    bench.submit("2", body_bytes=3)
    bench.now = 2.0
    bench.submit("3", body_bytes=4)
    bench.submit("4", klass=0, tenant="u", pools=("a",))
    shown = bench.scheduler.snapshot(5.0)
    told = [(q.klass, q.pool, q.tenant, q.queued, q.bytes, q.oldest_wait_s) for q in shown.queues]
    assert told == [(0, "a", "u", 1, 0, 3.0), (1, "a", "t", 2, 7, 5.0)]
    assert (shown.queued, shown.queued_bytes, shown.in_flight, shown.oldest_wait_s) == (3, 7, 1, 5.0)


def test_timers_end_with_what_they_were_for() -> None:
    bench = Bench(policy(), spec(max_num_seqs=1))
    lease = bench.lease("1")
    ticket = bench.submit("2")
    assert {at for at, _, _ in bench.scheduler._timers._heap} == {5.0, 30.0}
    bench.scheduler.cancel(ticket, 0.0)
    # Only the worker is still looked at, for as long as it holds something.
    assert bench.scheduler.next_deadline() == 5.0
    bench.settle(lease)
    assert bench.scheduler.tick(5.0) == []
    assert bench.scheduler.next_deadline() is None


def test_slow_start_opens_places_as_time_goes() -> None:
    bench = Bench(policy(health={"slow_start_s": 10.0}), spec("x", max_num_seqs=1))
    bench.now = 100.0
    bench.lease("0")
    bench.observe(spec(max_num_seqs=10))
    for n in range(1, 12):
        bench.submit(str(n))
    seen = []
    for second in range(11):
        bench.to(100.0 + second)
        seen.append(bench.shown().in_flight)
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
