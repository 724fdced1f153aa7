"""The scheduler: events in, effects out. No clock, no waiting, no I/O.

Every method takes the time as `now` and answers with what the shell has to do. The order inside each event is the
same: what is due by then happens first (`_clock`), then the event itself, then tickets are placed (`Matcher.run`).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.care import Care
from gateway.scheduling.causes import Wait, first_cause, wait_of
from gateway.scheduling.correction import learn_decode, learn_prefill
from gateway.scheduling.fairness import Tenants, used
from gateway.scheduling.fleet import Fleet
from gateway.scheduling.matcher import Matcher, rank_key
from gateway.scheduling.model import (
    NO_ORDER,
    Effect,
    Lease,
    Order,
    Outcome,
    OutcomeKind,
    Reason,
    Request,
    Signal,
    Ticket,
    TicketState,
    WorkerChange,
    WorkerSpec,
    WorkerState,
    booked,
)
from gateway.scheduling.queue import Queue
from gateway.scheduling.shares import Shares
from gateway.scheduling.snapshot import FleetSnapshot, TenantSnapshot, show_queues
from gateway.scheduling.timers import Timers
from gateway.scheduling.waiting import Waiting
from gateway.scheduling.watchdog import Watchdog
from gateway.scheduling.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.scheduling.lanes import Lane
    from policies.document import Policy

# After these nothing is tried again, whatever the shell asks.
FINAL: Final = frozenset({OutcomeKind.OK, OutcomeKind.CLIENT_GONE, OutcomeKind.CLIENT_ERROR})

# Bound once: each look-up on an Enum costs more than what it is compared for.
_OK: Final = OutcomeKind.OK
_ENDED: Final = TicketState.ENDED


class Scheduler:
    """Decides for each request whether it runs now, where, and what happens when that goes wrong."""

    def __init__(self, policy: Policy, rng: Random) -> None:
        self._policy = policy
        self._earned = policy.retries.budget_ratio  # of a retry, by each success
        fleet, queue = Fleet(policy), Queue()
        self._fleet = fleet
        self._queue = queue
        self._tenants = Tenants(policy.tenant)
        self._matcher = Matcher(policy, self._fleet, self._queue, rng)
        self._timers = Timers(lambda: 2 * (queue.count + len(fleet.workers)))
        self._watchdog = Watchdog(self._fleet, self._timers, rng)
        self._waiting = Waiting(policy, self._fleet, self._queue, self._tenants, self._timers, rng)
        self._care = Care(policy, self._fleet, self._waiting, self._timers, self._watchdog, rng)
        self.shares = Shares(self._fleet, self._queue, self._tenants)
        self._orders: dict[str, Order] = {}
        self._sequence = 0
        self._in_flight = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, owner: object, now: float) -> tuple[Ticket, list[Effect]]:
        """Take in a request: it is dispatched, queued or refused."""
        ticket, effects = self.enter(request, owner, now)
        if effects is None:
            assert ticket.lease is not None
            effects = [ticket.lease]
        return ticket, effects

    def enter(self, request: Request, owner: object, now: float) -> tuple[Ticket, list[Effect] | None]:
        """The same; None where nothing is to be done but to send the lease of the ticket. Most often it is so."""
        effects = self._care.due(now) if self._timers.first <= now else None
        self._sequence += 1
        until = now + request.queue_timeout_s
        if request.deadline is not None and request.deadline < until:
            until = request.deadline
        ticket = Ticket(request, owner, now, until, sequence=self._sequence, since=now)
        if self._waiting.closed:
            return ticket, self._refused(ticket, Reason.SHUTTING_DOWN, effects, now)
        if until <= now and request.deadline is not None:
            return ticket, self._refused(ticket, Reason.DEADLINE, effects, now)
        lane = self._fleet.lane(request)
        if lane is None:
            return ticket, self._refused(ticket, self._fleet.lacking(request.model), effects, now)
        bucket = lane.bucket(request, ticket.excluded)
        if bucket is None:
            return ticket, self._refused(ticket, Reason.CONTEXT_TOO_LONG, effects, now)
        flow = self._tenants.get(request.tenant).flow(request.klass)
        band = lane.band(request.klass)
        flow.lift(band.least())
        if not self._queue.count and lane.open and not flow.tenant.full:
            # Nobody waits anywhere, so nobody is overtaken.
            lease = self._matcher.place(ticket, lane, bucket, band, flow, now)
            if lease is not None:
                self._sent(lease, now)
                if effects is not None:
                    effects.append(lease)
                return ticket, effects
        if effects is None:
            effects = []
        self._queue.admit(ticket, flow)
        self._queue.stand(ticket, lane, flow, bucket, rank_key(request, now, lane))
        if lane.open or self._matcher.holds.freed:
            self._match(effects, now)
        if (place := ticket.place) is not None:
            ticket.cause = first_cause(place, self._matcher.room, now)
            effects += self._waiting.hold(ticket, lane, flow, now)
        return ticket, effects

    def cancel(self, ticket: Ticket, now: float) -> list[Effect]:
        """Take a waiting ticket out. One that holds a lease is settled instead; nothing happens to it here."""
        if ticket.state is TicketState.QUEUED:
            self._waiting.remove(ticket)
        return self._step(now)

    def first_token(self, lease: Lease, now: float) -> list[Effect]:
        """The first token has come: the prefill is done."""
        if lease.first_token_at is not None or lease.settled:
            return []
        lease.first_token_at = now
        guest = lease.guest
        worker = booked(lease)
        self._fleet.answered(worker, lease)
        worker.watch.answered(lease, now)
        learn_prefill(worker, lease)
        effects: list[Effect] = []
        if guest:
            # Only the place of a guest becomes free with its prefill.
            self._match(effects, now)
        return effects

    def progress(self, lease: Lease, tokens: int, now: float) -> None:
        """So many more tokens have come."""
        if not lease.settled:
            lease.tokens += tokens
            worker = booked(lease)
            worker.produced(lease, tokens, now)
            worker.watch.produced(now)

    def settle(self, lease: Lease, outcome: Outcome, now: float, *, retry: bool = False) -> list[Effect]:
        """A lease ended. With `retry` nothing has gone downstream yet: the ticket may be tried again.

        Raises RuntimeError for a lease that was settled before: giving it back twice would let work overlap.
        """
        return self.end(lease, outcome, now, retry) or []

    def end(self, lease: Lease, outcome: Outcome, now: float, retry: bool) -> list[Effect] | None:
        """The same; None where nothing is to be done."""
        if lease.settled:
            raise RuntimeError(f"lease of request {lease.ticket.request.id} on {lease.worker} is settled already")
        effects = self._care.due(now) if self._timers.first <= now else None
        worker, ticket = booked(lease), lease.ticket
        lease.settled = True
        self._in_flight -= 1
        learn_decode(worker, lease, outcome, now)
        worker.give_back(lease)
        again = retry and outcome.kind not in FINAL
        flow = lease.flow
        assert flow is not None
        flow.tenant.in_flight -= 1
        self._matcher.correct(lease, flow, used(lease, outcome, failed=again))
        pool = self._waiting.notes_for(worker, lease.pool)
        pool.pace.ended(now)
        well = outcome.kind is _OK
        if well:
            pool.pace.took(now - lease.dispatched)
            pool.budget(now).earn(self._earned)
        effects = self._care.judge(worker, lease, outcome, effects, now)
        if worker.health.probing:
            self._care.update(worker, now)
        self._fleet.sync(worker)
        self._fleet.settled(worker, lease if well else None)
        ticket.lease = None
        ticket.state = _ENDED
        if again:
            effects = effects or []
            effects.append(self._waiting.try_again(ticket, lease, outcome, flow, now))
        if self._queue.lanes:
            effects = self._match(effects or [], now)
        if not ticket.request.may_queue and ticket.state is TicketState.QUEUED:
            # No other worker is free at once: what the last one said is the answer.
            self._waiting.remove(ticket)
            effects = self._refused(ticket, Reason.ATTEMPTS_EXHAUSTED, effects, now)
        return effects

    # -- workers -----------------------------------------------------------------------------------------------------

    def observe(self, spec: WorkerSpec, signal: Signal | None, now: float) -> list[Effect]:
        """A worker exists as `spec` says and, with `signal`, reported. A new incarnation replaces the old one."""
        effects = self._care.due(now)
        known = self._fleet.workers.get(spec.id)
        before = known.spec if known is not None else None
        worker, is_new, lanes = self._fleet.observe(spec, now)
        if is_new:
            worker.slots = self.shares.slots_of(spec.id)
            worker.order = self._orders.get(spec.id, NO_ORDER)
            why = "joined" if before is None else "new incarnation"
            effects.append(WorkerChange(spec.id, worker.state, why))
        adapted = signal is not None and self._fleet.report(worker, signal)
        if is_new or adapted or worker.spec is not before:
            self._care.update(worker, now)
        return self._reseated(lanes, effects, now)

    def forget(self, worker_id: str, now: float) -> list[Effect]:
        """A worker is no longer registered: nothing new for it; what runs there may finish."""
        effects = self._care.due(now)
        worker, lanes = self._fleet.forget(worker_id)
        self.shares.forget(worker_id)
        if worker is None:
            return effects
        effects.append(WorkerChange(worker_id, WorkerState.GONE, "no longer registered"))
        return self._reseated(lanes, effects, now)

    def drain(self, worker_id: str, now: float, on: bool = True) -> list[Effect]:
        """Nothing new for a worker while `on`."""
        effects = self._care.due(now)
        worker = self._fleet.workers.get(worker_id)
        if worker is None or worker.draining is on:
            return effects
        worker.draining = on
        self._care.update(worker, now)
        effects.append(WorkerChange(worker_id, worker.state, "draining" if on else "no longer draining"))
        self._waiting.include_again(now)
        return self._match(effects, now)

    def order(self, worker_id: str, order: Order, now: float) -> list[Effect]:
        """What an operator says about a worker holds from now on, also for its next incarnations."""
        if order == NO_ORDER:
            self._orders.pop(worker_id, None)
        else:
            self._orders[worker_id] = order
        effects = self._care.due(now)
        worker = self._fleet.workers.get(worker_id)
        if worker is None or worker.order == order:
            return effects
        worker.order = order
        return self._by_hand(worker, effects, now)

    def readmit(self, worker_id: str, now: float) -> list[Effect]:
        """An operator says that a worker is well: it is in rotation again, whatever put it out."""
        effects = self._care.due(now)
        worker = self._fleet.workers.get(worker_id)
        if worker is None:
            return effects
        worker.health.readmit(now)
        return self._by_hand(worker, effects, now)

    def _by_hand(self, worker: Worker, effects: list[Effect], now: float) -> list[Effect]:
        self._care.update(worker, now)
        self._waiting.include_again(now)
        effects.append(WorkerChange(worker.id, worker.state, "by hand"))
        return self._match(effects, now)

    def set_slots(self, worker_id: str, n: int | None, now: float) -> list[Effect]:
        """So many places of a worker are leased to this replica; None: leases don't govern it."""
        return self.lease({worker_id: n}, now)

    def lease(self, slots: Mapping[str, int | None], now: float) -> list[Effect]:
        """The same of several workers, and of tenants as `@tenant`. All of it holds before anything is placed."""
        for worker in self.shares.lease(slots):
            self._care.update(worker, now)
        return self._step(now)

    # -- the whole ---------------------------------------------------------------------------------------------------

    def adopt(self, policy: Policy, now: float) -> list[Effect]:
        """Decide by this policy: raised limits let tickets go at once, lowered ones let leases finish."""
        effects = self._care.due(now)
        self._policy = policy
        self._earned = policy.retries.budget_ratio
        self._tenants.adopt(policy.tenant)
        self._waiting.adopt(policy)
        self._matcher.adopt(policy)
        self._care.adopt(policy)
        self._fleet.adopt(policy)
        for worker in self._fleet.workers.values():
            self._care.update(worker, now)
        return self._reseated(list(self._queue.lanes), effects, now)

    def tick(self, now: float) -> list[Effect]:
        """Time has come to `next_deadline`."""
        return self._step(now)

    @property
    def soonest(self) -> float:
        """Nothing is due before; `next_deadline` says more exactly when something is."""
        return self._timers.first

    def next_deadline(self) -> float | None:
        """When `tick` is due at the latest; None while nothing is."""
        return self._timers.next_at()

    def close(self, now: float) -> list[Effect]:
        """The gateway stops: refuse all that wait and all that comes."""
        effects = self._care.due(now)
        self._waiting.closed = True
        for ticket in self._queue.tickets():
            effects.append(self._waiting.evict(ticket, Reason.SHUTTING_DOWN, now))
        return effects

    def snapshot(self, now: float) -> FleetSnapshot:
        """Everything as it is now."""
        queues = show_queues(self._queue.tickets(), now)
        queue, workers, per_s = self._queue, self._fleet.snapshots(now), self._waiting.drain_per_s(now)
        oldest_s = max((line.oldest_wait_s for line in queues), default=0.0)
        return FleetSnapshot(now, workers, queues, queue.count, queue.bytes, self._in_flight, oldest_s, per_s)

    def waiting(self, request_id: str, now: float) -> Wait | None:
        """Why a request waits; None where none of that id does."""
        ticket = self._queue.find(request_id)
        return None if ticket is None else wait_of(ticket, self._matcher.room, now)

    def tenants(self) -> tuple[TenantSnapshot, ...]:
        """The tenants that were seen, as they are now."""
        return self._tenants.snapshots()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _refused(self, ticket: Ticket, reason: Reason, effects: list[Effect] | None, now: float) -> list[Effect]:
        refusal = self._waiting.refusal(ticket, reason, now)
        if effects is None:
            return [refusal]
        effects.append(refusal)
        return effects

    def _step(self, now: float) -> list[Effect]:
        return self._match(self._care.due(now), now)

    def _reseated(self, lanes: list[Lane], effects: list[Effect], now: float) -> list[Effect]:
        """Seat the tickets of these lanes anew, and place what can be placed."""
        effects += self._waiting.reseat(lanes, now)
        return self._match(effects, now)

    def _match(self, effects: list[Effect], now: float) -> list[Effect]:
        """Place what can be placed; `effects`, with that added."""
        if self._queue.lanes:
            for lease in self._matcher.run(now):
                self._sent(lease, now)
                if lease.ticket.excluded:
                    self._waiting.left(lease.ticket)
                effects.append(lease)
        return effects

    def _sent(self, lease: Lease, now: float) -> None:
        self._in_flight += 1
        worker = booked(lease)
        if worker.watch.checks_at is None:
            self._watchdog.sent(worker, now)
