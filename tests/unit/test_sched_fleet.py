"""Membership, incarnations, lanes and states of workers."""

from __future__ import annotations

from typing import Any

from sched_support import policy, request, spec

from gateway.scheduling.fleet import MISROUTED_S, Fleet
from gateway.scheduling.lanes import Lane
from gateway.scheduling.model import Cost, Lease, Reason, Signal, Ticket, WorkerState
from gateway.scheduling.worker import Worker


def fleet(*names: tuple[str, str], **sections: Any) -> Fleet:
    made = Fleet(policy(**sections))
    for name, pool in names:
        add(made, name, pool)
    return made


def add(made: Fleet, name: str, pool: str = "a", now: float = 0.0, **changes: Any) -> Worker:
    one, _, _ = made.observe(spec(name, pool, **changes), now)
    made.update(one, now)
    return one


def lane(made: Fleet, **changes: Any) -> Lane:
    found = made.lane(request(**changes))
    assert found is not None
    return found


def lease_on(one: Worker) -> Lease:
    lease = Lease(Ticket(request(), None, 0, 1), one.id, "a", Cost(1, 0.0, 0.0, 1), 0.0, 0.0, booked_on=one)
    one.book(lease)
    return lease


def test_home_is_free_of_penalty_and_other_pools_are_not() -> None:
    made = fleet(("x", "a"), ("y", "b"), ("z", "other"), balancing={"crossing_penalty": 0.5})
    assert {one.id: factor for one, factor in lane(made).workers.items()} == {"x": 1.0, "y": 1.5}
    assert {one.id for one in lane(made, pools=("b",)).workers} == {"y"}


def test_fallback_pools_are_for_want_of_all_others() -> None:
    made = fleet(("x", "a"), ("z", "spare"))
    wanted = {"pools": ("a",), "fallback_pools": ("spare",)}
    assert [one.id for one in lane(made, **wanted).workers] == ["x"]
    made.forget("x")
    assert [one.id for one in lane(made, **wanted).workers] == ["z"]


def test_names_that_nothing_serves_leave_nothing_behind() -> None:
    made = fleet(("x", "a"))
    for n in range(100):
        assert made.lane(request(model=f"made-up-{n}")) is None
    assert made.lanes == {}
    assert made.lacking("made-up-1") is Reason.MODEL_NOT_FOUND
    assert made.lane(request(pools=("b",))) is None
    assert made.lacking("m") is Reason.NO_WORKER
    assert Fleet(policy()).lacking("m") is Reason.NO_WORKER
    assert made.lane(request(pools=())) is None


def test_lanes_without_workers_go_unless_somebody_waits_there() -> None:
    made = fleet(("x", "a"))
    kept = lane(made)
    kept.waiting = 1
    other = lane(made, pools=("a",))
    _, changed = made.forget("x")
    assert changed == [kept, other]
    assert list(made.lanes.values()) == [kept]
    assert made.lane(request()) is None
    add(made, "x")
    assert made.lane(request()) is kept
    assert made.forget("nobody") == (None, [])


def test_policy_change_renews_the_lanes() -> None:
    made = fleet(("x", "a"), ("y", "b"))
    kept, idle = lane(made), lane(made, pools=("b",))
    kept.waiting = 1
    made.adopt(policy(balancing={"crossing_penalty": 9.0}))
    assert list(kept.workers.values()) == [1.0, 10.0]
    assert list(made.lanes.values()) == [kept]
    assert idle not in next(iter(made.workers.values())).lanes


def test_same_facts_change_nothing_and_new_facts_are_taken_over() -> None:
    made = fleet(("x", "a"))
    one = made.workers["x"]
    there = lane(made)
    add(made, "z", models=frozenset({"z"}))
    assert list(lane(made, model="z").workers) == [made.workers["z"]]
    assert made.observe(spec("x"), 1.0) == (one, False, [])
    same, new, changed = made.observe(spec("x", models=frozenset({"n"})), 2.0)
    assert (same, new, changed) == (one, False, [there])
    assert made.lane(request()) is None
    assert lane(made, model="n").workers == {one: 1.0}


def test_a_new_incarnation_starts_afresh_while_old_leases_run_on() -> None:
    made = fleet(("x", "a"))
    old = made.workers["x"]
    old.draining = True
    lease_on(old)
    fresh, new, _ = made.observe(spec("x", incarnation="2"), 5.0)
    assert new
    assert fresh is not old
    assert fresh.draining
    assert (old.state, old.is_open) == (WorkerState.GONE, False)
    assert list(made.retired) == [old]
    old.leases = 0
    made.settled(old)
    made.settled(fresh)
    assert made.retired == {}


def test_a_forgotten_worker_that_returns_still_has_its_leases() -> None:
    made = fleet(("x", "a"), ("y", "a"))
    one, other = made.workers["x"], made.workers["y"]
    for gone in (one, other):
        lease_on(gone)
        made.forget(gone.id)
    assert [shown.state for shown in made.snapshots(0.0)] == ["gone", "gone"]
    back, new, _ = made.observe(spec("y"), 3.0)
    assert (back, new, back.gone, back.leases) == (other, True, False, 1)
    changed, _, _ = made.observe(spec("x", incarnation="2"), 3.0)
    assert changed is not one
    assert list(made.retired) == [one]


