"""The workers, which of them are fit for work, and the lanes that lead to them."""

from __future__ import annotations

from math import exp, inf
from typing import TYPE_CHECKING, Final

from gateway.scheduling.health import Health
from gateway.scheduling.lanes import Lane, LaneKey
from gateway.scheduling.limits import effective_limit, full_limit, next_ramp_at
from gateway.scheduling.model import Lease, Reason, Request, Signal, WorkerSpec, WorkerState
from gateway.scheduling.prefixes import PrefixIndex
from gateway.scheduling.snapshot import FleetSnapshot, QueueSnapshot, WorkerSnapshot
from gateway.scheduling.worker import Worker

if TYPE_CHECKING:
    from policies.document import Policy

__all__ = ["Fleet", "FleetSnapshot", "QueueSnapshot", "WorkerSnapshot"]

START_GRACE_S: Final = 10.0  # workers found this soon after the first one were there before the gateway
EXPLAINS_S: Final = 0.5  # booked prefill beyond this explains requests that wait at an engine
MIN_WAKE_S: Final = 0.001
MISROUTES: Final = 3
MISROUTED_S: Final = 30.0


def canaries_of(policy: Policy) -> frozenset[str]:
    """Pools that models try out and that may borrow from none: the usual pools stand by for them."""
    tried = {one.pool for entry in policy.models.values() for one in entry.canary}
    return frozenset(name for name in tried if not policy.pools[name].may_borrow)


