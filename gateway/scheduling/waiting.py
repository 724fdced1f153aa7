"""What happens to tickets that are not running: they wait, back off, are refused or evicted."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.causes import WaitCause
from gateway.scheduling.fairness import Flow, Tenants
from gateway.scheduling.fleet import Fleet
from gateway.scheduling.lanes import Lane
from gateway.scheduling.matcher import rank_key
from gateway.scheduling.model import (
    Effect,
    Lease,
    Outcome,
    OutcomeKind,
    Reached,
    Reason,
    Refuse,
    Requeue,
    Ticket,
    TicketState,
)
from gateway.scheduling.outlook import freed_per_s, hopeless, surely_freed_per_s
from gateway.scheduling.pace import Pace, clamp_retry_after
from gateway.scheduling.queue import Queue, home_of
from gateway.scheduling.reached import pool_bound, queue_bound, shed_bound, tenant_running, tenant_waiting
from gateway.scheduling.retries import RetryBudget, backoff_s
from gateway.scheduling.shedding import Bounds, give_way
from gateway.scheduling.timers import Timers

if TYPE_CHECKING:
    from gateway.scheduling.worker import Worker
    from policies.document import Policy

# After these the same worker may be tried again: it did nothing wrong.
BLAMELESS: Final = frozenset({OutcomeKind.LOCAL})
# Nothing that comes back later would help these.
HOPELESS_LATER: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.CONTEXT_TOO_LONG})
# What these wait for is a worker, not a free place.
WORKERLESS: Final = frozenset({Reason.NO_WORKER, Reason.SHUTTING_DOWN})
MAX_POOLS: Final = 1024


class PoolNotes:
    """What is known of a pool whose requests ended."""

    __slots__ = ("_budget", "kept", "name", "pace")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept = True  # not forgotten
        self.pace = Pace()
        self._budget: RetryBudget | None = None  # it grows from when it is first asked for

    def budget(self, now: float) -> RetryBudget:
        """The retries that it may have."""
        budget = self._budget
        if budget is None:
            budget = self._budget = RetryBudget(now)
        return budget


class Waiting:
    """Keeps the queue within its bounds and its tickets where they can be placed."""

    __slots__ = (
        "_excluding",
        "_fleet",
        "_policy",
        "_pools",
        "_queue",
        "_rng",
        "_tenants",
        "_timers",
        "closed",
    )

    def __init__(
        self, policy: Policy, fleet: Fleet, queue: Queue, tenants: Tenants, timers: Timers, rng: Random
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._queue = queue
        self._tenants = tenants
        self._timers = timers
        self._rng = rng
        self._pools: dict[str, PoolNotes] = {}
        self._excluding: dict[Ticket, None] = {}  # tickets that some workers failed
        self.closed = False

    def adopt(self, policy: Policy) -> None:
        """Go by this policy."""
        self._policy = policy

    def hold(self, ticket: Ticket, lane: Lane, flow: Flow, now: float) -> list[Effect]:
        """Keep a ticket that found no place, within bounds."""
        tenant, admission = flow.tenant, self._policy.admission
        if not ticket.request.may_queue:
            if not lane.in_rotation:
                return self._turn_away(ticket, Reason.NO_WORKER, None, now)
            if tenant.full:
                return self._turn_away(ticket, Reason.TENANT_IN_FLIGHT, tenant_running(self._policy, tenant), now)
            return self._turn_away(ticket, Reason.QUEUE_NEVER, None, now)
        if tenant.overfull:
            return self._turn_away(ticket, Reason.TENANT_QUEUED, tenant_waiting(self._policy, tenant), now)
        if admission.reject_when_hopeless:
            outpaced = self._hopeless(ticket, lane, flow, now)
            if outpaced is not None:
                return self._turn_away(ticket, Reason.HOPELESS, outpaced, now)
        victims = self._in_its_place(ticket)
        if not isinstance(victims, list):
            return self._turn_away(ticket, Reason.QUEUE_FULL, victims, now)
        # Before any of them leaves: then the bound is not exceeded any more.
        bounds = [shed_bound(self._policy, self._queue, ticket, victim) for victim in victims]
        effects = [
            self.evict(victim, Reason.SHED, now, reached) for victim, reached in zip(victims, bounds, strict=True)
        ]
        self._timers.add(ticket.queue_until, ticket)
        return effects

    def _turn_away(self, ticket: Ticket, reason: Reason, reached: Reached | None, now: float) -> list[Effect]:
        """Have a ticket that was admitted leave the queue at once."""
        self.remove(ticket)
        return [self.refusal(ticket, reason, now, reached=reached)]

    def _in_its_place(self, ticket: Ticket) -> list[Ticket] | Reached | None:
        """Who has to leave the queue for a ticket that was admitted, by the pool's bounds and by those of all; the
        bound that it has to leave for itself, where nobody else has to."""
        queue, admission = self._queue, self._policy.admission
        home = home_of(ticket)
        pool = self._policy.pools.get(home)
        gone: list[Ticket] = []
        if pool is not None and (pool.max_queued is not None or pool.max_queued_bytes is not None):
            bounds = Bounds(pool.max_queued, pool.max_queued_bytes)
            victims = give_way(queue, ticket, bounds, home)
            if victims is None:
                return pool_bound(self._policy, queue, home)
            gone = victims
        if queue.count > admission.max_queued or queue.bytes > admission.max_queued_bytes:
            victims = give_way(queue, ticket, Bounds(admission.max_queued, admission.max_queued_bytes), None, gone)
            return queue_bound(self._policy, queue) if victims is None else gone + victims
        return gone

    def try_again(self, ticket: Ticket, lease: Lease, outcome: Outcome, flow: Flow, now: float) -> Effect:
        """Re-admit a ticket whose attempt failed: same deadline, the failed worker excluded."""
        request, retries = ticket.request, self._policy.retries
        if self.closed:
            return self.refusal(ticket, Reason.SHUTTING_DOWN, now)
        if outcome.kind is OutcomeKind.DEADLINE or (request.deadline is not None and now >= request.deadline):
            return self.refusal(ticket, Reason.DEADLINE, now)
        if ticket.attempts >= retries.max_attempts:
            tried = Reached("retries.max_attempts", retries.max_attempts, ticket.attempts)
            return self.refusal(ticket, Reason.ATTEMPTS_EXHAUSTED, now, reached=tried)
        lane = self._fleet.lane(request)
        if lane is None:
            return self.refusal(ticket, self._fleet.lacking(request.model), now)
        excluded = ticket.excluded if outcome.kind in BLAMELESS else ticket.excluded | {lease.worker}
        bucket = lane.bucket(request, excluded)
        if bucket is None:
            return self.refusal(ticket, Reason.CONTEXT_TOO_LONG, now)
        budget = self.pool(lease.pool).budget(now)
        if not budget.try_spend(outcome.kind, lease.worker, now):
            short = Reached("retries.budget_ratio", retries.budget_ratio, budget.tokens)
            return self.refusal(ticket, Reason.RETRY_BUDGET, now, reached=short)
        another = lane.alternative(bucket)
        wait = 0.0
        if ticket.attempts > 1 or not another:
            wait = backoff_s(ticket.attempts - 1, retries.backoff_base_s, retries.backoff_cap_s, self._rng)
        ticket.excluded = excluded if another else frozenset()
        ticket.state = TicketState.QUEUED
        ticket.since = now
        until = now + max(request.queue_timeout_s - ticket.waited_s, 0.0)
        ticket.queue_until = until if request.deadline is None else min(until, request.deadline)
        ticket.not_before = now + wait
        ticket.cause = WaitCause.BACKOFF if wait > 0.0 else WaitCause.PLACES
        flow.lift(lane.band(request.klass).least())
        self._queue.admit(ticket, flow)
        if ticket.excluded:
            self._excluding[ticket] = None
        if wait > 0.0:
            self._timers.add(ticket.not_before, ticket)
        else:
            self._queue.stand(
                ticket, lane, flow, lane.without(bucket, ticket.excluded), rank_key(request, ticket.submitted, lane)
            )
        self._timers.add(ticket.queue_until, ticket)
        return Requeue(ticket)

    def stand_again(self, ticket: Ticket, now: float) -> list[Effect]:
        """Put an admitted ticket where it can be placed now, after its backoff or a change of its lane."""
        self._queue.step_out(ticket)
        request = ticket.request
        lane = self._fleet.lane(request)
        if lane is None:
            return [self.evict(ticket, self._fleet.lacking(request.model), now)]
        bucket = lane.bucket(request, ticket.excluded)
        if bucket is None:
            return [self.evict(ticket, Reason.CONTEXT_TOO_LONG, now)]
        if ticket.excluded and not lane.alternative(bucket):
            ticket.excluded = frozenset()
            self._excluding.pop(ticket, None)
            bucket = lane.without(bucket, ticket.excluded)
        flow = self._flow(ticket)
        self._queue.stand(ticket, lane, flow, bucket, rank_key(request, ticket.submitted, lane))
        return []

    def reseat(self, lanes: list[Lane], now: float) -> list[Effect]:
        """The workers of these lanes changed: what their tickets need, or can have, may have changed with it."""
        effects: list[Effect] = []
        for lane in lanes:
            if lane.waiting:
                for ticket in self._queue.standing_in(lane):
                    effects += self.stand_again(ticket, now)
        self.include_again(now)
        return effects

    def include_again(self, now: float) -> None:
        """Tickets whose other workers have all left rotation may go back to those that failed them."""
        for ticket in list(self._excluding):
            if ticket.place is not None and not ticket.place.lane.alternative(ticket.place.bucket):
                self.stand_again(ticket, now)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out of the queue for good."""
        self._queue.leave(ticket, self._flow(ticket))
        self._excluding.pop(ticket, None)
        ticket.state = TicketState.ENDED

    def left(self, ticket: Ticket) -> None:
        """The ticket was dispatched."""
        self._excluding.pop(ticket, None)

    def evict(self, ticket: Ticket, reason: Reason, now: float, reached: Reached | None = None) -> Effect:
        """Take a waiting ticket out and say why."""
        self.remove(ticket)
        return self.refusal(ticket, reason, now, evicted=True, reached=reached)

    def expired(self, ticket: Ticket, now: float) -> Reason:
        """Why a ticket whose time is over could not run."""
        deadline = ticket.request.deadline
        if deadline is not None and now >= deadline:
            return Reason.DEADLINE
        lane = self._fleet.lane(ticket.request)
        return Reason.QUEUE_TIMEOUT if lane is not None and lane.in_rotation else Reason.NO_WORKER

    def refusal(
        self, ticket: Ticket, reason: Reason, now: float, *, evicted: bool = False, reached: Reached | None = None
    ) -> Effect:
        """End a ticket, with the time after which it is worth coming back."""
        ticket.state = TicketState.ENDED
        request = ticket.request
        if reason in HOPELESS_LATER:
            after = 1.0
        elif reason in WORKERLESS:
            after = clamp_retry_after(self._fleet.returns_in(self._fleet.lane(request), now))
        else:
            home = request.pools[0] if request.pools else ""
            lane = self._fleet.lane(request)
            freed = (
                freed_per_s(lane, self._policy, lambda pool: self.pool(pool).pace, now) if lane is not None else None
            )
            after = self.pool(home).pace.retry_after_s(self._queue.count, now, self._rng, freed or 0.0)
        return Refuse(ticket, reason, after, evicted, reached)

    def pool(self, pool: str) -> PoolNotes:
        """What is known of a pool."""
        notes = self._pools.get(pool)
        if notes is None:
            if len(self._pools) >= MAX_POOLS:
                self._pools.pop(next(iter(self._pools))).kept = False
            notes = self._pools[pool] = PoolNotes(pool)
        return notes

    def notes_for(self, worker: Worker, pool: str) -> PoolNotes:
        """The same of the pool that a lease on a worker was of."""
        notes = worker.notes
        if notes is None or not notes.kept or notes.name != pool:
            notes = worker.notes = self.pool(pool)
        return notes

    def drain_per_s(self, now: float) -> float:
        """Requests that end per second, over all pools; 0 while none ever has."""
        return sum((one.pace.per_s(now) for one in self._pools.values() if one.pace.measured), 0.0)

    def _hopeless(self, ticket: Ticket, lane: Lane, flow: Flow, now: float) -> Reached | None:
        per_s = surely_freed_per_s(lane, self._policy, lambda pool: self.pool(pool).pace, now)
        floor = self._policy.classes[flow.klass].floor
        return None if per_s is None else hopeless(ticket, lane, flow, floor, per_s, now)

    def _flow(self, ticket: Ticket) -> Flow:
        return self._tenants.get(ticket.request.tenant).flow(ticket.request.klass)
