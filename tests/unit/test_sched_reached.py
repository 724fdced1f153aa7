"""Which limit of the policy a request reached: where it is set, what it is, and what it came to."""

from __future__ import annotations

from typing import Any

import pytest
from sched_support import Bench, policy, spec

from gateway.scheduling.model import OutcomeKind, Reached, Reason


def full(**sections: Any) -> Bench:
    """One worker with one place, which is taken."""
    bench = Bench(policy(**sections), spec(max_num_seqs=1))
    bench.lease("first", tenant="first")
    return bench


@pytest.mark.parametrize(
    ("sections", "reached"),
    [
        ({"admission": {"max_queued": 2}}, Reached("admission.max_queued", 2, 3)),
        ({"admission": {"max_queued_bytes": 25}}, Reached("admission.max_queued_bytes", 25, 30)),
        ({"pools": {"a": {"max_queued": 2}, "b": {}}}, Reached("pools.a.max_queued", 2, 3)),
        ({"pools": {"a": {"max_queued_bytes": 25}, "b": {}}}, Reached("pools.a.max_queued_bytes", 25, 30)),
        (  # the pool has room, all pools together have not
            {"pools": {"a": {"max_queued": 9}, "b": {}}, "admission": {"max_queued": 2}},
            Reached("admission.max_queued", 2, 3),
        ),
        (  # both are full: the pool's own is the one nearer to the request
            {"pools": {"a": {"max_queued": 2}, "b": {}}, "admission": {"max_queued": 2}},
            Reached("pools.a.max_queued", 2, 3),
        ),
    ],
)
def test_a_full_queue_names_its_bound(sections: dict[str, Any], reached: Reached) -> None:
    bench = full(**sections)
    for name in "xy":
        bench.submit(name, body_bytes=10)
    refused = bench.refusal(bench.submit("late", body_bytes=10))
    assert (refused.reason, refused.reached) == (Reason.QUEUE_FULL, reached)
    low = full(**sections)
    victim = low.submit("low", klass=2, body_bytes=10)
    for name in "xy":
        low.submit(name, body_bytes=10)
    shed = low.refusal(victim)
    assert (shed.reason, shed.reached) == (Reason.SHED, reached)


def test_the_bound_that_turned_a_request_away_is_named_where_the_others_would_have_let_it_in() -> None:
    """Its pool has one of a lower class to give up; of all pools nobody is low enough in the same measure."""
    bench = full(pools={"a": {"max_queued": 1}, "b": {}}, admission={"max_queued_bytes": 100})
    low = bench.submit("low", klass=2, body_bytes=10)
    refused = bench.refusal(bench.submit("large", body_bytes=200))
    assert (refused.reason, refused.reached) == (Reason.QUEUE_FULL, Reached("admission.max_queued_bytes", 100, 210))
    assert low.place is not None


@pytest.mark.parametrize("entry", ["t", "default"])
def test_a_tenants_bounds_are_named_where_they_are_set(entry: str) -> None:
    def bench(**limits: int) -> Bench:
        return full(tenants={"default": {}, "first": {}, entry: limits})

    one = bench(max_queued=1)
    one.submit("x")
    assert one.refusal(one.submit("y")).reached == Reached(f"tenants.{entry}.max_queued", 1, 2)
    one = bench(max_queued_bytes=15)
    one.submit("x", body_bytes=10)
    assert one.refusal(one.submit("y", body_bytes=10)).reached == Reached(f"tenants.{entry}.max_queued_bytes", 15, 20)
    one = bench(max_in_flight=0)
    refused = one.refusal(one.submit("x", may_queue=False))
    assert (refused.reason, refused.reached) == (
        Reason.TENANT_IN_FLIGHT, Reached(f"tenants.{entry}.max_in_flight", 0, 1),
    )  # fmt: skip


def test_a_share_of_a_tenants_bound_is_called_a_share() -> None:
    bench = Bench(policy(tenants={"default": {}, "t": {"max_in_flight": 4}}), spec(max_num_seqs=8))
    bench.take(bench.scheduler.set_slots("@t", 1, 0.0))
    bench.lease("1")
    refused = bench.refusal(bench.submit("2", may_queue=False))
    assert refused.reached == Reached("this gateway's share of tenants.t.max_in_flight (4)", 1, 2)


def test_tries_and_the_retry_budget_are_named() -> None:
    bench = Bench(policy(retries={"max_attempts": 1}), spec(), spec("v"))
    lease = bench.lease()
    bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    assert bench.refusal(lease.ticket).reached == Reached("retries.max_attempts", 1, 1)
    bench = Bench(policy(retries={"budget_ratio": 0.2, "max_attempts": 2}), spec(), spec("v"))
    bench.scheduler._waiting.pool("a").budget(0.0).tokens = 0.5
    lease = bench.lease()
    bench.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    assert (bench.reason(lease.ticket), bench.refusal(lease.ticket).reached) == (
        Reason.RETRY_BUDGET, Reached("retries.budget_ratio", 0.2, 0.5),
    )  # fmt: skip


def test_a_hopeless_request_is_told_how_many_places_it_would_take() -> None:
    bench = Bench(policy(), spec())
    for n in range(20):
        lease = bench.lease(str(n))
        bench.now += 1.0
        bench.settle(lease)
    for n in range(2):
        bench.lease(f"held {n}", tenant="holder")
    tickets = [bench.submit(str(n), queue_timeout_s=5.0) for n in range(100)]
    refused = bench.refusal(next(one for one in tickets if one.place is None))
    assert refused.reason is Reason.HOPELESS
    reached = refused.reached
    assert reached is not None
    assert reached.place == "admission.reject_when_hopeless"
    assert reached.value == sum(one.place is not None for one in tickets) + 1
    assert reached.value > reached.limit > 0


def test_where_no_limit_was_reached_none_is_named() -> None:
    bench = full()
    assert bench.refusal(bench.submit("x", may_queue=False)).reached is None
    assert bench.refusal(bench.submit("x", model="other")).reached is None
