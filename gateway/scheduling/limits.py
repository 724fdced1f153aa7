"""How many places a worker has: the estimate. Enforcing it is the fleet's part.

effective = min(policy, what the engine batches + over-commit, the operator's cap, slots leased to this replica,
adaptive) × slow start
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from gateway.scheduling.worker import Worker

if TYPE_CHECKING:
    from policies.document import Policy

RAMP_STEPS: Final = 10


def whole_limit(worker: Worker, policy: Policy) -> int:
    """Places of a worker for all gateways together; an engine that doesn't say what it batches has its preset's."""
    spec = worker.spec
    batched = spec.max_num_seqs if spec.max_num_seqs is not None else worker.preset.max_num_seqs
    limit = max(batched, 0) + policy.admission.over_commit
    pool = policy.pools.get(spec.pool)
    own = pool.max_in_flight_per_worker if pool is not None else None
    by_policy = own if own is not None else policy.limits.max_in_flight_per_worker
    if by_policy is not None:
        limit = min(limit, by_policy)
    if worker.order.cap is not None:
        limit = min(limit, max(worker.order.cap, 0))
    return limit


def full_limit(worker: Worker, policy: Policy) -> int:
    """Places of a worker that is up to speed, for this gateway."""
    limit = whole_limit(worker, policy)
    if worker.slots is not None:
        limit = min(limit, max(worker.slots, 0))
    return limit


def adapted_limit(worker: Worker, policy: Policy) -> int:
    """Places of a worker that is up to speed, as far as its reports let it have them."""
    limit, adaptive = full_limit(worker, policy), worker.adaptive.limit
    return limit if adaptive is None else min(limit, adaptive)


def effective_limit(worker: Worker, policy: Policy, now: float) -> int:
    """Places of a worker now: one while it is probed, a growing share while it starts slowly, else all."""
    limit = adapted_limit(worker, policy)
    if worker.health.probing:
        # What was sent before the ejection may run on; it doesn't keep the probe from being sent.
        return min(limit, worker.in_flight - worker.canaries + 1)
    step = ramp_step(worker, policy, now)
    if step >= RAMP_STEPS or limit == 0:
        return limit
    return max(1, ceil(limit * step / RAMP_STEPS))


def ramp_step(worker: Worker, policy: Policy, now: float) -> int:
    """How far slow start is, 1 … RAMP_STEPS."""
    began = worker.health.ramp_from
    span = policy.health.slow_start_s
    if began is None or span <= 0.0:
        return RAMP_STEPS
    done = int((now - began) / span * RAMP_STEPS + 1e-9)
    return min(1 + max(done, 0), RAMP_STEPS)


def next_ramp_at(worker: Worker, policy: Policy, now: float) -> float | None:
    """When slow start gives the next step; None when it is over."""
    began = worker.health.ramp_from
    step = ramp_step(worker, policy, now)
    if began is None or step >= RAMP_STEPS:
        return None
    return began + step * policy.health.slow_start_s / RAMP_STEPS
