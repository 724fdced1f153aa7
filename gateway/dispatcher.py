"""The shell around the scheduler: gives it the time, carries its decisions to the exchanges, keeps its one timer.

No task and no future per request: an exchange is a `Sink`, and decisions arrive as calls. Effects are put on one
deque and carried out in one place, so a sink may call the dispatcher again from inside a callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Protocol, cast

from gateway.scheduling.listeners import Owner, Watch, onlooker
from gateway.scheduling.model import (
    Effect,
    Lease,
    Order,
    Outcome,
    OutcomeKind,
    Refuse,
    Request,
    Signal,
    Ticket,
    TicketState,
    WorkerChange,
    WorkerSpec,
)
from gateway.scheduling.shares import HEAVY_S

if TYPE_CHECKING:
    from gateway.scheduling.causes import Wait
    from gateway.scheduling.model import Others
    from gateway.scheduling.scheduler import Scheduler
    from gateway.scheduling.shares import Load
    from gateway.scheduling.snapshot import FleetSnapshot, TenantSnapshot
    from policies.document import Policy

# The scheduler's deadlines are tens of milliseconds and more; a deadline that does not move on must not spin the loop.
MIN_TIMER_S = 0.001


def nothing() -> None:
    """Nobody wants to know."""


class Sink(Protocol):
    """Who waits for a decision about one ticket. Both calls may come before `Dispatcher.submit` has returned."""

    def on_lease(self, lease: Lease) -> None:
        """The request may run on `lease.worker` now; whoever gets this settles the lease, exactly once."""
        ...

    def on_refused(self, refused: Refuse) -> None:
        """The request ends here, and why."""
        ...


class Timer(Protocol):
    """A pending call that can be taken back."""

    def cancel(self) -> None:
        """Take it back; harmless when it has run."""
        ...


class Timers(Protocol):
    """What the dispatcher needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the loop in `delay` seconds."""
        ...


class Dispatcher:
    """Carries events to the scheduler and its effects to the sinks.

    `clock` is one monotonic clock for everything the scheduler sees. `on_change` gets every change of a worker's
    state, `watch` every lease. `on_error` gets what a sink raised: one broken exchange must not keep the others from
    their decisions.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        timers: Timers,
        on_change: Callable[[WorkerChange], None],
        on_error: Callable[[BaseException], None],
        watch: Watch,
    ) -> None:
        self.now = clock
        self._scheduler = scheduler
        self._timers = timers
        self._on_change = on_change
        self._on_error = on_error
        self._watch = onlooker(watch)
        self._effects: deque[Effect] = deque()
        self._pending = 0  # how many there are: compiled, a deque is asked for that by a call
        self._carrying = False
        self.lease_until = inf
        """After this time `on_overdue` is called before anything is decided: it sets slots anew and this time too."""
        self.on_overdue: Callable[[], None] = nothing
        self.on_waiting: Callable[[], None] = nothing
        """Called for every request that has to wait."""
        self.on_heavy: Callable[[], None] = nothing
        """Called for every request sent whose prefill takes long."""
        self._timer: Timer | None = None
        self._timer_at = inf

    # -- what exchanges call ------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Ask for a place; the answer comes to `sink`, possibly before this returns."""
        ticket, effects = self._scheduler.enter(request, sink, self._time())
        if effects is not None:
            self._carry(effects)
        elif ticket.lease is not None:
            self._carry_first(ticket.lease)
        if ticket.state is TicketState.QUEUED:
            self.on_waiting()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Take a queued ticket out. A leased one is settled instead."""
        self._carry(self._scheduler.cancel(ticket, self._time()))

    def waiting(self, request_id: str) -> Wait | None:
        """Why a request waits; None where none of that id does."""
        return self._scheduler.waiting(request_id, self.now())

    def first_token(self, lease: Lease) -> None:
        """The first token of this lease has come: its prefill is done."""
        self._carry(self._scheduler.first_token(lease, self._time()))

    def progress(self, lease: Lease, tokens: int) -> None:
        """That many more tokens have come."""
        self._scheduler.progress(lease, tokens, self.now())

    def settle(self, lease: Lease, outcome: Outcome, *, retry: bool = False) -> None:
        """The lease ended. With `retry`, its sink hears again: another lease or a refusal."""
        self._watch.settled(lease, outcome)
        effects = self._scheduler.end(lease, outcome, self._time(), retry)
        if effects is not None:
            self._carry(effects)
        elif not self._carrying:
            self._carry_rest()

    # -- what the fleet, the policy store and the admin plane call ------------------------------------------------

    def observe(self, spec: WorkerSpec, signal: Signal | None) -> None:
        """A worker exists as `spec` says; `signal` is what it reported, if it did."""
        self._carry(self._scheduler.observe(spec, signal, self._time()))

    def forget(self, worker_id: str) -> None:
        """The worker is no longer registered: nothing new for it, what runs may finish."""
        self._carry(self._scheduler.forget(worker_id, self._time()))

    def drain(self, worker_id: str, *, on: bool = True) -> None:
        """Nothing new for the worker while `on`."""
        self._carry(self._scheduler.drain(worker_id, self._time(), on))

    def order(self, worker_id: str, order: Order) -> None:
        """What an operator says about the worker holds from now on."""
        self._carry(self._scheduler.order(worker_id, order, self._time()))

    def readmit(self, worker_id: str) -> None:
        """An operator says that the worker is well."""
        self._carry(self._scheduler.readmit(worker_id, self._time()))

    def adopt(self, policy: Policy) -> None:
        """Decide by this policy from now on."""
        self._carry(self._scheduler.adopt(policy, self._time()))

    def govern(self, *, on: bool) -> None:
        """Whether leases govern the workers: then one without any gets nothing."""
        self._scheduler.shares.govern(on=on)

    def lease(self, slots: Mapping[str, int | None]) -> None:
        """So many places of each worker, or of `@tenant`, are leased to us; None: leases don't govern it."""
        self._carry(self._scheduler.lease(slots, self.now()))

    def loads(self) -> list[Load]:
        """What to tell other gateways."""
        return [*self._scheduler.shares.loads(self.now()), *self._scheduler.shares.tenants()]

    def others(self, work: Mapping[str, Others]) -> None:
        """What other gateways have on the workers."""
        self._scheduler.shares.others(work)

    def close(self) -> None:
        """The gateway stops: everything still queued is refused, and nothing is queued any more."""
        self._carry(self._scheduler.close(self.now()))

    def stop(self) -> None:
        """Take the timer back; for the very end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = inf

    def tenants(self) -> tuple[TenantSnapshot, ...]:
        """The tenants that were seen, as they are now."""
        return self._scheduler.tenants()

    def snapshot(self) -> FleetSnapshot:
        """The fleet and the queues as they are now, unchanging."""
        return self._scheduler.snapshot(self.now())

    def _time(self) -> float:
        """Now; leases that have run out by now no longer hold.

        A loop that stood still may run exchanges before anybody could look at the clock.
        """
        now = self.now()
        if now > self.lease_until:
            self.on_overdue()
        return now

    # -- carrying out --------------------------------------------------------------------------------------------

    def _carry(self, effects: list[Effect]) -> None:
        """Carry out effects in order; a call from inside a callback only appends."""
        if len(effects) == 1:
            self._carry_first(effects[0])
            return
        self._effects.extend(effects)
        self._pending += len(effects)
        if not self._carrying:
            self._carry_rest()

    def _carry_first(self, effect: Effect) -> None:
        """The same of one effect."""
        if self._carrying or self._pending:
            self._effects.append(effect)
            self._pending += 1
            if self._carrying:
                return
        else:
            self._carrying = True
            try:
                self._carry_one(effect)
            finally:
                self._carrying = False
        self._carry_rest()

    def _carry_rest(self) -> None:
        """Carry out what waits for it, and see to the timer."""
        if self._pending:
            self._carrying = True
            try:
                while self._pending:
                    self._pending -= 1
                    self._carry_one(self._effects.popleft())
            finally:
                self._carrying = False
        # Most often nothing is due before the timer, or nothing at all.
        if self._scheduler.soonest < self._timer_at:
            self._arm()

    def _carry_one(self, effect: Effect) -> None:
        if isinstance(effect, Lease):
            lease = effect
            self._watch.dispatched(lease)
            if lease.cost.prefill_s >= HEAVY_S:
                self.on_heavy()
            owner = lease.ticket.owner
            try:
                if isinstance(owner, Owner):
                    owner.on_lease(lease)
                else:
                    cast(Sink, owner).on_lease(lease)
            except Exception as error:
                # The sink never took charge of its lease, so nobody else will ever settle it.
                if not lease.settled:
                    self.settle(lease, Outcome(OutcomeKind.LOCAL))
                self._on_error(error)
        elif isinstance(effect, Refuse):
            try:
                cast(Sink, effect.ticket.owner).on_refused(effect)
            except Exception as error:
                self._on_error(error)
        elif isinstance(effect, WorkerChange):
            self._on_change(effect)

    def _arm(self) -> None:
        """Have the timer run no later than the scheduler's next deadline; an earlier one may stay."""
        deadline = self._scheduler.next_deadline()
        if deadline is None:
            self.stop()
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        delay = max(deadline - self.now(), MIN_TIMER_S)
        self._timer_at = deadline
        self._timer = self._timers.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = inf
        self._carry(self._scheduler.tick(self._time()))
