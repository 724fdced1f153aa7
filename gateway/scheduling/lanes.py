"""A lane: one model wanted from one list of pools. All its tickets have the same workers to choose from.

The fleet keeps each lane's workers and which of them are open (fit for work, with a free place), so that placing a
ticket looks at open workers only.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from gateway.scheduling.model import Request
from gateway.scheduling.queue import Band, Bucket, round_up
from gateway.scheduling.worker import Worker
from policies.work import StepTime

KNOWN: Final = 32  # buckets of one size that a lane remembers
FASTEST: Final = 0.5  # of a predicted prefill: the least factor that `correction` gives a worker


class LaneKey(NamedTuple):
    """What makes a lane: the model at the engine, home pool and those to borrow from, and those for want of all."""

    model: str
    pools: tuple[str, ...]
    fallback_pools: tuple[str, ...]


class Roster:
    """Workers to choose among, and the factor of each one's score. A lane's own is the same until other workers are
    open, so that what depends on nothing else is made once and no list is made for each request."""

    __slots__ = ("factors", "home", "names", "reports", "workers")

    def __init__(self, workers: list[Worker], factors: list[float]) -> None:
        self.workers = workers
        self.factors = factors
        self.home: Roster | None = None  # those at home, where they are some of them and not all
        self.names: list[str] | None = None  # for who asks why; made when a choice is kept
        self.reports: list[float | None] | None = None  # when the last one of each had come
        at_home = [at for at, factor in enumerate(factors) if factor <= 1.0]
        if at_home and len(at_home) < len(workers):
            self.home = Roster([workers[at] for at in at_home], [1.0] * len(at_home))

    def without(self, left_out: list[int]) -> Roster:
        """Those that are not at these places, which ascend."""
        workers: list[Worker] = []
        factors: list[float] = []
        begin = 0
        for at in left_out:
            workers += self.workers[begin:at]
            factors += self.factors[begin:at]
            begin = at + 1
        workers += self.workers[begin:]
        factors += self.factors[begin:]
        return Roster(workers, factors)


class Lane:
    """The workers for one model and list of pools, and the tickets that wait for them."""

    __slots__ = (
        "_bands",
        "_known",
        "_latest",
        "_roster",
        "_steps",
        "buckets",
        "fallback_pools",
        "guest_pools",
        "guests_apart",
        "home",
        "key",
        "lengths",
        "model",
        "open",
        "pace_per_s",
        "pace_sure",
        "pace_until",
        "pools",
        "standby",
        "waiting",
        "workers",
    )

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.model = key.model
        self.pools = key.pools
        self.fallback_pools = key.fallback_pools
        self.home = key.pools[0] if key.pools else ""  # its first pool
        self.workers: dict[Worker, float] = {}  # with the factor of its score: 1 at home, more in a borrowed pool
        self.open: dict[Worker, float] = {}
        self._roster: Roster | None = None  # of those; None: not made yet
        self.guest_pools: frozenset[str] = frozenset()  # for shorter requests: one prefill at a time on a worker there
        self.guests_apart = False  # whether there are any
        self.standby = False  # other pools stand by: they get what no worker of its own can take now
        self.lengths: list[int] = []  # distinct max_model_len of the workers, ascending
        self.waiting = 0
        self.pace_per_s: float | None = None  # kept by `outlook`
        self.pace_sure = False
        self.pace_until = 0.0
        self._steps: frozenset[StepTime] = frozenset()  # all that its workers have
        self.buckets: dict[Bucket, int] = {}  # of the tickets that wait, and how many have each
        self._latest: Bucket | None = None  # the one that was asked for last
        self._known: dict[int, list[Bucket]] = {}  # by their `kv_each`, of which there are few
        self._bands: list[Band] = []  # by class

    def at_home(self, worker: Worker) -> bool:
        """Whether the worker is in its first pool."""
        return worker.spec.pool == self.home

    @property
    def step(self) -> StepTime:
        """Coefficients to rank prompts by: those of its first worker."""
        return next(iter(self.workers)).step

    def least_prefill_s(self, request: Request) -> float:
        """What its prefill costs on the fastest worker, should that be as much faster as can be learned."""
        tokens = request.prefill_tokens if request.prefill_tokens is not None else request.prompt_tokens
        return FASTEST * min((step.prefill_s(tokens) for step in self._steps), default=0.0)

    @property
    def in_rotation(self) -> bool:
        """Whether any of its workers gets work now or as soon as it has room."""
        return any(worker.in_rotation for worker in self.workers)

    def band(self, klass: int) -> Band:
        """Its tickets of one class."""
        bands = self._bands
        while klass >= len(bands):
            bands.append(Band())
        return bands[klass]

    def bands(self) -> list[Band]:
        """All classes' tickets."""
        return self._bands

    def band_of(self, klass: int) -> Band | None:
        """Its tickets of one class, if it ever had any."""
        return self._bands[klass] if klass < len(self._bands) else None

    def alternative(self, bucket: Bucket) -> bool:
        """Whether a worker that has not failed a ticket of that bucket is in rotation and long enough for it."""
        return any(
            worker.max_len >= bucket.length and worker.spec.id not in bucket.excluded and worker.in_rotation
            for worker in self.workers
        )

    def refill(self, workers: dict[Worker, float]) -> bool:
        """Take over a new set of workers; True when the lengths they hold changed with it."""
        for worker in self.workers:
            if worker not in workers:
                worker.lanes.remove(self)
        for worker in workers:
            if worker not in self.workers:
                worker.lanes.append(self)
        self.workers = workers
        self._steps = frozenset(worker.step for worker in workers)
        self.open = {worker: factor for worker, factor in workers.items() if worker.is_open}
        self._roster = None
        lengths = sorted({worker.max_len for worker in workers})
        changed = lengths != self.lengths
        self.lengths = lengths
        return changed

    def set_open(self, worker: Worker, is_open: bool) -> None:
        """A worker of this lane got its first free place, or lost its last."""
        if is_open:
            self.open[worker] = self.workers[worker]
        else:
            del self.open[worker]
        self._roster = None

    def reported(self) -> None:
        """One of its workers has reported."""
        roster = self._roster
        if roster is not None:
            roster.reports = None
            if roster.home is not None:
                roster.home.reports = None

    def bucket(self, request: Request, excluded: frozenset[str]) -> Bucket | None:
        """What a worker needs to take the request; None where no worker of the lane can ever hold the prompt.

        1. Workers that hold prompt and allowed output, if there are any.
        2. Else those that hold the prompt: the engine clamps the output.
        3. Else, if the prompt is only an estimate that may be wrong by half, the largest: the engine knows better.
        """
        prompt = request.prompt_tokens
        output = (request.max_output_tokens or 0) if request.generates else 0
        lengths = self.lengths
        index = 0
        if not lengths or prompt + output > lengths[0]:
            index = bisect_left(lengths, prompt + output)
            if index == len(lengths):
                index = bisect_left(lengths, prompt)
            if index == len(lengths):
                if request.prompt_exact or prompt > 2 * lengths[-1]:
                    return None
                index -= 1
        sequences = request.sequences if request.sequences > 1 else 1
        return self._bucket(lengths[index], round_up(kv_peak(request)), sequences, excluded)

    def without(self, bucket: Bucket, excluded: frozenset[str]) -> Bucket:
        """The same needs with other workers excluded."""
        return self._bucket(bucket.length, bucket.kv_each, bucket.sequences, excluded)

    def _bucket(self, length: int, kv_each: int, sequences: int, excluded: frozenset[str]) -> Bucket:
        latest = self._latest
        if (
            latest is not None
            and latest.kv_each == kv_each
            and latest.length == length
            and latest.sequences == sequences
            and latest.excluded is excluded
        ):
            return latest
        alike = self._known.get(kv_each)
        if alike is None:
            alike = self._known[kv_each] = []
        for bucket in alike:
            same = bucket.excluded is excluded or bucket.excluded == excluded
            if same and bucket.length == length and bucket.sequences == sequences:
                self._latest = bucket
                return bucket
        if len(alike) >= KNOWN:
            # Tickets keep theirs; two for the same needs only take two looks instead of one.
            alike.clear()
        bucket = Bucket(length, kv_each, sequences, excluded)
        alike.append(bucket)
        self._latest = bucket
        return bucket

    def fitting(self, bucket: Bucket, now: float, beta: float, watermark: float) -> Roster:
        """The open workers that can take a ticket of that bucket now.

        A worker that holds nothing of ours takes any request its length allows: what a report says about KV must
        not keep it idle for ever, and a request that alone is beyond the watermark has to run somewhere.
        """
        roster = self._roster
        if roster is None:
            roster = self._roster = Roster(list(self.open), list(self.open.values()))
        length, kv_each, sequences, excluded = bucket.length, bucket.kv_each, bucket.sequences, bucket.excluded
        guest_pools = self.guest_pools
        guests_apart, some_excluded = self.guests_apart, bucket.some_excluded
        kv_all = kv_each * sequences
        left_out: list[int] | None = None
        for at, worker in enumerate(roster.workers):
            if worker.dirty or now >= worker.cached_until:
                worker.refresh(now, beta, watermark)
            if (
                worker.max_len < length
                or (
                    kv_all > worker.kv_free
                    and worker.leases
                    and min(kv_each, worker.max_len) * sequences > worker.kv_free
                )
                or (sequences > 1 and worker.leases and min(sequences, worker.limit) > worker.limit - worker.in_flight)
                or (guests_apart and worker.guests and worker.spec.pool in guest_pools)
                or (some_excluded and worker.id in excluded)
            ):
                if left_out is None:
                    left_out = []
                left_out.append(at)
        return roster if left_out is None else roster.without(left_out)


def kv_peak(request: Request) -> int:
    """KV tokens that one sequence of the request is unlikely to exceed."""
    prompt = request.prompt_tokens
    return (prompt if prompt > 1 else 1) + output_within(request, request.p90_output)


def output_within(request: Request, tokens: int) -> int:
    """`tokens` of output, as far as the request allows and generates any."""
    if not request.generates:
        return 0
    allowed = request.max_output_tokens
    if allowed is not None and allowed < tokens:
        tokens = allowed
    return tokens if tokens > 0 else 0
