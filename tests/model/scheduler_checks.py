"""What holds of each single decision of the scheduler: checks for its model test, by their numbers in
`facts/reliability.md` 3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.scheduling.limits import ramp_step
from gateway.scheduling.model import (
    Effect,
    Lease,
    Outcome,
    OutcomeKind,
    Ticket,
    TicketState,
    WorkerChange,
    WorkerState,
)
from gateway.scheduling.queue import round_up
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.worker import Worker
from policies.document import Policy

FREE = (OutcomeKind.CONNECT_FAILED, OutcomeKind.RESET)  # retries after these cost no budget, or only the first of them


def no_lower_class_first(policy: Policy, open_: Iterable[Ticket], effects: list[Effect], now: float) -> None:
    """8: nobody of a lower class went where one of a higher class of that pool could have gone, that waits still."""
    if any(one.floor for one in policy.classes):
        return  # then a lower class may be owed its floor; that it gets no more is for `test_scheduler_shares`
    waiting = [ticket for ticket in open_ if ticket.place is not None]
    for effect in effects:
        if not isinstance(effect, Lease):
            continue
        lease, worker = effect, effect.booked_on
        assert worker is not None
        for ticket in waiting:
            place = ticket.place
            assert place is not None
            request = ticket.request
            same_pool = place.lane.home == lease.ticket.request.pools[0]
            if request.klass < lease.ticket.request.klass and same_pool and not place.line.flow.tenant.full:
                assert not could_have(worker, lease, ticket, now), f"{lease.ticket.request} went before {request}"


def could_have(worker: Worker, lease: Lease, ticket: Ticket, now: float) -> bool:
    """Whether a waiting ticket would fit on a worker in place of a lease."""
    place = ticket.place
    assert place is not None
    lane, bucket = place.lane, place.bucket
    if worker not in lane.workers or not worker.ready or worker.max_len < bucket.length:
        return False
    if worker.id in bucket.excluded or (worker.guests and worker.spec.pool in lane.guest_pools):
        return False
    if worker.hold is not None or worker.foreign_kv or worker.health.probing:
        return False
    if worker.signal is not None and now - worker.signal.at > 2.9:
        return False  # what a stale report inflates is not to be told from room
    if worker.leases == 1:
        return True
    free = worker.limit - worker.in_flight + lease.cost.count
    kv_free = worker.kv_free + lease.cost.kv_tokens
    need = min(bucket.kv_each, worker.max_len) * bucket.sequences
    return min(bucket.sequences, worker.limit) <= free and need <= kv_free


def only_the_fit_get_work(scheduler: Scheduler, effects: list[Effect]) -> None:
    """16: ejected workers get none but probes, and soft reasons eject no more of a pool than it can spare."""
    workers = scheduler._fleet.workers
    share = scheduler._policy.health.max_ejected
    for effect in effects:
        if isinstance(effect, Lease):
            worker = effect.booked_on
            assert worker is not None
            assert worker.state in (WorkerState.READY, WorkerState.PROBING)
            assert effect.canary is (worker.state is WorkerState.PROBING)
            assert worker.canaries <= max(effect.cost.count, 1)
        elif isinstance(effect, WorkerChange) and effect.why.endswith("failures in a row") and effect.worker in workers:
            pool = [one for one in workers.values() if one.spec.pool == workers[effect.worker].spec.pool]
            assert sum(one.health.soft for one in pool) <= int(share * len(pool))


def every_ejection_ends(scheduler: Scheduler, policy: Policy, now: float) -> None:
    """17: an ejected worker is probed again after the longest ejection at the latest: a timer stands for it."""
    due = scheduler.next_deadline()
    for worker in scheduler._fleet.workers.values():
        if worker.health.ejected:
            assert now < worker.health.ejected_until <= now + 1.2 * policy.health.ejection_cap_s
            assert due is not None
            assert due <= worker.health.ejected_until + 0.002


def nobody_waits_beside_room(
    scheduler: Scheduler, policy: Policy, open_: Iterable[Ticket], running: Mapping[str, int], now: float
) -> None:
    """No worker with room idles beside a ticket that it could take, but for one held for another. `running`: leases
    of each tenant."""
    fleet = scheduler._fleet
    watermark = policy.admission.kv_watermark
    for ticket in open_:
        request = ticket.request
        if ticket.state is not TicketState.QUEUED or ticket.place is None:
            continue
        cap = policy.tenant(request.tenant).max_in_flight
        if cap is not None and running.get(request.tenant, 0) >= cap:
            continue
        serving = [w for w in fleet.workers.values() if request.model in w.spec.models]
        serving = [w for w in serving if request.model not in w.off_models]
        home = [w for w in serving if w.spec.pool in request.pools]
        mine = home or [w for w in serving if w.spec.pool in request.fallback_pools]
        assert mine, "it waits for a worker that does not exist"
        for worker in mine:
            # What reports add fades with time and not with an event; it is checked where it is not at play.
            if worker.foreign_kv or worker.max_len < ticket.place.bucket.length:
                continue
            if worker.id in ticket.excluded or worker.state not in (WorkerState.READY, WorkerState.PROBING):
                continue
            if worker.guests and worker.spec.pool in ticket.place.lane.guest_pools:
                continue  # one long prompt at a time is a guest of a worker for short ones
            if worker.hold is not None and worker.hold.bars(ticket, request.klass):
                continue  # see `room_is_held_for_one_that_waits`
            if now < worker.health.cool_until or worker.in_flight >= worker.limit:
                continue
            worker.refresh(now, 0.1, watermark)
            allowed = request.max_output_tokens
            output = request.p90_output if allowed is None else min(request.p90_output, allowed)
            output = output if request.generates else 0
            need = min(round_up(request.prompt_tokens + output), worker.max_len) * request.sequences
            fits = need <= worker.kv_free and (min(request.sequences, worker.limit) <= worker.limit - worker.in_flight)
            stale = worker.signal is not None and now - worker.signal.at > 2.9
            assert worker.leases, f"{request} waits beside {worker}, which has nothing to do"
            assert stale or not fits, f"{request} waits beside {worker}"


class Ramps:
    """18: slow start goes on by one step at a time."""

    def __init__(self) -> None:
        self._steps: dict[Worker, tuple[float | None, int]] = {}

    def look(self, scheduler: Scheduler, policy: Policy, now: float) -> None:
        """After every event and every deadline."""
        here = set(scheduler._fleet.workers.values())
        # One that was forgotten and comes back while its leases run was not looked at meanwhile: time went on for it.
        self._steps = {worker: seen for worker, seen in self._steps.items() if worker in here}
        for worker in here:
            began, step = worker.health.ramp_from, ramp_step(worker, policy, now)
            before = self._steps.get(worker)
            if before is not None and before[0] == began:
                assert step - before[1] <= 1, f"{worker} went from step {before[1]} to {step}"
            self._steps[worker] = (began, step)


class Account:
    """12: what retries cost is within their budgets; 31: a tenant's counter is what it really used."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._good = 0
        self._costly = 0
        self._pools = 4  # that have a budget of their own

    def ended(self, outcome: Outcome, again: bool, now: float, policy: Policy) -> None:
        """A lease ended; `again`: its ticket is tried another time."""
        self._good += outcome.kind is OutcomeKind.OK
        self._costly += again and outcome.kind not in FREE
        floor = self._pools * (10.0 + (now - self._began) * 10.0 / 60.0)
        assert self._costly <= policy.retries.budget_ratio * self._good + floor

    @staticmethod
    def charged(scheduler: Scheduler, lease: Lease) -> float:
        """The counter of a lease's flow, in tokens."""
        request = lease.ticket.request
        flow = scheduler._tenants.get(request.tenant).flow(request.klass)
        return flow.counter * flow.tenant.weight
