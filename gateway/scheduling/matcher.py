"""Brings waiting tickets and open workers together: who goes next, and where to.

1. A class that is owed its floor in some pool, the most owed first; then classes in their order.
2. Inside a class the flow (tenant) with the least counter; of equals the ticket that came first.
3. Of the flow's tickets the first whose needs an open worker meets.
4. Of the workers that meet them, the balancer's choice.

A pass goes on until no waiting ticket can be placed, so that no worker with room idles beside one that it could take.
Room only shrinks during a pass: what was found blocked stays blocked until its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.fairness import Flow, service
from gateway.scheduling.floors import Floors
from gateway.scheduling.lanes import Lane, output_within
from gateway.scheduling.model import Dispatch, Lease, Request, Ticket, TicketState
from gateway.scheduling.queue import Bucket, Place, Queue
from gateway.scheduling.reserve import beside_reserve
from policies.balance import BALANCERS, NOTHING_CACHED, Job

if TYPE_CHECKING:
    from gateway.scheduling.fleet import Fleet
    from gateway.scheduling.worker import Worker
    from policies.document import Policy

AGE_ESCAPE: Final = 2.0
EXPLAINED: Final = 8  # candidates remembered on a lease


def kept_at_home(workers: list[Worker], factors: list[float], standby: bool) -> list[Worker]:
    """The workers of the home pool, if some are of others and one of its own has nothing at all to do, or if they only
    stand by.

    Between pools the score weighs delays; where there are none, a borrowed worker that happens to be faster, or is
    only believed to be, must not draw away what its own pool could begin at once.
    """
    if max(factors) <= 1.0:
        return []
    home = [worker for worker, factor in zip(workers, factors, strict=True) if factor <= 1.0]
    return home if standby or any(not worker.leases and not worker.base_s for worker in home) else []


class Matcher:
    """Places tickets on workers and books what that costs."""

    __slots__ = (
        "_balance",
        "_beta",
        "_dispatches",
        "_fleet",
        "_floors",
        "_pool_tpot_slos",
        "_queue",
        "_reserve",
        "_rng",
        "_tpot_slos",
        "_watermark",
    )

    def __init__(self, policy: Policy, fleet: Fleet, queue: Queue, rng: Random) -> None:
        self._fleet = fleet
        self._queue = queue
        self._rng = rng
        self._dispatches = 0
        self._floors = Floors([one.floor for one in policy.classes])
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decide by this policy."""
        self._balance = BALANCERS[policy.balancing.algorithm]
        self._beta = policy.balancing.beta
        self._watermark = policy.admission.kv_watermark
        self._reserve = policy.admission.top_class_reserve
        self._pool_tpot_slos = {
            name: slo for name, pool in policy.pools.items() if (slo := pool.tpot_slo_s) is not None
        }
        self._tpot_slos = [one.tpot_slo_s for one in policy.classes]
        self._floors.adopt([one.floor for one in policy.classes])

    def run(self, now: float) -> list[Dispatch]:
        """Place all that can be placed."""
        effects: list[Dispatch] = []
        lanes = [lane for lane in self._queue.lanes if lane.open]
        blocked: dict[Lane, set[Bucket]] = {lane: set() for lane in lanes}
        # What finds no room beside the reserve may find it in the reserve.
        lower = {lane: set(found) for lane, found in blocked.items()} if self._reserve else blocked
        while lanes and (lease := self._next(lanes, blocked, lower, now)) is not None:
            effects.append(Dispatch(lease.ticket, lease))
            lanes = [lane for lane in lanes if lane.open]
        return effects

    def place(self, ticket: Ticket, lane: Lane, bucket: Bucket, flow: Flow, now: float) -> Lease | None:
        """Send a ticket to the best worker that can take it now; None if none can."""
        workers, factors = lane.fitting(bucket, now, self._beta, self._watermark)
        if self._reserve and flow.klass:
            workers, factors = beside_reserve(workers, factors, bucket, self._reserve, self._watermark)
        if not workers:
            return None
        if len(workers) > 1 and (home := kept_at_home(workers, factors, lane.standby)):
            workers, factors = home, [1.0] * len(home)
        request = ticket.request
        output = output_within(request, request.expected_output)
        sequences = bucket.sequences
        prompt = request.prompt_tokens
        prefill = request.prefill_tokens if request.prefill_tokens is not None else prompt
        prefixes = self._fleet.prefixes
        hashes, ends = request.prefix_hashes, request.prefix_ends
        cached = prefixes.cached(hashes, ends, prompt - 1) if ends else NOTHING_CACHED
        if len(workers) > 1:
            last = prefixes.last(request.session) if request.session else ""
            job = Job(prefill, output, (prompt + output) * sequences, sequences, cached, last)
            index, scores = self._balance(workers, factors, job, self._rng)
        else:
            index, scores = 0, []  # nothing to compare it with
        worker = workers[index]
        held = cached.get(worker.spec.id, 0) if cached else 0
        cost = worker.price(prefill, prompt, output, sequences, held)
        if not scores:
            scores = [worker.base_s + cost.prefill_s * worker.stretch + cost.decode_s]
        lease = Lease(
            ticket,
            worker.spec.id,
            worker.spec.pool,
            cost,
            now,
            ticket.waited_s + now - ticket.since,
            scores[index],
            canary=worker.health.probing,
            considered=considered(workers, scores, index),
            charged=service(prefill - held, output * sequences),
            predicted_ttft_s=0.0 if worker.base_s else cost.prefill_s * worker.stretch + worker.step_s,
            number=self._dispatches + 1,
            booked_on=worker,
            guest=worker.spec.pool in lane.guest_pools,
            tpot_slo_s=self._pool_tpot_slos.get(lane.home, self._tpot_slos[request.klass]),
            held=held,
        )
        lease.claim = prefixes.sent(worker.spec.id, worker.kv_capacity, hashes, ends, prompt + output * sequences)
        if request.session:
            prefixes.stay(request.session, worker.spec.id)
        self._book(lease, lane, flow, worker, now)
        return lease

    def _book(self, lease: Lease, lane: Lane, flow: Flow, worker: Worker, now: float) -> None:
        ticket = lease.ticket
        if ticket.place is not None:
            self._queue.leave(ticket, flow)
        self._dispatches += 1
        worker.picked = self._dispatches
        worker.book(lease)
        self._fleet.sync(worker)
        ticket.state = TicketState.LEASED
        ticket.attempts += 1
        ticket.waited_s += now - ticket.since
        ticket.lease = lease
        flow.tenant.in_flight += 1
        lane.band(flow.klass).served(flow.counter)
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

    def _next(
        self, lanes: list[Lane], blocked: dict[Lane, set[Bucket]], lower: dict[Lane, set[Bucket]], now: float
    ) -> Lease | None:
        for home, klass in self._floors.first(self._queue.by_home):
            lease = self._from_class(
                klass, [lane for lane in lanes if lane.home == home], lower if klass else blocked, now
            )
            if lease is not None:
                return lease
        for klass in self._queue.classes():
            lease = self._from_class(klass, lanes, lower if klass else blocked, now)
            if lease is not None:
                return lease
        return None

    def _from_class(
        self, klass: int, lanes: Iterable[Lane], blocked: dict[Lane, set[Bucket]], now: float
    ) -> Lease | None:
        heads: dict[Lane, tuple[float, int, Place]] = {}
        for lane in lanes:
            self._look(lane, klass, blocked, heads)
        while heads:
            # A ticket stands in one line, so that its number decides before places would be compared.
            place = min(heads.values())[2]
            lane, bucket = place.lane, place.bucket
            lease = self.place(place.ticket, lane, bucket, place.line.flow, now)
            if lease is not None:
                return lease
            blocked[lane].update([other for other in lane.buckets if bucket.within(other)])
            self._look(lane, klass, blocked, heads)
        return None

    @staticmethod
    def _look(
        lane: Lane, klass: int, blocked: dict[Lane, set[Bucket]], heads: dict[Lane, tuple[float, int, Place]]
    ) -> None:
        """Find who is next in a lane, for `heads`."""
        band = lane.band_of(klass)
        closed = blocked[lane]
        place = band.peek(closed) if band is not None and len(closed) < len(lane.buckets) else None
        if place is not None:
            heads[lane] = (place.line.flow.counter, place.ticket.sequence, place)
        else:
            heads.pop(lane, None)


def considered(workers: list[Worker], scores: list[float], chosen: int) -> tuple[tuple[str, float], ...]:
    """The best candidates with their scores for whoever asks why, the chosen one first."""
    if len(scores) == 1:
        return ((workers[0].spec.id, scores[0]),)
    if len(scores) > EXPLAINED:
        bar = sorted(scores)[EXPLAINED - 1]
        others = [(score, at) for at, score in enumerate(scores) if score <= bar and at != chosen]
    else:
        others = [(score, at) for at, score in enumerate(scores) if at != chosen]
    others.sort()
    found = [(workers[chosen].spec.id, scores[chosen])]
    found += [(workers[at].spec.id, score) for score, at in others[: EXPLAINED - 1]]
    return tuple(found)


def rank_key(request: Request, submitted: float, lane: Lane) -> float:
    """Order inside a flow: shortest predicted prefill first, with an age escape.

    A request counts as if it had come AGE_ESCAPE times its prefill later, so that one of p seconds is overtaken by
    shorter ones that come within AGE_ESCAPE · p after it and by no others. The key never changes while it waits.
    """
    prefill = request.prefill_tokens if request.prefill_tokens is not None else request.prompt_tokens
    return submitted + AGE_ESCAPE * lane.step.prefill_s(prefill)