class Fleet:
    """All workers. Whoever changes a worker calls `update`, which keeps the lanes true."""

    __slots__ = (
        "_began",
        "_canaries",
        "_last",
        "_latest",
        "_models",
        "lanes",
        "policy",
        "prefixes",
        "retired",
        "workers",
    )

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._canaries = canaries_of(policy)
        self.workers: dict[str, Worker] = {}
        self.prefixes = PrefixIndex()
        self.retired: dict[Worker, None] = {}  # gone, with leases that still run
        self.lanes: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Lane] = {}  # by their keys
        self._latest: dict[str, Lane] = {}  # of each model, the one that was asked for last
        self._last: Lane | None = None  # of these, the one that was asked for last
        self._models: dict[str, int] = {}  # model -> workers that serve it
        self._began: float | None = None

    # -- membership: each of these answers with the lanes whose workers it changed ---------------------------------

    def observe(self, spec: WorkerSpec, now: float) -> tuple[Worker, bool, list[Lane]]:
        """Take in that a worker exists as `spec` says. The worker, whether it is new, and the changed lanes.

        A new incarnation replaces the worker: what was known about the old one ends, but for leases that still run.
        """
        if self._began is None:
            self._began = now
        worker = self.workers.get(spec.id)
        if worker is not None and worker.spec.incarnation == spec.incarnation:
            if worker.spec == spec:
                return worker, False, []
            models = worker.spec.models | spec.models
            self._count_models(worker.spec, -1)
            worker.describe(spec)
            worker.off_models.clear()
            worker.misrouted.clear()
            self._count_models(spec, 1)
            return worker, False, self._refill(models)
        models = spec.models
        draining = False
        if worker is not None:
            models |= worker.spec.models
            draining = worker.draining
            self._retire(worker)
        fresh = self._returning(spec, now)
        fresh.draining = draining
        self.workers[spec.id] = fresh
        self._count_models(spec, 1)
        return fresh, True, self._refill(models)

    def forget(self, worker_id: str) -> tuple[Worker | None, list[Lane]]:
        """A worker is no longer registered."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return None, []
        self._retire(worker)
        return worker, self._refill(worker.spec.models)

    def misrouted(self, worker: Worker, model: str, now: float) -> list[Lane]:
        """The engine says it doesn't serve the model; the third time it is believed for a while."""
        if worker.gone or model not in worker.spec.models:
            return []
        seen = worker.misrouted.get(model, 0) + 1
        worker.misrouted[model] = seen
        if seen < MISROUTES or model in worker.off_models:
            return []
        worker.off_models[model] = now + MISROUTED_S
        return self._refill(frozenset((model,)))

    def readmit_models(self, worker: Worker, now: float) -> list[Lane]:
        """Believe the worker's own list again once the time is over."""
        back = frozenset(model for model, until in worker.off_models.items() if now >= until)
        for model in back:
            del worker.off_models[model]
            worker.misrouted.pop(model, None)
        return self._refill(back) if back else []

    def adopt(self, policy: Policy) -> None:
        """Take over a policy; lanes that nobody waits in are made anew when they are asked for."""
        self.policy = policy
        self._canaries = canaries_of(policy)
        for lane in list(self.lanes.values()):
            if lane.waiting:
                self._fill(lane)
            else:
                lane.refill({})
                self._forget(lane)

    def answered(self, worker: Worker, lease: Lease) -> None:
        """The first token of a lease has come: its prefill is done, and its engine has looked for its prefix."""
        worker.answered(lease)
        if lease.claim and not worker.gone:
            self.prefixes.answered(worker.id, lease.claim)

    def settled(self, worker: Worker, good: Lease | None = None) -> None:
        """A lease of the worker ended, well if it is given: an ended worker without leases is forgotten."""
        if good is not None and good.claim and good.first_token_at is None and not worker.gone:
            # An answer in one piece: its first token was not seen.
            self.prefixes.answered(worker.id, good.claim)
        if worker.gone and not worker.leases:
            self.retired.pop(worker, None)

    # -- state -----------------------------------------------------------------------------------------------------

    def report(self, worker: Worker, signal: Signal) -> bool:
        """Take in what a worker says of itself; True when that changes its adaptive limit."""
        changed = worker.adaptive.observe(
            signal,
            worker.in_flight,
            full_limit(worker, self.policy),
            worker.kv_capacity,
            self.policy.admission.over_commit,
            worker.spec.max_num_seqs is None and worker.prefill_s < EXPLAINS_S,
        )
        if signal.prefix_hits is not None:
            self.prefixes.reported(worker.id, signal.prefix_hits)
        worker.observe(signal)
        return changed

    def update(self, worker: Worker, now: float) -> None:
        """Recompute what a worker may take, after its health, limits or state changed; sets its `wakes_at`."""
        health = worker.health
        worker.ready = worker.in_rotation and now >= health.cool_until
        worker.limit = effective_limit(worker, self.policy, now)
        worker.dirty = True
        times = [
            health.ejected_until if health.ejected else None,
            health.cool_until if now < health.cool_until else None,
            next_ramp_at(worker, self.policy, now),
            *worker.off_models.values(),
        ]
        soonest = None if worker.gone else min((at for at in times if at is not None), default=None)
        # Rounding must not make it come up at once, again and again.
        worker.wakes_at = None if soonest is None else max(soonest, now + MIN_WAKE_S)
        self.sync(worker)

    def sync(self, worker: Worker) -> None:
        """Tell the lanes when a worker got its first free place or lost its last."""
        is_open = worker.ready and worker.in_flight < worker.limit
        if is_open is not worker.is_open:
            worker.is_open = is_open
            for lane in worker.lanes:
                lane.set_open(worker, is_open)

    def may_eject(self, worker: Worker) -> bool:
        """Whether the worker's pool can spare one more for soft reasons."""
        pool = [other for other in self.workers.values() if other.spec.pool == worker.spec.pool]
        ejected = sum(1 for other in pool if other.health.soft)
        return ejected + 1 <= int(self.policy.health.max_ejected * len(pool))

    # -- lanes -----------------------------------------------------------------------------------------------------

    def lane(self, request: Request) -> Lane | None:
        """The lane of a request; None where no worker could ever take it."""
        model, pools, fallback_pools = request.model, request.pools, request.fallback_pools
        # Most models are asked for by one list of pools, or by one at a time.
        lane = self._last
        if lane is not None and lane.model is model and lane.pools is pools and lane.fallback_pools is fallback_pools:
            return lane if lane.workers else None
        lane = self._latest.get(model)
        if (
            lane is not None
            and (lane.pools is pools or lane.pools == pools)
            and (lane.fallback_pools is fallback_pools or lane.fallback_pools == fallback_pools)
        ):
            self._last = lane
            return lane if lane.workers else None
        # As a plain tuple, which is equal to the key and made in a part of the time.
        lane = self.lanes.get((model, pools, fallback_pools))
        if lane is None:
            key = LaneKey(model, pools, fallback_pools)
            # Names come from clients: only what workers serve gets a lane.
            if not self._candidates(key):
                return None
            lane = self.lanes[key] = Lane(key)
            self._fill(lane)
        self._last = self._latest[model] = lane
        return lane if lane.workers else None

    def lacking(self, model: str) -> Reason:
        """Why there is no lane: a fleet without the model, or none of the workers that serve it.

        A model that every engine which lists it has denied is nobody's: to try again later would not help.
        """
        if not self.workers:
            return Reason.NO_WORKER
        claimed = model in self._models and any(
            model in worker.spec.models and model not in worker.off_models for worker in self.workers.values()
        )
        return Reason.NO_WORKER if claimed else Reason.MODEL_NOT_FOUND

    def returns_in(self, lane: Lane | None, now: float) -> float:
        """Seconds until the first ejected worker of a lane may be back; a guess where nothing is known."""
        until = [worker.health.ejected_until for worker in lane.workers if worker.health.ejected] if lane else []
        return max(min(until) - now, 0.0) if until else self.policy.health.ejection_s

    def _candidates(self, key: LaneKey) -> dict[Worker, float]:
        crossing = 1.0 + self.policy.balancing.crossing_penalty
        home = key.pools[0] if key.pools else ""
        for pools in (key.pools, key.fallback_pools):
            found = {
                worker: 1.0 if worker.spec.pool == home else crossing
                for worker in self.workers.values()
                if worker.spec.pool in pools and key.model in worker.spec.models and key.model not in worker.off_models
            }
            if found:
                return found
        return {}

    def _fill(self, lane: Lane) -> None:
        workers = self._candidates(lane.key)
        # Others than those that its pool may borrow from: the usual pools of a canary's requests, guests nowhere.
        lane.standby = len(lane.key.pools) > 1 and lane.home in self._canaries
        guests = any(map(lane.at_home, workers)) and not lane.standby
        lane.guest_pools = self._guest_pools(lane.key) if guests else frozenset()
        lane.guests_apart = bool(lane.guest_pools)
        lane.refill(workers)

    def _guest_pools(self, key: LaneKey) -> frozenset[str]:
        """The pools that a lane borrows from and that are for shorter requests than its own."""
        pools = self.policy.pools

        def longest(pool: str) -> float:
            entry = pools.get(pool)
            return inf if entry is None or entry.max_budget_tokens is None else entry.max_budget_tokens

        return frozenset(pool for pool in key.pools[1:] if longest(pool) < longest(key.pools[0]))

    def _refill(self, models: frozenset[str]) -> list[Lane]:
        changed = []
        for lane in list(self.lanes.values()):
            if lane.key.model in models:
                self._fill(lane)
                changed.append(lane)
                if not lane.workers and not lane.waiting:
                    self._forget(lane)
        return changed

    def _forget(self, lane: Lane) -> None:
        del self.lanes[lane.key]
        if self._latest.get(lane.model) is lane:
            del self._latest[lane.model]
        if self._last is lane:
            self._last = None

    def _retire(self, worker: Worker) -> None:
        del self.workers[worker.spec.id]
        self.prefixes.forget(worker.spec.id)
        self._count_models(worker.spec, -1)
        worker.gone = True
        worker.ready = False
        worker.wakes_at = None
        self.sync(worker)
        if worker.leases:
            self.retired[worker] = None

    def _returning(self, spec: WorkerSpec, now: float) -> Worker:
        """The worker that `spec` names: one that was forgotten while its leases ran on, or a new one."""
        for worker in self.retired:
            if worker.spec.id == spec.id and worker.spec.incarnation == spec.incarnation:
                del self.retired[worker]
                worker.gone = False
                worker.describe(spec)
                return worker
        began = self._began if self._began is not None else now
        return Worker(spec, Health(now, ramp=now - began > START_GRACE_S), now)

    def _count_models(self, spec: WorkerSpec, change: int) -> None:
        for model in spec.models:
            left = self._models.get(model, 0) + change
            if left:
                self._models[model] = left
            else:
                del self._models[model]

    # -- showing ---------------------------------------------------------------------------------------------------

    def snapshots(self, now: float) -> tuple[WorkerSnapshot, ...]:
        """All workers as they are now, ended ones with leases last."""
        return tuple(show(worker, now) for worker in (*self.workers.values(), *self.retired))


