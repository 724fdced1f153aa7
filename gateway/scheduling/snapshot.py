"""What the scheduler shows of itself: values that do not change any more."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.scheduling.model import NO_ORDER, Order, Ticket, WorkerState


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One incarnation of a worker."""

    id: str
    incarnation: str
    pool: str
    models: tuple[str, ...]
    state: WorkerState
    leases: int  # requests running
    in_flight: int  # places taken: a request takes one for each sequence
    limit: int  # places it has now
    max_model_len: int | None
    kv_used_tokens: int  # booked, and what reports add to it
    kv_capacity_tokens: int | None
    booked_prefill_s: float  # not answered by a first token yet
    booked_decode_s: float
    booked_kv_tokens: int
    running: int | None  # as reported
    waiting: int | None
    preemptions: int | None
    signal_age_s: float | None
    cooling_s: float  # how long it rests after "busy"
    returns_in_s: float | None  # how long its ejection lasts
    failures: int  # in a row
    slots: int | None  # leased to this replica
    kv_reported_tokens: int | None = None  # as the worker's last report has it, other gateways' work included
    operator: Order = NO_ORDER  # what was said about it by hand
    held_for: str | None = None  # request that room is kept for


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """What one tenant has running and waiting, and its shares; `served` is by class, in tokens as fairness counts
    them, over its weight (see `fairness.py`)."""

    name: str
    weight: float
    in_flight: int
    queued: int
    max_in_flight: int | None
    max_queued: int | None
    served: dict[int, float]


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The tickets of one tenant in one class for one home pool."""

    klass: int
    pool: str
    tenant: str
    queued: int
    bytes: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Everything the scheduler knows, at one time."""

    at: float
    workers: tuple[WorkerSnapshot, ...]  # present and, while they still have leases, ended ones
    queues: tuple[QueueSnapshot, ...]
    queued: int
    queued_bytes: int
    in_flight: int  # requests running
    oldest_wait_s: float
    drain_per_s: float  # requests that ended per second, lately


def show_queues(tickets: list[Ticket], now: float) -> tuple[QueueSnapshot, ...]:
    """Those that wait, by class, home pool and tenant."""
    lines: dict[tuple[int, str, str], list[Ticket]] = {}
    for ticket in tickets:
        request = ticket.request
        home = request.pools[0] if request.pools else ""
        lines.setdefault((request.klass, home, request.tenant), []).append(ticket)
    return tuple(
        QueueSnapshot(
            klass,
            pool,
            tenant,
            len(line),
            sum(ticket.request.body_bytes for ticket in line),
            max(now - ticket.since for ticket in line),
        )
        for (klass, pool, tenant), line in sorted(lines.items())
    )
