"""Guard rails: changes that are valid and yet most often a mistake. They are refused unless forced.

1. empties_pool: a pool whose workers get requests now would get none any more.
2. removes_model: a model that clients asked for lately would have no worker any more.
3. drops_capacity: the places, or the KV tokens, that requests can reach would shrink to less than half.

Pure: the old policy, the new one, and what is known of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from policies.canaries import way
from policies.classify import Classifier
from policies.document import Policy
from policies.routing import ENDPOINTS, breakpoints, ways

KEPT_SHARE: Final = 0.5
"""Less than this share of the capacity left is a drop that has to be meant."""

Routes = tuple[tuple[str, ...], tuple[str, ...]]
"""(pools that are tried, pools that are tried where no worker of those exists)."""


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """One worker: where it is, what it serves, and how much it can hold."""

    id: str
    pool: str
    models: frozenset[str]  # names at the engine
    places: int  # requests its engine batches
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The workers there are, and the public model names that clients asked for lately."""

    workers: tuple[WorkerFact, ...] = ()
    asked_models: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Guard:
    """One reason not to apply a policy without being told to."""

    rule: str  # empties_pool, removes_model or drops_capacity
    subject: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class _Reach:
    """What requests can get to under one policy."""

    workers: Mapping[str, WorkerFact]  # by id, those that any request can get to
    models: frozenset[str]  # public names that lead to a worker
    places: int
    kv_tokens: int


def guards(old: Policy, new: Policy, fleet: FleetFacts) -> tuple[Guard, ...]:
    """Every guard rail that a change from `old` to `new` breaks, in the order of the module's list."""
    before, after = _reach(old, fleet), _reach(new, fleet)
    return (*_emptied(new, fleet, before, after), *_removed(fleet, before, after), *_dropped(before, after))


def places_of(policy: Policy, worker: WorkerFact) -> int:
    """How many requests the policy lets this worker hold."""
    pool = policy.pools.get(worker.pool)
    own = pool.max_in_flight_per_worker if pool is not None else None
    limit = own if own is not None else policy.limits.max_in_flight_per_worker
    batched = worker.places + policy.admission.over_commit
    return batched if limit is None else min(batched, limit)


def _emptied(new: Policy, fleet: FleetFacts, before: _Reach, after: _Reach) -> Iterator[Guard]:
    reached = {worker.pool for worker in before.workers.values()}
    left = {worker.pool for worker in after.workers.values()}
    for pool in sorted(reached - left):
        count = sum(worker.pool == pool for worker in fleet.workers)
        why = "no model, endpoint or rule leads to it" if pool in new.pools else "the policy has no such pool"
        workers = "1 worker" if count == 1 else f"{count} workers"
        yield Guard("empties_pool", pool, f"pool {pool} has {workers} and would get no requests: {why}")


def _removed(fleet: FleetFacts, before: _Reach, after: _Reach) -> Iterator[Guard]:
    for model in sorted(fleet.asked_models & before.models - after.models):
        yield Guard("removes_model", model, f"model {model} is in use and would have no worker any more")


def _dropped(before: _Reach, after: _Reach) -> Iterator[Guard]:
    for what, old, new in (
        ("places", before.places, after.places),
        ("KV tokens", before.kv_tokens, after.kv_tokens),
    ):
        if new < KEPT_SHARE * old:
            share = f"{100 * new / old:.0f} %"
            message = f"the fleet's capacity would drop from {old} {what} to {new} ({share}); under half needs force"
            yield Guard("drops_capacity", what, message)
            return


def _reach(policy: Policy, fleet: FleetFacts) -> _Reach:
    serving: dict[str, list[WorkerFact]] = {}
    for worker in fleet.workers:
        for model in worker.models:
            serving.setdefault(model, []).append(worker)
    routes = _Routes(policy)
    reached: dict[str, WorkerFact] = {}
    names: set[str] = set()
    for name in dict.fromkeys((*policy.models, *serving)):
        entry = policy.models.get(name)
        candidates = serving.get(name if entry is None or entry.served_as is None else entry.served_as, [])
        for pools, fallback in routes.of(name) if candidates else ():
            found = [worker for worker in candidates if worker.pool in pools]
            found = found or [worker for worker in candidates if worker.pool in fallback]
            reached.update((worker.id, worker) for worker in found)
            if found:
                names.add(name)
    places = sum(places_of(policy, worker) for worker in reached.values())
    kv = sum(int((worker.kv_tokens or 0) * policy.admission.kv_watermark) for worker in reached.values())
    return _Reach(reached, frozenset(names), places, kv)


class _Routes:
    """Which pools requests for a model can get to. Models that list the same pools have the same routes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ruleless = policy.model_copy(update={"rules": ()})
        self._classifier = Classifier(self._ruleless)
        self._found: dict[tuple[str, ...], set[Routes]] = {}

    def of(self, model: str) -> set[Routes]:
        """The routes of a public model name."""
        entry = self._policy.models.get(model)
        allowed = (entry.pools if entry is not None else ()) or tuple(self._policy.pools)
        canary = {one.pool for one in entry.canary} if entry is not None else set()
        found = self._found.get(allowed)
        if found is None:
            # Of its own pools only: every model asked at every pool's bounds takes seconds for a large policy.
            budgets = breakpoints(self._ruleless, pools=frozenset(allowed))
            found = self._found[allowed] = {
                (way.pools, way.fallback_pools)
                for endpoint in ENDPOINTS
                for way in ways(self._classifier, budgets, model, endpoint)
            }
        ruled = {rule.pool for rule in self._policy.rules if rule.pool is not None and rule.when.model in (None, model)}
        tried = {
            way(pool, self._policy.pools[pool].may_borrow, usual, allowed) for pool in canary for usual, _ in found
        }
        return found | tried | {self._by_rule(pool, allowed) for pool in ruled}

    def _by_rule(self, pool: str, allowed: tuple[str, ...]) -> Routes:
        borrowed = tuple(other for other in self._policy.pools[pool].may_borrow if other in allowed)
        pools = (pool, *borrowed)
        return pools, tuple(other for other in allowed if other not in pools)