def show(worker: Worker, now: float) -> WorkerSnapshot:
    """One worker as it is now."""
    spec, health, signal = worker.spec, worker.health, worker.signal
    foreign_kv = 0
    if signal is not None and worker.foreign_kv:
        foreign_kv = int(worker.foreign_kv * exp(-max(now - signal.at, 0.0) / 2.0))
    return WorkerSnapshot(
        id=spec.id,
        incarnation=spec.incarnation,
        pool=spec.pool,
        models=tuple(sorted(spec.models)),
        state=worker.state,
        leases=worker.leases,
        in_flight=worker.in_flight,
        limit=worker.limit,
        max_model_len=spec.max_model_len,
        kv_used_tokens=worker.kv_tokens + foreign_kv,
        kv_reported_tokens=signal.kv_used_tokens if signal else None,
        kv_capacity_tokens=spec.kv_tokens,
        booked_prefill_s=worker.prefill_s,
        booked_decode_s=worker.decode_s,
        booked_kv_tokens=worker.kv_tokens,
        running=signal.running if signal else None,
        waiting=signal.waiting if signal else None,
        preemptions=signal.preemptions if signal else None,
        signal_age_s=max(now - signal.at, 0.0) if signal else None,
        cooling_s=max(health.cool_until - now, 0.0),
        returns_in_s=max(health.ejected_until - now, 0.0) if health.state is WorkerState.EJECTED else None,
        failures=health.failures + health.connect_failures,
        slots=worker.slots,
        operator=worker.order,
        held_for=worker.hold.ticket.request.id if worker.hold is not None else None,
    )
