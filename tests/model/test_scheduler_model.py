"""The scheduler under any sequence of events: what must always hold, checked after each of them.

Two schedulers with one seed get the same events; their decisions have to be the same to the last digit.

Where the invariants of `facts/reliability.md` 3 that the scheduler has a part in are asserted:

1        `end`, `teardown`: one outcome each
2        `teardown`: everything is back at zero
3        `the_ledger_is_the_sum_of_its_leases`, the numbers shown included
4, 5     `carry`: places taken are within the limit at every dispatch; with replicas: `test_lease_protocol`
6        `carry`: nothing is sent after its deadline, nothing that is not open
7        `carry`, `submit_one`: waits, and both bounds of the queue
8        `no_lower_class_first`; with floors: `test_scheduler_shares`
9, 10    `test_scheduler_shares`
11       `test_sched_shedding`
12       `carry`: attempts of a request; `Account.ended` and `test_sched_retries`: the budget
16       `only_the_fit_get_work`
17       `every_ejection_ends`; that a probe is sent then: `nobody_waits_beside_room` includes probing workers
18       `Ramps`
19       `adopt`: of two policies the last one holds alone; one revision a request: `test_app_policy_api`
23       no clock can be asked (`tests/architecture`): time is an argument
30       `carry`: the twin
31       `finish`: a counter is what was used
32       `carry`: from 1 to 60; that it grows with the backlog: `test_sched_pace`
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_checks import (
    Account,
    Ramps,
    every_ejection_ends,
    no_lower_class_first,
    nobody_waits_beside_room,
    only_the_fit_get_work,
)
from scheduler_world import ORDINARY, SPECS, kinds, policy, requests, workers

from gateway.scheduling.limits import full_limit
from gateway.scheduling.model import (
    Effect,
    Lease,
    Outcome,
    OutcomeKind,
    Refuse,
    Request,
    Requeue,
    Signal,
    Ticket,
    TicketState,
    WorkerSpec,
    WorkerState,
)
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy


class SchedulerMachine(RuleBasedStateMachine):
    """One scheduler, its twin, and an account of every ticket and lease."""

    @initialize(
        seed=st.integers(0, 1000),
        algorithm=st.sampled_from(["least_outstanding_work", "power_of_two"]),
        floors=st.booleans(),
    )
    def start(self, seed: int, algorithm: str, floors: bool) -> None:
        self.now = 1000.0
        self.algorithm, self.floors = algorithm, floors
        self.policy = policy(algorithm=algorithm, floors=floors)
        self.ramps, self.account = Ramps(), Account(self.now)
        self.scheduler = Scheduler(self.policy, Random(seed))
        self.twin = Scheduler(self.policy, Random(seed))
        self.twins: dict[Any, Any] = {}
        self.open: dict[Ticket, None] = {}
        self.leases: dict[Lease, None] = {}
        self.ended: dict[Ticket, str] = {}
        self.number = 0
        self.incarnations = dict.fromkeys(SPECS, 0)
        for worker in SPECS:
            self.join(worker, ("m",), False)

    # -- carrying events to both and keeping account -----------------------------------------------------------------

    def carry(self, effects: list[Effect], twins: list[Effect]) -> None:
        assert [self.told(effect) for effect in effects] == [self.told(effect) for effect in twins]
        touched = set()
        for effect, twin in zip(effects, twins, strict=True):
            if isinstance(effect, Lease):
                ticket, lease = effect.ticket, effect
                assert isinstance(twin, Lease)
                self.twins[lease] = twin
                assert ticket in self.open
                assert ticket.state is TicketState.LEASED
                assert ticket.lease is lease
                assert not lease.settled
                assert ticket.request.deadline is None or self.now < ticket.request.deadline
                assert lease.queued_s <= ticket.request.queue_timeout_s + 1e-9
                assert lease.worker not in ticket.excluded
                assert 1 <= ticket.attempts <= self.policy.retries.max_attempts
                assert lease.choice is not None
                assert lease.choice.told()[0][0] == lease.worker
                self.leases[lease] = None
                touched.add(lease.worker)
            elif isinstance(effect, Refuse):
                assert 1.0 <= effect.retry_after_s <= 60.0
                self.end(effect.ticket, str(effect.reason))
        no_lower_class_first(self.policy, self.open, effects, self.now)
        only_the_fit_get_work(self.scheduler, effects)
        self.ramps.look(self.scheduler, self.policy, self.now)
        shown = {worker.id: worker for worker in self.scheduler.snapshot(self.now).workers if worker.state != "gone"}
        for worker_id in touched:
            assert shown[worker_id].in_flight <= shown[worker_id].limit
        for tenant, count in self.running().items():
            cap = self.policy.tenant(tenant).max_in_flight
            if touched and cap is not None and any(x.ticket.request.tenant == tenant for x in self.dispatched(effects)):
                assert count <= cap

    @staticmethod
    def dispatched(effects: list[Effect]) -> list[Lease]:
        return [effect for effect in effects if isinstance(effect, Lease)]

    def running(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for lease in self.leases:
            tenant = lease.ticket.request.tenant
            counts[tenant] = counts.get(tenant, 0) + 1
        return counts

    def told(self, effect: Effect) -> tuple[Any, ...]:
        if isinstance(effect, Lease):
            lease = effect
            told = lease.choice and lease.choice.told()
            return ("dispatch", effect.ticket.request.id, lease.worker, lease.score, lease.cost, told)
        if isinstance(effect, Refuse):
            return ("refuse", effect.ticket.request.id, effect.reason, effect.retry_after_s, effect.evicted)
        if isinstance(effect, Requeue):
            return ("requeue", effect.ticket.request.id, effect.ticket.not_before)
        return ("change", effect.worker, effect.state, effect.why)

    def end(self, ticket: Ticket, how: str) -> None:
        assert ticket not in self.ended, f"ended twice: {self.ended[ticket]}, then {how}"
        self.ended[ticket] = how
        self.open.pop(ticket, None)
        assert ticket.state is TicketState.ENDED

    # -- events ------------------------------------------------------------------------------------------------------

    @rule(wanted=requests, deadline=st.sampled_from([None, None, None, -1.0, 0.3, 8.0]))
    def submit(self, wanted: dict[str, Any], deadline: float | None) -> None:
        self.submit_one(wanted, deadline)

    def submit_one(self, wanted: dict[str, Any], deadline: float | None) -> None:
        self.number += 1
        until = None if deadline is None else self.now + deadline
        request = Request(id=str(self.number), deadline=until, **wanted)
        ticket, effects = self.scheduler.submit(request, object(), self.now)
        twin, twin_effects = self.twin.submit(request, object(), self.now)
        self.twins[ticket] = twin
        self.open[ticket] = None
        self.carry(effects, twin_effects)
        if ticket.state is TicketState.QUEUED:
            assert request.may_queue
            queue, bounds = self.scheduler._queue, self.policy.admission
            assert (queue.count, queue.bytes) <= (bounds.max_queued, queue.bytes)
            assert queue.bytes <= bounds.max_queued_bytes

    @rule(count=st.integers(2, 8), klass=st.integers(0, 2), tenant=st.sampled_from(["small", "heavy", "other"]))
    def burst(self, count: int, klass: int, tenant: str) -> None:
        for _ in range(count):
            self.submit_one({"tenant": tenant, "klass": klass, "pools": ("short", "long"), **ORDINARY}, None)

    @precondition(lambda self: any(ticket.state is TicketState.QUEUED for ticket in self.open))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [ticket for ticket in self.open if ticket.state is TicketState.QUEUED]
        ticket = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        effects = self.scheduler.cancel(ticket, self.now)
        twins = self.twin.cancel(self.twins[ticket], self.now)
        if ticket not in self.ended and not any(isinstance(e, Refuse) and e.ticket is ticket for e in effects):
            self.end(ticket, "cancelled")
        self.carry(effects, twins)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), tokens=st.integers(0, 500))
    def stream(self, data: st.DataObject, tokens: int) -> None:
        lease = self.pick_lease(data)
        for scheduler, one in ((self.scheduler, lease), (self.twin, self.twins[lease])):
            scheduler.first_token(one, self.now)
            scheduler.progress(one, tokens, self.now)

    def pick_lease(self, data: st.DataObject) -> Lease:
        return list(self.leases)[data.draw(st.integers(0, len(self.leases) - 1))]

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=kinds, retry=st.booleans(), wait=st.sampled_from([None, 0.0, 3.0, 1e9, math.nan]))
    def settle(self, data: st.DataObject, kind: OutcomeKind, retry: bool, wait: float | None) -> None:
        self.finish(self.pick_lease(data), Outcome(kind, None, wait), retry)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), output=st.integers(0, 2000))
    def succeed(self, data: st.DataObject, output: int) -> None:
        self.finish(self.pick_lease(data), Outcome(OutcomeKind.OK, 200, None, 100, output), False)

    def finish(self, lease: Lease, outcome: Outcome, retry: bool) -> None:
        del self.leases[lease]
        ticket = lease.ticket
        before = self.account.charged(self.scheduler, lease) - lease.charged
        effects = self.scheduler.settle(lease, outcome, self.now, retry=retry)
        twins = self.twin.settle(self.twins[lease], outcome, self.now, retry=retry)
        again = any(isinstance(effect, Requeue) and effect.ticket is ticket for effect in effects)
        refused = any(isinstance(effect, Refuse) and effect.ticket is ticket for effect in effects)
        assert again or not retry or refused or outcome.kind in ("ok", "client_gone", "client_error")
        self.account.ended(outcome, again, self.now, self.policy)
        if outcome.prompt_tokens is not None and outcome.output_tokens is not None and not again:
            flow = (ticket.request.tenant, ticket.request.klass)
            sent = self.dispatched(effects)
            more = [one for one in sent if (one.ticket.request.tenant, one.ticket.request.klass) == flow]
            actual = max(outcome.prompt_tokens - lease.held, 0) + 2 * outcome.output_tokens
            after = self.account.charged(self.scheduler, lease) - sum(one.charged for one in more)
            assert math.isclose(after, before + actual, rel_tol=1e-9, abs_tol=1e-6)
        if not again and not refused:
            self.end(ticket, "settled")
        self.carry(effects, twins)

    @rule(worker=workers, models=st.sampled_from([("m",), ("m", "n")]), new=st.sampled_from([False, False, True]))
    def observe(self, worker: str, models: tuple[str, ...], new: bool) -> None:
        self.join(worker, models, new)

    def join(self, worker: str, models: tuple[str, ...], new: bool) -> None:
        self.incarnations[worker] += new
        spec = WorkerSpec(
            worker, models=frozenset(models), incarnation=f"i{self.incarnations[worker]}", **SPECS[worker]
        )
        self.carry(self.scheduler.observe(spec, None, self.now), self.twin.observe(spec, None, self.now))

    @rule(worker=workers, running=st.integers(0, 6), waiting=st.integers(0, 3), kv=st.integers(0, 40_000))
    def report(self, worker: str, running: int, waiting: int, kv: int) -> None:
        known = self.scheduler._fleet.workers.get(worker)
        if known is not None:
            signal = Signal(self.now, running, waiting, kv)
            spec = known.spec
            self.carry(self.scheduler.observe(spec, signal, self.now), self.twin.observe(spec, signal, self.now))

    @rule(worker=workers, kind=st.sampled_from([OutcomeKind.RESET, OutcomeKind.CONNECT_FAILED, OutcomeKind.BUSY]))
    def crash(self, worker: str, kind: OutcomeKind) -> None:
        for lease in [lease for lease in self.leases if lease.worker == worker]:
            self.finish(lease, Outcome(kind), lease.first_token_at is None)

    @precondition(lambda self: self.number % 3 == 0)
    @rule(worker=workers)
    def forget(self, worker: str) -> None:
        self.carry(self.scheduler.forget(worker, self.now), self.twin.forget(worker, self.now))

    @precondition(lambda self: self.number % 3 == 1)
    @rule(worker=workers, on=st.booleans())
    def drain(self, worker: str, on: bool) -> None:
        self.carry(self.scheduler.drain(worker, self.now, on), self.twin.drain(worker, self.now, on))

    @precondition(lambda self: self.number % 3 == 2)
    @rule(worker=workers, n=st.sampled_from([None, None, 0, 1, 2, 5]))
    def set_slots(self, worker: str, n: int | None) -> None:
        self.carry(self.scheduler.set_slots(worker, n, self.now), self.twin.set_slots(worker, n, self.now))

    @rule(limit=st.sampled_from([None, 1, 3]), queued=st.sampled_from([2, 12]))
    def adopt(self, limit: int | None, queued: int) -> None:
        self.adopt_one(policy(limit=2, queued=12, algorithm=self.algorithm, floors=self.floors))
        self.adopt_one(policy(limit, queued, self.algorithm, self.floors))
        # After A and then B everything is as B says.
        for worker in self.scheduler._fleet.workers.values():
            assert worker.limit <= full_limit(worker, self.policy)

    def adopt_one(self, new: Policy) -> None:
        self.policy = new
        self.carry(self.scheduler.adopt(new, self.now), self.twin.adopt(new, self.now))

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 7.0, 40.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(1000):
            due = self.scheduler.next_deadline()
            assert due == self.twin.next_deadline()
            if due is None or due > until:
                break
            assert due >= self.now
            self.now = due
            self.tick()
            after = self.scheduler.next_deadline()
            assert after == self.twin.next_deadline()
            assert after is None or after > due
        else:
            raise AssertionError("deadlines that do not move on")
        self.now = until
        self.tick()

    def tick(self) -> None:
        self.carry(self.scheduler.tick(self.now), self.twin.tick(self.now))

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_ticket_is_in_one_place(self) -> None:
        if not hasattr(self, "open"):
            return
        queued = [ticket for ticket in self.open if ticket.state is TicketState.QUEUED]
        leased = [ticket for ticket in self.open if ticket.state is TicketState.LEASED]
        assert len(queued) + len(leased) == len(self.open)
        assert {lease.ticket for lease in self.leases} == set(leased)
        shown = self.scheduler.snapshot(self.now)
        assert shown.queued == len(queued) == sum(line.queued for line in shown.queues)
        assert shown.queued_bytes == sum(ticket.request.body_bytes for ticket in queued)
        assert shown.in_flight == len(leased)
        assert all(self.now < ticket.queue_until or ticket.since == self.now for ticket in queued)

    @invariant()
    def ejections_end(self) -> None:
        if hasattr(self, "open"):
            every_ejection_ends(self.scheduler, self.policy, self.now)
            # Asking drops entries that mean nothing now but might again, so of two due at once another is first.
            self.twin.next_deadline()

    @invariant()
    def the_ledger_is_the_sum_of_its_leases(self) -> None:
        if not hasattr(self, "open"):
            return
        fleet = self.scheduler._fleet
        shown = self.scheduler.snapshot(self.now).workers
        for worker, told in zip((*fleet.workers.values(), *fleet.retired), shown, strict=True):
            assert (told.id, told.leases, told.in_flight) == (worker.id, worker.leases, worker.in_flight)
            booked = (told.booked_prefill_s, told.booked_decode_s, told.booked_kv_tokens)
            assert booked == (worker.prefill_s, worker.decode_s, worker.kv_tokens)
            mine = [lease for lease in self.leases if lease.booked_on is worker]
            assert worker.leases == len(mine)
            assert worker.in_flight == sum(lease.cost.count for lease in mine)
            assert worker.prefill_s == sum(lease.prefill_left_s for lease in mine)
            assert worker.decode_s == sum(lease.decode_left_s for lease in mine)
            assert worker.kv_tokens == sum(lease.cost.kv_tokens for lease in mine)
            assert all(0.0 <= lease.prefill_left_s < math.inf for lease in mine)
            assert all(0.0 <= lease.decode_left_s < math.inf for lease in mine)
        assert all(worker.leases for worker in fleet.retired)
        held = {lease.booked_on for lease in self.leases}
        assert held <= {*fleet.workers.values(), *fleet.retired}

    @invariant()
    def no_worker_with_room_idles_beside_a_ticket_it_could_take(self) -> None:
        if not hasattr(self, "open"):
            return
        nobody_waits_beside_room(self.scheduler, self.policy, self.open, self.running(), self.now)

    @invariant()
    def room_is_held_for_one_that_waits(self) -> None:
        if not hasattr(self, "open"):
            return
        workers = self.scheduler._fleet.workers.values()
        holds = [worker.hold for worker in workers if worker.hold is not None]
        assert len({hold.home for hold in holds}) == len(holds) == len(self.scheduler._matcher.holds)
        for worker, hold in ((worker, worker.hold) for worker in workers if worker.hold is not None):
            ticket, place = hold.ticket, hold.place
            assert hold.worker is worker
            assert ticket.state is TicketState.QUEUED
            assert ticket.place is place
            assert place.hold is hold
            assert worker.max_len >= place.bucket.length
            waited, most = self.now - ticket.since, ticket.queue_until - ticket.since
            assert waited >= self.policy.admission.hold_room_after * most

    def teardown(self) -> None:
        if not hasattr(self, "open"):
            return
        effects, twins = self.scheduler.close(self.now), self.twin.close(self.now)
        self.carry(effects, twins)
        for lease in list(self.leases):
            self.finish(lease, Outcome(OutcomeKind.CLIENT_GONE), False)
        shown = self.scheduler.snapshot(self.now)
        assert not self.open
        assert (shown.queued, shown.queued_bytes, shown.in_flight, shown.queues) == (0, 0, 0, ())
        for worker in shown.workers:
            booked = (worker.booked_prefill_s, worker.booked_decode_s, worker.booked_kv_tokens)
            assert (worker.leases, worker.in_flight, *booked) == (0, 0, 0.0, 0.0, 0)
            assert worker.state is not WorkerState.GONE
        for tenant in self.scheduler._tenants._by_name.values():
            assert (tenant.in_flight, tenant.queued) == (0, 0)
        assert not self.scheduler._waiting._excluding
        assert len(self.ended) == self.number


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
