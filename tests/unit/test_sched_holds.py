"""Room that is kept for an old ticket which smaller ones would pass over for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import Bench, leases, policy, spec, worker

from gateway.scheduling.holds import room_after_s
from gateway.scheduling.model import Lease, Order, OutcomeKind, Reason, Ticket, TicketState
from gateway.scheduling.queue import Bucket

KV = 1000
SMALL: dict[str, Any] = {"prompt_tokens": 100, "max_output_tokens": 50, "p90_output": 50}
LARGE: dict[str, Any] = {"prompt_tokens": 700, "max_output_tokens": 50, "p90_output": 50, "queue_timeout_s": 40.0}


def bench(*workers: Any, after: float = 0.25, **sections: Any) -> Bench:
    admission = {"hold_room_after": after, "reject_when_hopeless": False, **sections.pop("admission", {})}
    specs = workers or (spec(max_num_seqs=16, kv_tokens=KV),)
    return Bench(policy(admission=admission, **sections), *specs)


def crowd(made: Bench, **changes: Any) -> list[Lease]:
    """As many small ones as there is room for."""
    found: list[Lease] = []
    while (ticket := made.submit(f"s{len(found)}", **SMALL, **changes)).lease is not None:
        found.append(ticket.lease)
    made.scheduler.cancel(ticket, made.now)
    return found


def busy(made: Bench, running: list[Lease], until: float, want: Ticket, **changes: Any) -> float | None:
    """One small stream ends every second and one more comes, so that there never is much room. When `want` went."""
    while made.now < until:
        made.to(made.now + 1.0)
        extra = made.submit(f"x{made.now:g}", **SMALL, **changes)
        if running:
            running += leases(made.settle(running.pop(0)))
        if extra.lease is not None and extra.lease not in running:
            running.append(extra.lease)
        if want.lease is not None:
            return made.now
    return None


def test_without_holding_small_requests_pass_a_large_one_until_its_time_is_over() -> None:
    made = bench(after=1.0)
    running = crowd(made)
    large = made.submit("large", **LARGE)
    assert busy(made, running, 60.0, large) is None
    assert made.reason(large) is Reason.QUEUE_TIMEOUT


def test_room_is_kept_for_it_once_it_has_waited_a_quarter_of_its_time() -> None:
    made = bench()
    running = crowd(made)
    large = made.submit("large", **LARGE)
    went = busy(made, running, 60.0, large)
    assert went is not None
    assert 10.0 < went < 20.0
    assert made.shown().held_for is None


def test_several_places_at_once_are_kept_too() -> None:
    for after, starves in ((1.0, True), (0.25, False)):
        made = bench(spec(max_num_seqs=4), after=after)
        running = crowd(made)
        wide = made.submit("wide", sequences=4, queue_timeout_s=40.0)
        assert (busy(made, running, 60.0, wide) is None) is starves


def test_who_holds_is_shown_and_lets_go_when_it_leaves() -> None:
    made = bench()
    running = crowd(made)
    large = made.submit("large", **LARGE)
    made.to(1.0)
    small = [made.submit(f"w{at}", **SMALL) for at in range(3)]
    made.to(11.0)
    made.settle(running.pop())
    assert small[0].lease is not None, "the pass that finds it is passed over still lets one through"
    assert made.shown().held_for == "large"
    made.settle(running.pop())
    assert small[1].lease is None
    made.take(made.scheduler.cancel(large, made.now))
    assert made.shown().held_for is None
    assert small[1].lease is not None


def test_a_hold_that_ends_by_time_lets_the_next_go_whatever_comes_first() -> None:
    made = bench(spec("w", max_num_seqs=16, kv_tokens=KV), spec("v", pool="z", models=frozenset({"n"}), max_num_seqs=1))
    running = crowd(made)
    made.lease("other", model="n", pools=("z",))
    made.submit("large", **LARGE)
    made.to(1.0)
    small = [made.submit(f"w{at}", **SMALL) for at in range(3)]
    made.to(11.0)
    made.settle(running.pop())
    made.settle(running.pop())
    assert small[1].lease is None
    # The time of `large` is over with the very event that lets nobody into its lane.
    made.now = 41.0
    made.submit("last", model="n", pools=("z",))
    assert small[1].lease is not None or small[1].state is TicketState.ENDED
    assert made.shown().held_for is None


def test_higher_classes_pass_a_hold_and_lower_ones_do_not() -> None:
    made = bench()
    running = crowd(made)
    made.submit("large", **LARGE)
    made.to(1.0)
    made.submit("s", **SMALL)
    made.to(11.0)
    made.settle(running.pop())
    assert made.shown().held_for == "large"
    low, high = made.submit("low", klass=2, **SMALL), made.submit("high", klass=0, **SMALL)
    made.settle(running.pop())
    assert high.lease is not None
    assert low.lease is None


def test_a_higher_class_takes_over_the_hold_of_its_pool() -> None:
    made = bench()
    running = crowd(made)
    made.submit("large", **LARGE)
    made.to(1.0)
    made.submit("s", **SMALL)
    made.to(11.0)
    made.settle(running.pop())
    made.submit("larger", klass=0, **LARGE)
    made.to(12.0)
    for at in range(3):
        made.submit(f"h{at}", klass=0, **SMALL)
    made.to(22.0)
    made.settle(running.pop())
    assert made.shown().held_for == "larger"


def test_a_class_that_is_owed_its_floor_is_not_passed_by_higher_ones() -> None:
    classes = [{"name": "high"}, {"name": "mid", "floor": 0.3}, {"name": "low"}]
    for after, starves in ((1.0, True), (0.25, False)):
        made = bench(after=after, classes=classes)
        running = crowd(made)
        large = made.submit("large", **LARGE)
        assert (busy(made, running, 60.0, large, klass=0) is None) is starves


def test_one_ticket_of_a_pool_holds_one_worker() -> None:
    made = bench(*[spec(name, max_num_seqs=16, kv_tokens=KV) for name in "uvw"])
    running = crowd(made)
    for at in range(5):
        made.submit(f"large{at}", **LARGE)
    made.to(1.0)
    for at in range(6):
        made.submit(f"w{at}", **SMALL)
    made.to(11.0)
    for _ in range(3):
        made.settle(running.pop())
    assert len([one for one in made.scheduler.snapshot(made.now).workers if one.held_for]) == 1


@pytest.mark.parametrize("how", ["drain", "eject", "forget", "policy"])
def test_a_worker_that_takes_nothing_is_not_held(how: str) -> None:
    made = bench(spec("v", max_num_seqs=16, kv_tokens=KV), spec("w", max_num_seqs=16, kv_tokens=KV))
    running = crowd(made)
    large = made.submit("large", **LARGE)
    made.to(1.0)
    for at in range(20):
        made.submit(f"w{at}", **SMALL)
    made.to(11.0)
    made.settle(running.pop())
    held = next(one.id for one in made.scheduler.snapshot(made.now).workers if one.held_for == "large")
    if how == "drain":
        made.take(made.scheduler.drain(held, made.now))
    elif how == "eject":
        made.take(made.scheduler.order(held, Order(eject=True), made.now))
    elif how == "forget":
        made.take(made.scheduler.forget(held, made.now))
    else:
        made.take(made.scheduler.adopt(policy(admission={"hold_room_after": 1.0}), made.now))
    other = [lease for lease in running if lease.worker != held]
    made.settle(other[0])
    shown = {one.id: one for one in made.scheduler.snapshot(made.now).workers}
    assert held not in shown or shown[held].held_for is None
    if how != "policy":
        made.settle(other[1])
        assert [one.id for one in shown.values() if one.held_for] == [other[0].worker]
    assert large.state is TicketState.QUEUED


def test_nothing_is_held_for_one_whose_tenant_may_run_no_more() -> None:
    made = bench(tenants={"default": {}, "few": {"max_in_flight": 1}})
    running = crowd(made)
    made.submit("large", tenant="few", **LARGE)
    made.to(1.0)
    for at in range(4):
        made.submit(f"s{at}", **SMALL)
    made.to(11.0)
    made.settle(running.pop())
    assert made.shown().held_for == "large"
    own = made.submit("own", tenant="few", klass=0, **SMALL)
    made.settle(running.pop())
    assert own.lease is not None, "a higher class passes, and fills what the tenant may have"
    made.settle(running.pop())
    assert made.shown().held_for is None


def test_where_no_worker_can_be_held_none_is() -> None:
    made = bench()
    crowd(made)
    place = made.submit("large", **LARGE).place
    assert place is not None
    made.take(made.scheduler.drain("w", made.now))
    made.scheduler._matcher.holds.hold(place)
    assert len(made.scheduler._matcher.holds) == 0
    assert place.hold is None


def test_other_gateways_leave_the_room_too() -> None:
    made = bench()
    running = crowd(made)
    made.submit("large", **LARGE)
    made.to(1.0)
    made.submit("s", **SMALL)
    before = made.scheduler.shares.loads(made.now)[0].kv_tokens
    made.to(11.0)
    made.settle(running.pop())
    assert made.scheduler.shares.loads(made.now)[0].kv_tokens >= before + 700


def test_one_whose_turn_comes_later_is_not_passed_over() -> None:
    """Who is served less goes first: that is no reason to hold a worker."""
    made = bench()
    running = crowd(made, tenant="rich")
    made.submit("large", tenant="rich", **LARGE)
    for at in range(9):
        made.submit(f"w{at}", tenant="poor", **SMALL)
    made.to(11.0)
    made.settle(running.pop())
    assert made.shown().held_for is None


def test_the_worker_is_the_one_that_has_room_soonest() -> None:
    bucket = Bucket(0, 600, 1, frozenset())
    idle, full = worker(kv_tokens=KV, max_num_seqs=4), worker(kv_tokens=KV, max_num_seqs=4)
    assert room_after_s(idle, bucket) == 0.0
    made = bench(spec("v", max_num_seqs=16, kv_tokens=KV), spec("w", max_num_seqs=16, kv_tokens=KV))
    running = crowd(made)
    workers = made.scheduler._fleet.workers
    for lease in running:
        if lease.worker == "w":
            made.scheduler.first_token(lease, made.now)
            made.scheduler.progress(lease, 45, made.now)
    for one in workers.values():
        one.refresh(made.now, 0.1, 0.95)
    assert room_after_s(workers["w"], bucket) < room_after_s(workers["v"], bucket)
    wide = Bucket(0, 10, 30, frozenset())
    assert room_after_s(workers["w"], wide) > 0.0
    assert full.hold is None


def test_a_failed_worker_and_one_too_short_are_not_held() -> None:
    made = bench(
        spec("bad", max_num_seqs=16, kv_tokens=KV), spec("short", max_num_seqs=16, kv_tokens=KV, max_model_len=400)
    )
    running = crowd(made)
    large = made.submit("large", **LARGE)
    made.to(1.0)
    made.submit("s", **SMALL)
    made.to(11.0)
    made.settle(next(lease for lease in running if lease.worker == "short"))
    assert made.shown("short").held_for is None
    assert large.state is TicketState.QUEUED


@settings(max_examples=25, deadline=None)
@given(
    kv=st.integers(500, 4000),
    share=st.floats(0.3, 0.95),
    lengths=st.lists(st.integers(20, 250), min_size=3, max_size=12),
    stay=st.integers(2, 6),
    klass=st.sampled_from([1, 2]),
)
def test_whatever_the_small_ones_are_a_large_one_goes_in_time(
    kv: int, share: float, lengths: list[int], stay: int, klass: int
) -> None:
    """Streams that last `stay` seconds and always more of them waiting: it is sent before its time is over."""
    made = bench(spec(max_num_seqs=64, kv_tokens=kv), admission={"max_queued": 10_000})
    prompt = int(kv * 0.95 * share * 8 / 9) - 60
    ends: list[tuple[float, Lease]] = []
    large: Ticket | None = None
    known: set[str] = set()
    for second in range(60):
        made.now = float(second)
        if second == 3:
            large = made.submit("large", klass=klass, **{**LARGE, "prompt_tokens": prompt})
        for at, length in enumerate(lengths):
            made.submit(f"{second}.{at}", klass=klass, **{**SMALL, "prompt_tokens": length, "queue_timeout_s": 30.0})
        made.to(made.now)
        for lease in leases(made.effects):
            if lease.ticket.request.id not in known:
                known.add(lease.ticket.request.id)
                ends.append((second + stay, lease))
        for end, lease in [one for one in ends if one[0] <= second]:
            ends.remove((end, lease))
            made.settle(lease, OutcomeKind.OK, output_tokens=20)
        if large is not None and large.attempts:
            return
    raise AssertionError("it never went")
