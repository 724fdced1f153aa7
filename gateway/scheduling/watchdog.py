"""Looks at each worker that holds leases in time, and ejects the one that does nothing with them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.fleet import MIN_WAKE_S, Fleet
from gateway.scheduling.progress import Watch
from gateway.scheduling.timers import Timers

if TYPE_CHECKING:
    from gateway.scheduling.worker import Worker

LATE_S: Final = 1.0  # a timer that comes later means that we slept ourselves, and with us what we heard of workers
LOOK_S: Final = 5.0  # at least so often: what is learned meanwhile may have made its time shorter


class Watchdog:
    """The timers of all watches: one for a worker that was sent something, none for others."""

    __slots__ = ("_fleet", "_rng", "_timers")

    def __init__(self, fleet: Fleet, timers: Timers, rng: Random) -> None:
        self._fleet = fleet
        self._timers = timers
        self._rng = rng

    def sent(self, worker: Worker, now: float) -> None:
        """The worker holds one more lease, and its watch has no timer."""
        watch = worker.watch
        self._look(watch, watch.stalls_at(now, self._fleet.policy.timeouts.ttft_s), now)

    def check(self, watch: Watch, now: float) -> str | None:
        """Its time has come. Why the worker is ejected by that, if it is; the caller then updates it."""
        worker, policy = watch.worker, self._fleet.policy
        health = worker.health
        late = watch.checks_at is not None and now - watch.checks_at > LATE_S
        watch.checks_at = None  # until it is sent something
        if worker.gone or not worker.leases or health.ejected or (health.probing and not worker.canaries):
            return None
        if late:
            watch.moved(now)
        at = watch.stalls_at(now, policy.timeouts.ttft_s)
        if at <= now and (health.probing or self._fleet.may_eject(worker)):
            return health.stall(now, policy.health, self._rng)
        self._look(watch, at if at > now else now + LOOK_S, now)
        return None

    def _look(self, watch: Watch, at: float, now: float) -> None:
        # Rounding must not make it come up at once, again and again.
        watch.checks_at = min(max(at, now + MIN_WAKE_S), now + LOOK_S)
        self._timers.add(watch.checks_at, watch)
