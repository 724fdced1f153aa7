"""What becomes of workers by themselves and by how their leases end: they come back, are rested, ejected or let in."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.fleet import Fleet
from gateway.scheduling.health import FAILURES
from gateway.scheduling.model import Effect, Lease, Outcome, OutcomeKind, WorkerChange
from gateway.scheduling.progress import Watch
from gateway.scheduling.timers import Timers
from gateway.scheduling.waiting import Waiting
from gateway.scheduling.watchdog import Watchdog
from gateway.scheduling.worker import Worker

if TYPE_CHECKING:
    from policies.document import Policy

_OK: Final = OutcomeKind.OK  # bound once: each look-up on an Enum costs more than what it is compared for


class Care:
    """Keeps the fleet's workers in the state that time and outcomes bring them to."""

    __slots__ = ("_fleet", "_policy", "_rng", "_timers", "_waiting", "_watchdog")

    def __init__(
        self, policy: Policy, fleet: Fleet, waiting: Waiting, timers: Timers, watchdog: Watchdog, rng: Random
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._waiting = waiting
        self._timers = timers
        self._watchdog = watchdog
        self._rng = rng

    def adopt(self, policy: Policy) -> None:
        """Go by this policy."""
        self._policy = policy

    def due(self, now: float) -> list[Effect]:
        """Let happen what is due by `now`."""
        effects: list[Effect] = []
        while (subject := self._timers.due(now)) is not None:
            if isinstance(subject, Worker):
                effects += self._wake(subject, now)
            elif isinstance(subject, Watch):
                why = self._watchdog.check(subject, now)
                effects += [] if why is None else self._put_out(subject.worker, why, now)
            elif now >= subject.queue_until:
                effects.append(self._waiting.evict(subject, self._waiting.expired(subject, now), now))
            else:
                effects += self._waiting.stand_again(subject, now)
        return effects

    def update(self, worker: Worker, now: float) -> None:
        """Recompute what a worker may take, and have it come up when that changes by itself."""
        before = worker.wakes_at
        self._fleet.update(worker, now)
        if worker.wakes_at is not None and worker.wakes_at != before:
            self._timers.add(worker.wakes_at, worker)

    def judge(
        self, worker: Worker, lease: Lease, outcome: Outcome, effects: list[Effect] | None, now: float
    ) -> list[Effect] | None:
        """What an outcome says about the worker; `effects`, with what follows from it."""
        health, kind = worker.health, outcome.kind
        if kind is _OK:
            worker.watch.moved(now)
            if worker.misrouted:
                worker.misrouted.pop(lease.ticket.request.model, None)
            if health.succeed(lease.canary, now):
                self.update(worker, now)
                if not worker.gone:
                    effects = effects or []
                    effects.append(WorkerChange(worker.id, worker.state, "probe succeeded"))
        elif kind is OutcomeKind.BUSY:
            health.rest(outcome, now)
            self.update(worker, now)
        elif kind is OutcomeKind.MISROUTED:
            lanes = self._fleet.misrouted(worker, lease.ticket.request.model, now)
            self.update(worker, now)
            effects = (effects or []) + self._waiting.reseat(lanes, now)
        elif kind in FAILURES:
            why = health.fail(kind, lease.canary, now, self._policy.health, self._rng, self._fleet.may_eject(worker))
            worker.dirty = True
            if why is not None:
                effects = (effects or []) + self._put_out(worker, why, now)
        return effects

    def _put_out(self, worker: Worker, why: str, now: float) -> list[Effect]:
        """A worker was ejected."""
        self.update(worker, now)
        self._waiting.include_again(now)
        return [] if worker.gone else [WorkerChange(worker.id, worker.state, why)]

    def _wake(self, worker: Worker, now: float) -> list[Effect]:
        effects: list[Effect] = []
        worker.wakes_at = None
        if worker.health.end_ejection(now):
            effects.append(WorkerChange(worker.id, worker.state, "ejection is over"))
        lanes = self._fleet.readmit_models(worker, now)
        self.update(worker, now)
        return effects + self._waiting.reseat(lanes, now)
