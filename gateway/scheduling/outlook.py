"""Whether a request that has to wait can still be served in time.

It is hopeless if more places are needed than become free until then, at the fastest that what was measured allows:

    tickets before it + 1  >  n + 3·√n + 3        n = DOUBT · (requests running / how long they take) · time left

Everything is estimated to the request's advantage, because a request refused wrongly is worse than one that waits in
vain: of the tickets before it only those that surely are, for the places that become free the mean of what ended
lately (what runs long has not ended yet), half as many again, and three standard deviations of a Poisson process.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import sqrt
from typing import TYPE_CHECKING, Final

from gateway.scheduling.limits import RAMP_STEPS, full_limit, ramp_step
from gateway.scheduling.model import Reached, Ticket, WorkerState

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Flow
    from gateway.scheduling.lanes import Lane
    from gateway.scheduling.pace import Pace
    from gateway.scheduling.worker import Worker
    from policies.document import Policy

DOUBT: Final = 1.5
SURE: Final = 3  # standard deviations, and places
RETURNS_S: Final = 30.0  # a worker that is back by then may take what waits now
FLOWS: Final = 64  # tenants of a class that are looked at
FRESH_S: Final = 0.1  # how long the pace of a lane stays good


def hopeless(ticket: Ticket, lane: Lane, flow: Flow, floor: float, per_s: float, now: float) -> Reached | None:
    """Whether a ticket that stands in its lane gets no place in time, if `per_s` places become free there a second:
    then how many places it would take, and how many there are.

    `floor`: the share of them that its class gets whatever waits above it.
    """
    left_s = ticket.queue_until - now
    deadline, request = ticket.request.deadline, ticket.request
    if deadline is not None:
        # A prompt whose beginning may be cached costs next to nothing.
        left_s = min(left_s, deadline - now - (0.0 if request.prefix_hashes else lane.least_prefill_s(request)))
    expected = DOUBT * per_s * max(left_s, 0.0)
    free = expected + SURE * sqrt(expected) + SURE
    # The count costs something: where the whole lane would find a place it is not needed.
    if lane.waiting <= free:
        return None
    needed = before(ticket, lane, flow, floor) + 1
    return Reached("admission.reject_when_hopeless", free, needed) if needed > free else None


def before(ticket: Ticket, lane: Lane, flow: Flow, floor: float) -> float:
    """Tickets of the lane that surely go before one that stands in it."""
    place = ticket.place
    if place is None:
        return 0.0
    own = place.line.before(place)
    peers = 0.0
    for line in islice(place.line.band.lines.values(), FLOWS):
        if line is not place.line and not line.flow.tenant.full:
            peers += min(line.size, own * line.flow.tenant.weight / flow.tenant.weight)
    higher = 0
    for klass in range(flow.klass):
        band = lane.band_of(klass)
        if band is not None:
            higher += sum(line.size for line in islice(band.lines.values(), FLOWS) if not line.flow.tenant.full)
    count = own + peers
    return min(count + higher, count / floor) if floor > 0.0 else count + higher


def surely_freed_per_s(lane: Lane, policy: Policy, pace: Callable[[str], Pace], now: float) -> float | None:
    """The same; None where too little was seen to refuse anybody by it."""
    per_s = freed_per_s(lane, policy, pace, now)
    return per_s if lane.pace_sure else None


def freed_per_s(lane: Lane, policy: Policy, pace: Callable[[str], Pace], now: float) -> float | None:
    """Places of a lane's workers that become free a second; None where nothing is known to say."""
    if now >= lane.pace_until:
        lane.pace_until = now + FRESH_S
        lane.pace_per_s, lane.pace_sure = _freed_per_s(lane, policy, pace, now)
    return lane.pace_per_s


def _freed_per_s(lane: Lane, policy: Policy, pace: Callable[[str], Pace], now: float) -> tuple[float | None, bool]:
    places: dict[str, int] = {}
    for worker in lane.workers:
        pool = worker.spec.pool
        places[pool] = places.get(pool, 0) + _places(worker, policy, now)
    per_s = 0.0
    sure = True
    for pool, count in places.items():
        if count:
            known = pace(pool)
            took_s = known.took_s
            sure = sure and known.sure
            per_s += count / max(took_s, 1e-3) if took_s is not None else 0.0
    return per_s or None, sure


def _places(worker: Worker, policy: Policy, now: float) -> int:
    """Requests that may run on a worker: what runs there if it is in its stride, else what may be before long."""
    if worker.draining or worker.order.drain or worker.order.eject:
        return 0
    health = worker.health
    if health.ejected:
        return full_limit(worker, policy) if health.ejected_until <= now + RETURNS_S else 0
    in_stride = worker.ready and health.state is WorkerState.READY and ramp_step(worker, policy, now) >= RAMP_STEPS
    return max(worker.leases, 1) if in_stride else max(full_limit(worker, policy), 1)
