"""Deadlines: what stands, what is dropped."""

from __future__ import annotations

from math import inf

from sched_support import request, worker

from gateway.scheduling.model import Ticket, TicketState
from gateway.scheduling.timers import SLACK, Timers


def ticket(until: float) -> Ticket:
    return Ticket(request(), None, 0.0, until)


def test_due_in_order_and_not_before() -> None:
    timers = Timers(lambda: 0)
    late, soon = ticket(9.0), ticket(3.0)
    timers.add(9.0, late)
    timers.add(3.0, soon)
    assert timers.next_at() == 3.0
    assert timers.due(2.9) is None
    assert timers.due(100.0) is soon
    assert timers.due(100.0) is late
    assert timers.due(100.0) is None
    assert timers.next_at() is None


def test_nothing_comes_up_before_what_is_told_as_the_first() -> None:
    timers = Timers(lambda: 0)
    assert timers.first == inf
    late, soon = ticket(9.0), ticket(3.0)
    timers.add(9.0, late)
    timers.add(3.0, soon)
    assert timers.first == 3.0
    assert timers.due(3.0) is soon
    assert timers.first == 9.0
    late.state = TicketState.LEASED
    assert timers.due(10.0) is None
    assert timers.first == inf


def test_a_ticket_comes_up_for_its_end_and_for_its_backoff_only_while_it_waits() -> None:
    timers = Timers(lambda: 0)
    one = ticket(9.0)
    one.not_before = 2.0
    timers.add(9.0, one)
    timers.add(2.0, one)
    assert timers.due(2.0) is one
    timers.add(2.0, one)
    one.place = object()  # type: ignore[assignment]
    assert timers.next_at() == 9.0
    one.state = TicketState.LEASED
    assert timers.next_at() is None


def test_only_the_latest_wake_of_a_worker_stands() -> None:
    timers = Timers(lambda: 0)
    one = worker()
    for at in (5.0, 7.0):
        one.wakes_at = at
        timers.add(at, one)
    assert timers.next_at() == 7.0
    assert timers.due(7.0) is one


def test_entries_without_meaning_do_not_pile_up() -> None:
    timers = Timers(lambda: 1)
    keeper = ticket(1e9)
    timers.add(1e9, keeper)
    for n in range(50 * SLACK):
        gone = ticket(float(n + 1e6))
        timers.add(gone.queue_until, gone)
        gone.state = TicketState.ENDED
    assert len(timers) < 4 * SLACK
    assert timers.next_at() == 1e9
