"""The least that ran at each worker lately: what an engine's older count certainly contains of our own work."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from gateway.leasing.words import LOW_S
from gateway.scheduling.listeners import Onlooker, onlooker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.scheduling.listeners import Watch
    from gateway.scheduling.model import Lease, Outcome

BUCKET_S: Final = 1.0


class Lows(Onlooker):
    """Watches every lease, passes it on to `then`, and remembers the least places in use.

    A bucket holds the least of one second, and only of workers where something ended in it: between two ends the
    number only grows. Memory: workers × `LOW_S` at most.
    """

    def __init__(self, then: Watch, clock: Callable[[], float]) -> None:
        self._then = onlooker(then)
        self._clock = clock
        self._began = clock()
        self._used: dict[str, int] = {}
        self._buckets: deque[tuple[float, dict[str, int]]] = deque()
        self._since = -inf  # when the last one began
        self._bucket_now: dict[str, int] = {}

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease."""
        used, worker = self._used, lease.worker
        used[worker] = used.get(worker, 0) + lease.cost.count
        self._then.dispatched(lease)

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        now, worker = self._clock(), lease.worker
        left = self._used[worker] - lease.cost.count
        if left:
            self._used[worker] = left
        else:
            del self._used[worker]
        bucket = self._bucket(now)
        least = bucket.get(worker)
        if least is None or left < least:
            bucket[worker] = left
        self._then.settled(lease, outcome)

    def low(self, worker: str, now: float) -> int:
        """Least places in use at a worker in the last `LOW_S`; 0 while that is not known."""
        if now - self._began < LOW_S:
            return 0
        self._bucket(now)
        used = self._used.get(worker, 0)
        return min([used, *(bucket[worker] for _, bucket in self._buckets if worker in bucket)])

    def _bucket(self, now: float) -> dict[str, int]:
        """The bucket of this second; those that are too old go when it begins."""
        if now - self._since >= BUCKET_S:
            while self._buckets and self._buckets[0][0] < now - LOW_S - BUCKET_S:
                self._buckets.popleft()
            self._since = now
            self._bucket_now = {}
            self._buckets.append((now, self._bucket_now))
        return self._bucket_now
