"""Who goes when the queue is full: by class, by tenants' shares, by pool."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import Bench, policy, request, spec

from gateway.scheduling.model import Reason, Refuse, Ticket, TicketState
from gateway.scheduling.shedding import Bounds, give_way


def full(rules: Any = None, **sections: Any) -> Bench:
    made = Bench(rules or policy(**sections), spec(max_num_seqs=1), spec("z", pool="b", max_num_seqs=1))
    made.lease("first", tenant="first", pools=("a",))
    made.lease("second", tenant="first", pools=("b",))
    return made


def waiting(ticket: Ticket) -> bool:
    return ticket.state is TicketState.QUEUED


def test_a_tenant_that_floods_gives_way_to_one_that_does_not() -> None:
    made = full(admission={"max_queued": 6})
    flood = [made.submit(f"f{at}", tenant="flood") for at in range(6)]
    assert made.reason(made.submit("f6", tenant="flood")) is Reason.QUEUE_FULL
    quiet = [made.submit(f"q{at}", tenant="quiet") for at in range(3)]
    assert all(map(waiting, quiet))
    assert [waiting(one) for one in flood] == [True, True, True, False, False, False]
    assert made.refusal(flood[5]).evicted
    assert made.reason(flood[5]) is Reason.SHED
    assert made.reason(made.submit("q3", tenant="quiet")) is Reason.QUEUE_FULL, "it has its share"


def test_shares_go_by_weight() -> None:
    made = full(admission={"max_queued": 4}, tenants={"default": {}, "heavy": {"weight": 3}})
    heavy = [made.submit(f"h{at}", tenant="heavy") for at in range(3)]
    light = made.submit("l0", tenant="light")
    assert made.reason(made.submit("l1", tenant="light")) is Reason.QUEUE_FULL
    assert made.reason(made.submit("h3", tenant="heavy")) is Reason.QUEUE_FULL
    assert all(map(waiting, [*heavy, light]))


def test_bytes_are_shares_too() -> None:
    made = full(admission={"max_queued": 100, "max_queued_bytes": 1000})
    large = [made.submit(f"l{at}", tenant="large", body_bytes=450) for at in range(2)]
    small = [made.submit(f"s{at}", tenant="small", body_bytes=20) for at in range(10)]
    assert [waiting(one) for one in large] == [True, False]
    assert all(map(waiting, small))


def test_lower_classes_go_before_shares_are_looked_at_and_nobody_goes_in_vain() -> None:
    made = full(admission={"max_queued_bytes": 1000})
    low = made.submit("low", klass=2, tenant="quiet", body_bytes=200)
    mid = [made.submit(f"m{at}", tenant="flood", body_bytes=200) for at in range(4)]
    assert made.reason(made.submit("x", tenant="flood", body_bytes=500)) is Reason.QUEUE_FULL
    assert waiting(low)
    new = made.submit("y", tenant="other", body_bytes=400)
    assert [waiting(one) for one in (low, *mid, new)] == [False, True, True, True, False, True]


def test_a_pool_has_bounds_of_its_own() -> None:
    made = full(pools={"a": {"max_queued": 2}, "b": {"max_queued_bytes": 100}})
    of_a = [made.submit(f"a{at}", pools=("a",)) for at in range(2)]
    assert made.reason(made.submit("a2", pools=("a",))) is Reason.QUEUE_FULL
    of_b = [made.submit(f"b{at}", pools=("b",), body_bytes=50) for at in range(2)]
    assert made.reason(made.submit("b2", pools=("b",), body_bytes=50)) is Reason.QUEUE_FULL
    high = made.submit("high", klass=0, pools=("a",), tenant="u")
    assert [waiting(one) for one in (*of_a, *of_b, high)] == [True, False, True, True, True]
    other = made.submit("other", pools=("a",), tenant="v")
    assert made.reason(other) is Reason.QUEUE_FULL, "as much of the pool as the other of its class, and newer"


def test_both_bounds_hold_at_once() -> None:
    made = full(admission={"max_queued": 4, "max_queued_bytes": 100}, pools={"a": {"max_queued": 2}, "b": {}})
    low_a = [made.submit(f"a{at}", klass=2, pools=("a",), body_bytes=10) for at in range(2)]
    low_b = [made.submit(f"b{at}", klass=2, pools=("b",), body_bytes=40) for at in range(2)]
    high = made.submit("high", klass=0, pools=("a",), body_bytes=60)
    assert [waiting(one) for one in (*low_a, *low_b, high)] == [True, False, False, False, True]
    assert made.reason(made.submit("big", klass=0, pools=("a",), body_bytes=101)) is Reason.QUEUE_FULL


def test_bounds_that_hold_ask_nobody_to_leave_and_retried_ones_never_do() -> None:
    made = full()
    ticket = made.submit("1", body_bytes=10)
    queue = made.scheduler._queue
    assert give_way(queue, ticket, Bounds(None, None)) == []
    assert give_way(queue, ticket, Bounds(1, 10)) == []
    again = Ticket(request("again", klass=0, body_bytes=50), None, 0.0, 9.0, attempts=1, sequence=99)
    flow = made.scheduler._tenants.get("t").flow(0)
    queue.admit(again, flow)
    assert give_way(queue, again, Bounds(5, 50)) == [ticket]
    assert give_way(queue, again, Bounds(5, 40)) is None, "all that may leave is not enough"


def test_a_tenants_bytes_are_bounded() -> None:
    made = full(tenants={"default": {}, "t": {"max_queued_bytes": 100}})
    assert waiting(made.submit("1", body_bytes=60))
    assert made.reason(made.submit("2", body_bytes=60)) is Reason.TENANT_QUEUED
    assert waiting(made.submit("3", body_bytes=40))
    assert waiting(made.submit("4", tenant="u", body_bytes=4000))


tickets = st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 60), st.sampled_from("ab"))


@settings(max_examples=50, deadline=None)
@given(st.lists(tickets, max_size=40), st.integers(1, 8))
def test_bounds_hold_whoever_comes(asked: list[tuple[str, int, int, str]], most: int) -> None:
    made = full(admission={"max_queued": most, "max_queued_bytes": 150}, pools={"a": {"max_queued": 3}, "b": {}})
    live: list[Ticket] = []
    for number, (tenant, klass, size, pool) in enumerate(asked):
        live.append(made.submit(str(number), tenant=tenant, klass=klass, body_bytes=size, pools=(pool,)))
        live = [one for one in live if waiting(one)]
        shown = made.scheduler.snapshot(made.now)
        assert shown.queued == len(live) <= most
        assert shown.queued_bytes == sum(one.request.body_bytes for one in live) <= 150
        assert sum(1 for one in live if one.request.pools == ("a",)) <= 3


@settings(max_examples=50, deadline=None)
@given(st.lists(tickets, min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 1500))
def test_the_short_way_to_one_victim_finds_whom_the_long_one_finds(
    asked: list[tuple[str, int, int, str]], most: int, most_bytes: int
) -> None:
    made = full(tenants={"default": {}, "a": {"weight": 4}})
    live = [
        made.submit(str(number), tenant=tenant, klass=klass, body_bytes=size)
        for number, (tenant, klass, size, _) in enumerate(asked)
    ]
    queue, bounds = made.scheduler._queue, Bounds(most, most_bytes)
    assert give_way(queue, live[-1], bounds) == give_way(queue, live[-1], bounds, None, Nobody())


class Nobody(list[Ticket]):
    """Names none of the queue, but is not empty: the short way is not for it."""

    def __bool__(self) -> bool:
        return True


@settings(max_examples=50, deadline=None)
@given(st.lists(tickets, max_size=40), st.integers(1, 8), st.sampled_from([1, 4]))
def test_only_who_has_most_of_the_lowest_class_gives_way(
    asked: list[tuple[str, int, int, str]], most: int, weight: int
) -> None:
    """A tenant that has less than its share waiting is never shed."""
    made = full(admission={"max_queued": most}, tenants={"default": {}, "a": {"weight": weight}})
    live: list[Ticket] = []
    for number, (tenant, klass, _, pool) in enumerate(asked):
        before = len(made.effects)
        live.append(made.submit(str(number), tenant=tenant, klass=klass, pools=(pool,)))
        gone = [effect.ticket for effect in made.effects[before:] if isinstance(effect, Refuse)]
        for one in gone:
            assert one.request.klass == max(other.request.klass for other in live)
            shares: dict[str, float] = {}
            for other in live:
                if other.request.klass == one.request.klass:
                    name = other.request.tenant
                    shares[name] = shares.get(name, 0.0) + 1 / (weight if name == "a" else 1)
            assert shares[one.request.tenant] == max(shares.values())
        live = [one for one in live if one not in gone]
