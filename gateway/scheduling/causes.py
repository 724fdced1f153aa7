"""Why a ticket waits: what is in its way on each worker that could take it, and what that comes to."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gateway.scheduling.reserve import leaves_reserve

if TYPE_CHECKING:
    from gateway.scheduling.model import Ticket
    from gateway.scheduling.queue import Place
    from gateway.scheduling.worker import Worker

SHOWN = 8  # workers whose obstacles are told one by one


class WaitCause(StrEnum):
    """What a ticket waits for."""

    BACKOFF = "backoff"  # the pause before its next attempt
    TENANT = "tenant_limit"  # its tenant has as many running as it may
    NO_WORKER = "no_worker"  # none that could take it is in rotation
    FAILED = "failed_workers"  # it was tried there, and another one is to come
    PLACES = "places"  # all places are taken
    SEQUENCES = "sequences"  # fewer places are free than it has sequences
    KV = "kv"  # too little KV is free
    GUEST = "guest"  # another long prompt is a guest on the worker for short ones
    RESERVED = "reserved"  # what is free is kept for the highest class
    HELD = "held"  # what is free is kept for a request that has waited longer
    TURN = "turn"  # others go first


class Room(NamedTuple):
    """What decides about room besides the workers: of the policy in force."""

    beta: float
    watermark: float
    reserve: float


class Wait(NamedTuple):
    """A ticket that waits, for who asks why."""

    klass: int
    pools: tuple[str, ...]
    prompt_tokens: int
    expected_output_tokens: int
    p90_output_tokens: int
    attempts: int
    waited_s: float
    left_s: float  # until it leaves the queue at the latest
    ahead: int  # of its tenant, about
    cause: WaitCause
    workers: tuple[tuple[str, WaitCause], ...]  # some of those that could take it, and what is in the way there


def wait_of(ticket: Ticket, room: Room, now: float) -> Wait:
    """Why a ticket of the queue waits now."""
    request, place = ticket.request, ticket.place
    obstacles = [] if place is None else [(one.id, obstacle(one, place, room, now)) for one in place.lane.workers]
    return Wait(
        request.klass,
        request.pools,
        request.prompt_tokens,
        request.expected_output,
        request.p90_output,
        ticket.attempts,
        ticket.waited_s + now - ticket.since,
        max(ticket.queue_until - now, 0.0),
        0 if place is None else round(place.line.before(place)),
        sum_up(ticket, [cause for _, cause in obstacles]),
        tuple(obstacles[:SHOWN]),
    )


def first_cause(place: Place, room: Room, now: float) -> WaitCause:
    """Why a ticket begins to wait, at a bounded cost: of many workers with a place some are looked at."""
    lane = place.lane
    if not lane.open and not place.line.flow.tenant.full:
        return WaitCause.PLACES if lane.in_rotation else WaitCause.NO_WORKER
    looked_at = list(islice(lane.open, SHOWN))
    return sum_up(place.ticket, [obstacle(one, place, room, now) for one in looked_at])


def sum_up(ticket: Ticket, obstacles: list[WaitCause]) -> WaitCause:
    """What a ticket waits for, given what is in its way on each worker: where it could go, others go first."""
    place = ticket.place
    if place is None:
        return WaitCause.BACKOFF
    if place.line.flow.tenant.full:
        return WaitCause.TENANT
    if WaitCause.TURN in obstacles:
        return WaitCause.TURN
    left = [cause for cause in obstacles if cause not in (WaitCause.NO_WORKER, WaitCause.FAILED)]
    if left:
        return Counter(left).most_common(1)[0][0]
    return WaitCause.FAILED if WaitCause.FAILED in obstacles else WaitCause.NO_WORKER


def obstacle(worker: Worker, place: Place, room: Room, now: float) -> WaitCause:
    """What keeps a ticket from a worker of its lane."""
    bucket, lane, flow = place.bucket, place.lane, place.line.flow
    if not worker.ready or worker.max_len < bucket.length:
        return WaitCause.NO_WORKER
    if worker.spec.id in bucket.excluded:
        return WaitCause.FAILED
    if not worker.is_open:
        return WaitCause.PLACES
    if worker.guests and worker.spec.pool in lane.guest_pools:
        return WaitCause.GUEST
    if worker.dirty or now >= worker.cached_until:
        worker.refresh(now, room.beta, room.watermark)
    if worker.leases:
        if min(bucket.sequences, worker.limit) > worker.limit - worker.in_flight:
            return WaitCause.SEQUENCES
        if min(bucket.kv_each, worker.max_len) * bucket.sequences > worker.kv_free:
            return WaitCause.KV
    if room.reserve and flow.klass and not leaves_reserve(worker, bucket, room.reserve, room.watermark):
        return WaitCause.RESERVED
    if worker.hold is not None and worker.hold.bars(place.ticket, flow.klass):
        return WaitCause.HELD
    return WaitCause.TURN
