"""The order of waiting tickets, exact removal and who goes when the queue is full."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sched_support import policy, request, worker

from gateway.scheduling.fairness import Flow, Tenants
from gateway.scheduling.lanes import Lane, LaneKey
from gateway.scheduling.model import Ticket
from gateway.scheduling.queue import SLACK, Bucket, Place, Queue, round_up


class Room:
    """A queue with one lane."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.lane = Lane(LaneKey("m", ("a", "b"), ()))
        self.lane.refill({worker(): 1.0})
        self.tenants = Tenants(policy(tenants={"default": {}, "capped": {"max_in_flight": 1}}).tenant)
        self.number = 0

    def flow(self, ticket: Ticket) -> Flow:
        return self.tenants.get(ticket.request.tenant).flow(ticket.request.klass)

    def add(self, *, attempts: int = 0, key: float | None = None, stand: bool = True, **changes: Any) -> Ticket:
        self.number += 1
        asked = request(str(self.number), **changes)
        ticket = Ticket(asked, None, 0.0, 99.0, sequence=self.number, attempts=attempts)
        self.queue.admit(ticket, self.flow(ticket))
        if stand:
            self.stand(ticket, key)
        return ticket

    def stand(self, ticket: Ticket, key: float | None = None) -> None:
        bucket = self.lane.bucket(ticket.request, ticket.excluded)
        assert bucket is not None
        rank = float(ticket.sequence) if key is None else key
        self.queue.stand(ticket, self.lane, self.flow(ticket), bucket, rank)

    def leave(self, ticket: Ticket) -> None:
        self.queue.leave(ticket, self.flow(ticket))

    def head(self, blocked: set[Bucket] | None = None, klass: int = 1) -> Ticket | None:
        place = self.lane.band(klass).peek(blocked or set())
        return None if place is None else place.ticket


def test_first_come_first_served_inside_a_flow() -> None:
    room = Room()
    first, second = room.add(), room.add()
    assert room.head() is first
    room.leave(first)
    assert room.head() is second
    room.leave(second)
    assert room.head() is None
    assert (room.queue.count, room.queue.lanes, room.queue.by_home) == (0, {}, {})


def test_a_smaller_key_goes_first() -> None:
    room = Room()
    room.add(key=9.0)
    urgent = room.add(key=1.0)
    assert room.head() is urgent


def test_the_flow_served_least_goes_first_and_corrections_count() -> None:
    room = Room()
    a, b = room.add(tenant="x"), room.add(tenant="y")
    room.flow(a).charge(500.0)
    assert room.head() is b
    room.flow(b).charge(800.0)
    assert room.head() is a
    room.flow(b).charge(-700.0)
    assert room.head() is b


def test_the_entry_of_a_ticket_that_left_keeps_nothing_of_it() -> None:
    room = Room()
    room.add()
    gone = room.add()
    holders = len(gc.get_referrers(gone))
    room.leave(gone)
    assert [type(one) for one in gc.get_referrers(gone) if isinstance(one, Place)] == []
    assert len(gc.get_referrers(gone)) < holders


def test_many_corrections_do_not_pile_up() -> None:
    room = Room()
    a, b = room.add(tenant="x"), room.add(tenant="y")
    room.flow(a).charge(5.0)
    for _ in range(20 * SLACK):
        room.flow(b).charge(2.0)
        room.flow(b).charge(-2.0)
    assert len(room.lane.band(1)._heap) <= 2 * SLACK
    line = next(iter(room.flow(b).lines))
    for _ in range(2 * SLACK):
        line.resubmit()
    assert len(room.lane.band(1)._heap) <= 2 * SLACK
    assert room.head() is b


def test_who_comes_back_is_lifted_to_those_that_wait_or_to_where_service_was() -> None:
    room = Room()
    band = room.lane.band(1)
    assert band.least() == 0.0
    band.served(300.0)
    band.served(200.0)
    assert band.least() == 300.0
    room.flow(room.add(tenant="x")).charge(120.0)
    assert band.least() == 120.0


