"""Brings waiting tickets and open workers together: who goes next, and where to.

1. A class that is owed its floor in some pool, the most owed first; then classes in their order.
2. Inside a class the ticket that a worker is held for; then the flow (tenant) with the least counter; of equals the
   ticket that came first.
3. Of the flow's tickets the first whose needs an open worker meets.
4. Of the workers that meet them, the balancer's choice.

A pass goes on until no waiting ticket can be placed, so that no worker with room idles beside one that it could take,
but for one that is held for another (`holds.py`). Room only shrinks during a pass: what was found blocked stays blocked
until its end, or until a hold has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.causes import Room
from gateway.scheduling.fairness import Flow, service
from gateway.scheduling.floors import Floors
from gateway.scheduling.holds import Holds
from gateway.scheduling.lanes import Lane, Roster, output_within
from gateway.scheduling.model import Choice, Lease, Request, Ticket, TicketState
from gateway.scheduling.queue import Band, Bucket, Place, Queue
from gateway.scheduling.reserve import beside_reserve
from policies.balance import BALANCERS, NOTHING_CACHED, Job, least_outstanding_work

if TYPE_CHECKING:
    from gateway.scheduling.fleet import Fleet
    from gateway.scheduling.worker import Worker
    from policies.document import Policy

AGE_ESCAPE: Final = 2.0
EXPLAINED: Final = 8  # candidates remembered on a lease

_LEASED: Final = TicketState.LEASED


def kept_at_home(roster: Roster, home: Roster, standby: bool, prefill_tokens: int, enough_s: float | None) -> Roster:
    """The workers of the home pool alone, if one of them has nothing at all to do or would answer in `enough_s` (the
    pool's own promise), or if the others only stand by.

    Between pools the score weighs delays; where there are none, a borrowed worker that happens to be faster, or is
    only believed to be, must not draw away what its own pool could begin at once.
    """
    if standby:
        return home
    for worker in home.workers:
        if not worker.leases and not worker.base_s:
            return home
    if enough_s is not None and any(worker.ttft_s(prefill_tokens) <= enough_s for worker in home.workers):
        return home
    return roster


Blocked = dict[Lane, set[Bucket]]
"""Buckets of a lane that were found to have no room; lanes without any are left out."""

NONE_BLOCKED: Final[set[Bucket]] = set()
"""Stays empty."""


class Pass:
    """What one pass has found out: lanes that still have an open worker, and what is blocked there.

    Where classes do not have the same room (`apart`: some of it is reserved or held), what blocks one may not block
    another.
    """

    __slots__ = ("_all", "_apart", "_blocked", "failed", "lanes", "now", "passed_over", "tried")

    def __init__(self, lanes: list[Lane], apart: bool, now: float) -> None:
        self.lanes = lanes
        self.now = now
        # Most passes need none of these three, and there is one whenever an answer ends.
        self.failed: dict[str, Place] | None = None  # home pool -> the first old ticket in order that found no room
        self.passed_over: dict[str, Place] | None = None  # of those, where one after it found room on its workers
        self.tried: set[Ticket] | None = None  # of those that a worker is held for
        self._apart = apart
        self._all: Blocked = {}
        self._blocked: dict[int, Blocked] = {}

    def blocked(self, klass: int) -> Blocked:
        """For a class."""
        if not self._apart:
            return self._all
        found = self._blocked.get(klass)
        if found is None:
            found = self._blocked[klass] = {}
        return found

    def fail(self, place: Place) -> None:
        """A ticket that has waited long found no room: of a home pool the first one counts."""
        if self.failed is None:
            self.failed = {}
        self.failed.setdefault(place.lane.home, place)

    def placed(self, worker: Worker | None) -> None:
        """A ticket went to a worker: those that failed before were passed over, if they could have gone there."""
        for home, place in (self.failed or {}).items():
            if worker in place.lane.workers and worker.max_len >= place.bucket.length:
                if self.passed_over is None:
                    self.passed_over = {}
                self.passed_over.setdefault(home, place)

    def try_once(self, ticket: Ticket) -> bool:
        """Whether a ticket that a worker is held for was not tried yet; it counts as tried from now on."""
        if self.tried is None:
            self.tried = set()
        elif ticket in self.tried:
            return False
        self.tried.add(ticket)
        return True

    def forget(self) -> None:
        """There is more room again."""
        self._blocked.clear()
        self.tried = None


class Matcher:
    """Places tickets on workers and books what that costs."""

    __slots__ = (
        "_balance",
        "_beta",
        "_by_work",
        "_dispatches",
        "_fleet",
        "_floors",
        "_hold_after",
        "_job",
        "_pool_tpot_slos",
        "_pool_ttft_slos",
        "_queue",
        "_reserve",
        "_rng",
        "_tpot_slos",
        "_watermark",
        "holds",
        "room",
    )

    def __init__(self, policy: Policy, fleet: Fleet, queue: Queue, rng: Random) -> None:
        self._fleet = fleet
        self._queue = queue
        self._rng = rng
        self._dispatches = 0
        self._job = Job()
        self._job.draw = rng.random
        self._floors = Floors([one.floor for one in policy.classes])
        self.holds = Holds()
        # `adopt` says what these are. Compiled, what has a value before anything is called is not asked for one.
        self._balance = BALANCERS[policy.balancing.algorithm]
        self._by_work = False
        self._beta = self._watermark = self._reserve = self._hold_after = 0.0
        self._pool_tpot_slos: dict[str, float] = {}
        self._pool_ttft_slos: dict[str, float] = {}
        self._tpot_slos: list[float | None] = []
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decide by this policy."""
        self._balance = BALANCERS[policy.balancing.algorithm]
        # The usual one, called by its name: what has a name is called without being looked up.
        self._by_work = self._balance is BALANCERS["least_outstanding_work"]
        self._beta = policy.balancing.beta
        self._watermark = policy.admission.kv_watermark
        self._reserve = policy.admission.top_class_reserve
        self._hold_after = policy.admission.hold_room_after
        self.room = Room(self._beta, self._watermark, self._reserve)  # for who asks why something waits
        self.holds.clear()
        self._pool_tpot_slos = {
            name: slo for name, pool in policy.pools.items() if (slo := pool.tpot_slo_s) is not None
        }
        self._pool_ttft_slos = {
            name: slo for name, pool in policy.pools.items() if (slo := pool.ttft_slo_s) is not None
        }
        self._tpot_slos = [one.tpot_slo_s for one in policy.classes]
        self._floors.adopt([one.floor for one in policy.classes])

    def run(self, now: float) -> list[Lease]:
        """Place all that can be placed."""
        placed: list[Lease] = []
        holds = self.holds
        holds.freed = False
        if holds.by_home:
            holds.review(self._floors.first(self._queue.by_home))
        run = Pass([lane for lane in self._queue.lanes if lane.open], bool(self._reserve or holds.by_home), now)
        while run.lanes and (lease := self._next(run)) is not None:
            placed.append(lease)
            if run.failed is not None:
                run.placed(lease.booked_on)
            run.lanes = [lane for lane in run.lanes if lane.open]
        if run.passed_over is not None:
            for place in run.passed_over.values():
                if place.alive:
                    holds.hold(place)
        return placed

    def place(self, ticket: Ticket, lane: Lane, bucket: Bucket, band: Band, flow: Flow, now: float) -> Lease | None:
        """Send a ticket to the best worker that can take it now; None if none can."""
        roster = lane.fitting(bucket, now, self._beta, self._watermark)
        if self._reserve and flow.klass:
            kept = beside_reserve(roster.workers, roster.factors, bucket, self._reserve, self._watermark)
            roster = Roster(kept[0], kept[1])
        if self.holds.by_home:
            kept = self.holds.beside(roster.workers, roster.factors, ticket, flow.klass)
            roster = Roster(kept[0], kept[1])
        if not roster.workers:
            return None
        request = ticket.request
        prompt = request.prompt_tokens
        prefill = request.prefill_tokens if request.prefill_tokens is not None else prompt
        home = roster.home
        if home is not None:
            enough_s = self._pool_ttft_slos.get(lane.home) if self._pool_ttft_slos else None
            roster = kept_at_home(roster, home, lane.standby, prefill, enough_s)
        workers = roster.workers
        output = output_within(request, request.expected_output)
        sequences = bucket.sequences
        prefixes = self._fleet.prefixes
        hashes, ends = request.prefix_hashes, request.prefix_ends
        cached = prefixes.cached(hashes, ends, prompt - 1) if ends else NOTHING_CACHED
        job, index = self._job, 0
        scores: list[float] | None = None
        if len(workers) > 1:
            last = prefixes.last(request.session) if request.session else ""
            job.begin(prefill, output, (prompt + output) * sequences, sequences, cached, last)
            if self._by_work:
                index, scores = least_outstanding_work(workers, roster.factors, job, self._rng)
            else:
                index, scores = self._balance(workers, roster.factors, job, self._rng)
        worker = workers[index]
        name, pool = worker.id, worker.spec.pool
        held = cached.get(name, 0) if cached else 0
        if scores is not None and job.step is worker.step and not held:
            cost = worker.price_of(job.prefill_s, prompt, output, sequences)
        else:
            cost = worker.price(prefill, prompt, output, sequences, held)
        if scores is None:
            # Nothing to compare it with.
            scores = [worker.base_s + cost.prefill_s * worker.stretch + cost.decode_s]
        tpot_slo_s = self._tpot_slos[request.klass]
        if self._pool_tpot_slos:
            tpot_slo_s = self._pool_tpot_slos.get(lane.home, tpot_slo_s)
        lease = Lease(
            ticket,
            name,
            pool,
            cost,
            now,
            ticket.waited_s + now - ticket.since,
            scores[index],
            canary=worker.health.probing,
            choice=choice_of(roster, scores, index),
            charged=service(prefill - held, output * sequences),
            predicted_ttft_s=0.0 if worker.base_s else cost.prefill_s * worker.stretch + worker.step_s,
            number=self._dispatches + 1,
            booked_on=worker,
            guest=lane.guests_apart and pool in lane.guest_pools,
            tpot_slo_s=tpot_slo_s,
            held=held,
        )
        lease.claim = prefixes.sent(name, worker.kv_capacity, hashes, ends, prompt + output * sequences)
        if request.session:
            prefixes.stay(request.session, name)
        self._book(lease, lane, band, flow, worker, now)
        return lease

    def _book(self, lease: Lease, lane: Lane, band: Band, flow: Flow, worker: Worker, now: float) -> None:
        ticket = lease.ticket
        if ticket.place is not None:
            self._queue.leave(ticket, flow)
        self._dispatches += 1
        worker.picked = self._dispatches
        worker.book(lease)
        self._fleet.sync(worker)
        ticket.state = _LEASED
        ticket.attempts += 1
        ticket.waited_s += now - ticket.since
        ticket.lease = lease
        lease.flow = flow
        flow.tenant.in_flight += 1
        band.served(flow.counter)
        flow.charge(lease.charged)
        if self._queue.by_home:
            self._floors.dispatched(lane.home, flow.klass, lease.charged, self._queue.by_home)

    def correct(self, lease: Lease, flow: Flow, used: float) -> None:
        """A lease ended and used so many tokens: put right what was charged at dispatch."""
        error = used - lease.charged
        if not error:
            return
        flow.charge(error)
        pools = lease.ticket.request.pools
        if self._queue.by_home and pools:
            self._floors.dispatched(pools[0], flow.klass, error, self._queue.by_home)

    def _next(self, run: Pass) -> Lease | None:
        for home, klass in self._floors.first(self._queue.by_home):
            lease = self._from_class(klass, [lane for lane in run.lanes if lane.home == home], run, home)
            if lease is not None:
                return lease
        for klass in self._queue.classes():
            lease = self._from_class(klass, run.lanes, run)
            if lease is not None:
                return lease
        return None

    def _from_class(self, klass: int, lanes: Iterable[Lane], run: Pass, home: str | None = None) -> Lease | None:
        if self.holds.by_home and (lease := self._held(klass, home, run)) is not None:
            return lease
        blocked = run.blocked(klass)
        heads: dict[Lane, tuple[float, int, Place]] = {}
        for lane in lanes:
            self._look(lane, klass, blocked, heads)
        while heads:
            # A ticket stands in one line, so that its number decides before places would be compared.
            place = min(heads.values())[2]
            lane, bucket = place.lane, place.bucket
            lease = self.place(place.ticket, lane, bucket, place.line.band, place.line.flow, run.now)
            if lease is not None:
                return lease
            if self._hold_after < 1.0 and self.holds.wants(place, self._hold_after, run.now):
                run.fail(place)
            blocked.setdefault(lane, set()).update([other for other in lane.buckets if bucket.within(other)])
            self._look(lane, klass, blocked, heads)
        return None

    def _held(self, klass: int, home: str | None, run: Pass) -> Lease | None:
        """Place a ticket that a worker is held for. What is held is there for the others afterwards."""
        for hold in self.holds.of(klass, home):
            place = hold.place
            if place.lane not in run.lanes or not run.try_once(hold.ticket):
                continue
            lease = self.place(hold.ticket, place.lane, place.bucket, place.line.band, place.line.flow, run.now)
            if lease is not None:
                run.forget()
                return lease
        return None

    @staticmethod
    def _look(lane: Lane, klass: int, blocked: Blocked, heads: dict[Lane, tuple[float, int, Place]]) -> None:
        """Find who is next in a lane, for `heads`."""
        band = lane.band_of(klass)
        closed = blocked.get(lane, NONE_BLOCKED)
        place = band.peek(closed) if band is not None and len(closed) < len(lane.buckets) else None
        if place is not None:
            heads[lane] = (place.line.flow.counter, place.ticket.sequence, place)
        else:
            heads.pop(lane, None)


def choice_of(roster: Roster, scores: list[float], chosen: int) -> Choice:
    """What to remember of a choice: of many workers the chosen one and those with the best scores."""
    workers = roster.workers
    if len(workers) > EXPLAINED:
        bar = sorted(scores)[EXPLAINED - 1]
        others = sorted([(score, at) for at, score in enumerate(scores) if score <= bar and at != chosen])
        best = [chosen, *[at for _, at in others[: EXPLAINED - 1]]]
        workers = [workers[at] for at in best]
        return Choice(0, names_of(workers), [scores[at] for at in best], reports_of(workers))
    names, reports = roster.names, roster.reports
    if names is None:
        names = roster.names = names_of(workers)
    if reports is None:
        reports = roster.reports = reports_of(workers)
    return Choice(chosen, names, scores, reports)


def names_of(workers: list[Worker]) -> list[str]:
    """Their ids."""
    return [worker.id for worker in workers]


def reports_of(workers: list[Worker]) -> list[float | None]:
    """When the last report of each had come."""
    return [None if worker.signal is None else worker.signal.at for worker in workers]


def rank_key(request: Request, submitted: float, lane: Lane) -> float:
    """Order inside a flow: shortest predicted prefill first, with an age escape.

    A request counts as if it had come AGE_ESCAPE times its prefill later, so that one of p seconds is overtaken by
    shorter ones that come within AGE_ESCAPE · p after it and by no others. The key never changes while it waits.
    """
    prefill = request.prefill_tokens if request.prefill_tokens is not None else request.prompt_tokens
    return submitted + AGE_ESCAPE * lane.step.prefill_s(prefill)