def test_who_joins_later_starts_slowly() -> None:
    made = fleet(("x", "a"))
    assert add(made, "y", now=9.0, max_num_seqs=10).limit == 10
    assert add(made, "z", now=11.0, max_num_seqs=10).limit == 1
    assert made.workers["z"].wakes_at == 14.0


def test_update_says_what_it_may_take_and_when_that_changes() -> None:
    made = fleet(("x", "a"))
    one, there = made.workers["x"], lane(made)
    assert (one.ready, one.is_open, one.wakes_at) == (True, True, None)
    one.health.cool_until = 4.0
    made.update(one, 0.0)
    assert (one.ready, list(there.open), one.wakes_at) == (False, [], 4.0)
    made.update(one, 4.0)
    assert list(there.open) == [one]
    one.health.state, one.health.ejected_until = WorkerState.EJECTED, 7.0
    made.update(one, 7.0)
    assert (one.ready, one.wakes_at) == (False, 7.001)
    one.health.state = WorkerState.READY
    one.in_flight = one.limit
    made.update(one, 8.0)
    assert there.open == {}
    one.gone = True
    made.update(one, 8.0)
    assert one.wakes_at is None


def test_a_report_may_lower_what_a_worker_takes() -> None:
    made = fleet(("x", "a"))
    one = made.workers["x"]
    one.in_flight = 2
    assert not made.report(one, Signal(1.0, 2, 0, 0, 0))
    assert made.report(one, Signal(2.0, 2, 0, 0, 1))
    assert one.adaptive.limit == 1
    assert one.signal is not None


def test_half_of_a_pool_at_most_is_ejected_for_soft_reasons() -> None:
    made = fleet(*((name, "a") for name in "pqrs"), ("t", "b"))
    assert not made.may_eject(made.workers["t"])
    for name in "pq":
        assert made.may_eject(made.workers[name])
        made.workers[name].health.soft = True
    assert not made.may_eject(made.workers["r"])


def test_the_third_denial_of_a_model_is_believed_for_a_while() -> None:
    made = fleet(("x", "a"), ("y", "a"))
    one, there = made.workers["x"], lane(made)
    assert made.misrouted(one, "never-claimed", 0.0) == []
    assert made.misrouted(one, "m", 0.0) == []
    assert made.misrouted(one, "m", 0.0) == []
    assert made.misrouted(one, "m", 5.0) == [there]
    assert made.misrouted(one, "m", 6.0) == []
    assert [worker.id for worker in there.workers] == ["y"]
    made.update(one, 6.0)
    assert one.wakes_at == 5.0 + MISROUTED_S
    assert made.readmit_models(one, 34.9) == []
    assert made.readmit_models(one, 35.0) == [there]
    assert len(there.workers) == 2
    one.gone = True
    assert made.misrouted(one, "m", 6.0) == []


def test_a_model_is_nobodys_when_every_engine_that_lists_it_has_denied_it() -> None:
    made = fleet()
    assert made.lacking("m") is Reason.NO_WORKER
    one, other = add(made, "x"), add(made, "y")
    assert made.lacking("unheard-of") is Reason.MODEL_NOT_FOUND
    for worker, then in ((one, Reason.NO_WORKER), (other, Reason.MODEL_NOT_FOUND)):
        for _ in range(3):
            made.misrouted(worker, "m", 0.0)
        assert made.lacking("m") is then


def test_when_workers_may_be_back() -> None:
    made = fleet(("x", "a"))
    there = lane(made)
    assert made.returns_in(None, 0.0) == 5.0
    assert made.returns_in(there, 0.0) == 5.0
    one = made.workers["x"]
    one.health.state, one.health.ejected_until = WorkerState.EJECTED, 30.0
    assert made.returns_in(there, 10.0) == 20.0
    assert made.returns_in(there, 40.0) == 0.0


def test_snapshot_of_a_worker() -> None:
    made = fleet()
    one = add(made, "x", kv_tokens=1000)
    lease_on(one)
    (shown,) = made.snapshots(1.0)
    assert (shown.running, shown.signal_age_s, shown.kv_used_tokens, shown.kv_reported_tokens) == (None, None, 1, None)
    one.observe(Signal(1.0, 3, 1, 501, 7))
    one.health.cool_until = 3.0
    (shown,) = made.snapshots(2.0)
    assert (shown.running, shown.waiting, shown.preemptions, shown.signal_age_s) == (3, 1, 7, 1.0)
    assert shown.kv_used_tokens == 1 + int(500 * 2.718281828 ** (-0.5))
    assert (shown.kv_reported_tokens, shown.cooling_s, shown.returns_in_s) == (501, 1.0, None)
    one.health.state, one.health.ejected_until = WorkerState.EJECTED, 9.0
    assert made.snapshots(2.0)[0].returns_in_s == 7.0