def test_blocked_buckets_and_full_tenants_are_passed_over() -> None:
    room = Room()
    big = room.add(tenant="x", prompt_tokens=4000)
    small = room.add(tenant="x")
    capped = room.add(tenant="capped")
    assert room.head() is big
    assert big.place is not None
    blocked = {big.place.bucket}
    assert room.head(blocked) is small
    room.leave(small)
    assert room.head(blocked) is capped
    room.flow(capped).tenant.in_flight = 1
    assert room.head(blocked) is None
    assert room.head() is big


def test_tickets_that_back_off_are_counted_but_stand_in_no_line() -> None:
    room = Room()
    ticket = room.add(stand=False, body_bytes=7)
    assert (room.queue.count, room.queue.bytes) == (1, 7)
    assert room.head() is None
    room.queue.step_out(ticket)
    room.stand(ticket)
    assert room.head() is ticket
    room.queue.step_out(ticket)
    room.stand(ticket)
    assert room.queue.standing_in(room.lane) == [ticket]
    assert room.queue.count == 1


def test_tickets_are_counted_by_class_pool_and_tenant() -> None:
    room = Room()
    room.add(klass=0)
    low = room.add(klass=2, body_bytes=50, pools=("b",))
    tried = room.add(klass=2, attempts=1)
    assert [t.sequence for t in room.queue.tickets()] == [1, 2, 3]
    assert room.queue.classes() == [0, 2]
    assert room.queue.of_pool == {"a": [2, 0], "b": [1, 50]}
    assert room.flow(low).tenant.queued_bytes == 50
    room.leave(low)
    assert room.queue.classes() == [0, 2]
    room.leave(tried)
    assert room.queue.classes() == [0]
    assert room.queue.of_pool == {"a": [1, 0]}


def test_dead_entries_are_dropped_when_they_prevail() -> None:
    room = Room()
    tickets = [room.add(prompt_tokens=100 + 50 * (n % 7)) for n in range(40 * SLACK)]
    rare = room.add(prompt_tokens=9000)
    room.leave(rare)
    for ticket in tickets[: -2 * SLACK]:
        room.leave(ticket)
    (line,) = room.lane.band(1).lines.values()
    assert sum(len(heap) for heap in line.heaps.values()) <= 2 * line.size + SLACK
    assert room.head() is tickets[-2 * SLACK]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3000), st.integers(0, 5)), max_size=60), st.randoms())
def test_peek_agrees_with_a_scan(wanted: list[tuple[str, int, int]], rng: Any) -> None:
    room = Room()
    waiting = [room.add(tenant=tenant, prompt_tokens=size, key=float(key)) for tenant, size, key in wanted]
    while waiting:
        room.flow(rng.choice(waiting)).charge(float(rng.randrange(-50, 300)))
        best = min(waiting, key=lambda t: (room.flow(t).counter, t.place.line.id, t.place.key, t.sequence))
        assert room.head() is best
        gone = rng.choice([best, rng.choice(waiting)])
        room.leave(gone)
        waiting.remove(gone)
    assert room.head() is None


@given(st.integers(-5, 10**9))
def test_rounding_up_costs_an_eighth_at_most(tokens: int) -> None:
    up = round_up(tokens)
    assert max(tokens, 1) <= up <= max(tokens * 1.125, 1)
    assert round_up(up) == up


def test_few_buckets_cover_every_size() -> None:
    assert len({round_up(tokens) for tokens in range(1, 131_073)}) < 130


def test_what_cannot_take_a_bucket_cannot_take_one_that_asks_for_no_less() -> None:
    one = Bucket(100, 64, 1, frozenset())
    assert one.within(one)
    assert one.within(Bucket(200, 64, 2, frozenset({"w"})))
    for less in (
        Bucket(99, 64, 1, frozenset()),
        Bucket(100, 63, 1, frozenset()),
    ):
        assert not one.within(less)
    assert not Bucket(100, 64, 2, frozenset()).within(one)
    assert not Bucket(100, 64, 1, frozenset({"w"})).within(one)
