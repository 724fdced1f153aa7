"""Who goes when the queue is full: the newest of the lowest class, of the tenant that fills most of it for its weight.

A tenant that has less than its share waiting is therefore never shed for one that floods: neither those of its requests
that wait nor the one that comes. Requests that had an attempt stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from gateway.scheduling.queue import home_of

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Flow
    from gateway.scheduling.model import Ticket
    from gateway.scheduling.queue import Queue


class Bounds(NamedTuple):
    """How much may wait, of all or of one pool; None: any."""

    most: int | None  # tickets
    most_bytes: int | None


class _Line:
    """What a flow has waiting: its newest ticket first, and how much of the bounds it fills."""

    __slots__ = ("_bounds", "_newest", "bytes", "count", "flow", "ticket")

    def __init__(self, flow: Flow, bounds: Bounds, home: str | None, gone: Collection[Ticket]) -> None:
        self.flow = flow
        self._bounds = bounds
        self._newest: Iterator[Ticket] = (
            ticket
            for ticket in reversed(flow.fresh)
            if (home is None or home_of(ticket) == home) and ticket not in gone
        )
        # Counted one by one only where a pool has bounds of its own, and those are exceeded.
        self.count = len(flow.fresh) if home is None else sum(home_of(ticket) == home for ticket in flow.fresh)
        self.bytes = flow.fresh_bytes  # of all pools: a tenant's large bodies elsewhere count here as well
        self.ticket = next(self._newest, None)

    def entry(self) -> tuple[float, int, _Line]:
        """The largest share first, of equals the newest ticket."""
        assert self.ticket is not None
        most, most_bytes = self._bounds
        share = max(
            0.0 if most is None else self.count * (1.0 / max(most, 1)),
            0.0 if most_bytes is None else self.bytes * (1.0 / max(most_bytes, 1)),
        )
        return -share / self.flow.tenant.weight, -self.ticket.sequence, self

    def drop(self) -> Ticket | None:
        """Take the newest ticket away; the one before it, if there is any."""
        assert self.ticket is not None
        self.count -= 1
        self.bytes -= self.ticket.request.body_bytes
        self.ticket = next(self._newest, None)
        return self.ticket


def _fullest(flows: Iterable[Flow], bounds: Bounds) -> Ticket:
    """The newest ticket of the flow with the largest share, of equals the newest: the first of the heap below."""
    most, most_bytes = bounds
    per_ticket = 0.0 if most is None else 1.0 / max(most, 1)
    per_byte = 0.0 if most_bytes is None else 1.0 / max(most_bytes, 1)
    largest, found = -1.0, None
    for flow in flows:
        fresh = flow.fresh
        share = len(fresh) * per_ticket
        if flow.fresh_bytes * per_byte > share:
            share = flow.fresh_bytes * per_byte
        share /= flow.tenant.weight
        if share >= largest:
            newest = next(reversed(fresh))
            if found is None or share > largest or newest.sequence > found.sequence:
                largest, found = share, newest
    assert found is not None
    return found


def give_way(
    queue: Queue, newcomer: Ticket, bounds: Bounds, home: str | None = None, gone: Collection[Ticket] = ()
) -> list[Ticket] | None:
    """Who has to leave for an admitted ticket to stay within the bounds; None if it is the one that has to.

    `home`: they are one pool's, and so are those that may have to leave; `gone`: will leave already.
    """
    count, size = (queue.count, queue.bytes) if home is None else queue.of_pool[home]
    count -= len(gone) + (count if bounds.most is None else bounds.most)
    size -= sum(ticket.request.body_bytes for ticket in gone) + (
        size if bounds.most_bytes is None else bounds.most_bytes
    )
    victims: list[Ticket] = []
    if count <= 0 and size <= 0:
        return victims
    for klass in sorted(queue.fresh, reverse=True):
        if klass < newcomer.request.klass:
            return None
        if home is None and not gone:
            # Nearly always one has to leave, and a full queue may be that of a thousand tenants: 0.2 ms instead of 3.
            first = _fullest(queue.fresh[klass], bounds)
            if first is newcomer:
                return None
            if not victims and count <= 1 and size <= first.request.body_bytes:
                return [first]
        lines = [_Line(flow, bounds, home, gone) for flow in queue.fresh[klass]]
        heap = [line.entry() for line in lines if line.ticket is not None]
        heapify(heap)
        while heap:
            line = heappop(heap)[2]
            ticket = line.ticket
            assert ticket is not None
            if ticket is newcomer:
                return None
            victims.append(ticket)
            count -= 1
            size -= ticket.request.body_bytes
            if count <= 0 and size <= 0:
                return victims
            if line.drop() is not None:
                heappush(heap, line.entry())
    return None
