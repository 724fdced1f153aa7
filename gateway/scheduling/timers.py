"""Deadlines in one heap. Entries are never taken out: those that mean nothing any more are dropped when they surface,
and all at once when they prevail."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from gateway.scheduling.model import Ticket, TicketState
from gateway.scheduling.progress import Watch
from gateway.scheduling.worker import Worker

SLACK: Final = 256

Subject = Ticket | Worker | Watch


class Timers:
    """When something is due for a ticket, a worker or the watch over one.

    An entry stands as long as `due_at(subject)` names its time.
    """

    __slots__ = ("_bound", "_heap", "_n", "_standing", "first")

    def __init__(self, standing: Callable[[], int]) -> None:
        self._heap: list[tuple[float, int, Subject]] = []
        self._standing = standing  # how many entries may stand at most
        self._n = 0
        self._bound = SLACK
        self.first = inf  # nothing comes up before, though what comes up then may mean nothing any more

    def add(self, at: float, subject: Subject) -> None:
        """Have `subject` come up at `at`."""
        self._n += 1
        heappush(self._heap, (at, self._n, subject))
        if len(self._heap) > self._bound:
            self._heap = [entry for entry in self._heap if stands(entry[0], entry[2])]
            heapify(self._heap)
            self._bound = 2 * max(len(self._heap), self._standing()) + SLACK
        self._top()

    def due(self, now: float) -> Subject | None:
        """The next subject whose time has come, taken out; None when there is none."""
        if self.first > now:
            return None
        at = self.next_at()
        if at is None or at > now:
            return None
        subject = heappop(self._heap)[2]
        self._top()
        return subject

    def next_at(self) -> float | None:
        """The earliest time at which something is due."""
        heap = self._heap
        while heap:
            at, _, subject = heap[0]
            if stands(at, subject):
                self.first = at
                return at
            heappop(heap)
        self.first = inf
        return None

    def _top(self) -> None:
        self.first = self._heap[0][0] if self._heap else inf

    def __len__(self) -> int:
        return len(self._heap)


def stands(at: float, subject: Subject) -> bool:
    """Whether an entry still means something."""
    if isinstance(subject, Worker):
        return subject.wakes_at == at
    if isinstance(subject, Watch):
        return subject.checks_at == at
    if subject.state is not TicketState.QUEUED:
        return False
    return at == subject.queue_until or (subject.place is None and at == subject.not_before)
