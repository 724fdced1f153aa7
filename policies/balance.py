"""Balancers: which of the workers that can take a request should.

A balancer sees only workers that are feasible now, each with a factor (1 for the home pool, more for a borrowed one),
and answers with the index of its choice and a score for each (lower is better). They are plain functions in a literal
dict, so that a policy names one and a simulation compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Final, Protocol, TypeVar

from policies.work import StepTime

TIE: Final = 1.02  # scores within 2 % are as good as equal: predictions are no better than that
KV_KNEE: Final = 0.9  # share of KV capacity from which preemption gets likely
_MOST: Final[float] = inf
KV_SLOPE_S: Final = 20.0  # seconds a full unit of capacity beyond the knee costs


NOTHING_CACHED: Final[dict[str, int]] = {}
"""Stays empty."""


class Candidate:
    """What a balancer reads of a worker: numbers that the fleet keeps ready, in seconds and tokens.

    A class and no protocol: compiled, its attributes are then read without being looked up by name.

    id: stable name of the worker;
    base_s: what a request waits for before its own prefill starts, already stretched, and penalties;
    stretch: seconds of TTFT for each second of own prefill, 1 + step/chunk;
    step_s: one decode step now; crowd: β × the number there that were promised no time per token;
    miss_s: β × the seconds of delay that one broken promise weighs, 0 where no stream is there that was promised one;
    prefill_scale: observed over predicted prefill time;
    load: requests there, ours and others'; picked: number of the dispatch that last chose it.
    """

    __slots__ = (
        "base_s",
        "crowd",
        "id",
        "kv_capacity",
        "kv_used",
        "load",
        "miss_s",
        "picked",
        "prefill_scale",
        "step",
        "step_s",
        "stretch",
    )

    def __init__(self, name: str, step: StepTime) -> None:
        self.id = name
        self.step = step
        self.base_s = self.step_s = self.crowd = self.miss_s = self.load = self.kv_used = 0.0
        self.stretch = self.prefill_scale = 1.0
        self.kv_capacity = self.picked = 0

    def broken_by(self, delay_s: float) -> float:
        """How many promises a delay of so many seconds to each stream there is expected to break."""
        return 0.0


class Job:
    """The request as a balancer sees it; whoever places requests has one, filled in anew for each."""

    __slots__ = (
        "cached",
        "draw",
        "kv_tokens",
        "last",
        "output_tokens",
        "prefill_s",
        "prompt_tokens",
        "sequences",
        "step",
    )

    def __init__(
        self,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        kv_tokens: int = 0,
        sequences: int = 1,
        cached: dict[str, int] = NOTHING_CACHED,
        last: str = "",
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens  # expected, of one sequence
        self.kv_tokens = kv_tokens  # expected, of all sequences
        self.sequences = sequences
        self.cached = cached  # worker id -> prompt tokens it holds already
        self.last = last  # id of the worker that its session was on last; decides between equals only
        self.draw: Callable[[], float] | None = None  # the same as of the random source, bound once
        # Left by a balancer that has computed it: seconds of its prefill, nothing cached, on a worker of that kind.
        self.step: StepTime | None = None
        self.prefill_s = 0.0

    def begin(
        self,
        prompt_tokens: int,
        output_tokens: int,
        kv_tokens: int,
        sequences: int,
        cached: dict[str, int],
        last: str,
    ) -> None:
        """Be another request."""
        self.prompt_tokens, self.output_tokens, self.kv_tokens = prompt_tokens, output_tokens, kv_tokens
        self.sequences, self.cached, self.last = sequences, cached, last
        self.step = None


W = TypeVar("W", bound=Candidate)


class Balancer(Protocol):
    """Index of the chosen worker, and a score for each."""

    def __call__(self, workers: list[W], factors: list[float], job: Job, rng: Random, /) -> tuple[int, list[float]]:
        """Choose among workers, of which there is at least one."""
        ...


def least_outstanding_work(workers: list[W], factors: list[float], job: Job, rng: Random) -> tuple[int, list[float]]:
    """The score J: own time to first token + own decode + β × delay caused to those already there, in seconds.

    A borrowed pool's factor weighs on the delays alone: decoding takes its seconds in any pool, and multiplying them
    would keep a request at home until its wait there is longer than most answers (simulated with 5+3 workers where
    long requests may borrow: 0.75 on everything gives 76 % of them a good answer, on the delays 91 %).

    Delay is harm where somebody notices it. Streams that were promised a time per token count by how likely their
    promise breaks: short answers and those that were delayed before are avoided, long ones bear a lot. Counting all
    delay alike sends every long prompt to where few are, which are the long ones (simulated at high load: 94.8 % of all
    and 84 % of the long ones get a good answer with delay alone, 97.9 % and 86 % so).
    """
    cached = job.cached
    some_cached = bool(cached)
    prompt, output = job.prompt_tokens, job.output_tokens
    output_steps, kv_tokens = float(output), float(job.kv_tokens)
    scores: list[float] = []
    step: StepTime | None = None
    prefill = crowding = rest = 0.0
    held_before = 0
    crowded = False  # `crowding` is what this kind has: most often nobody asks
    bar = _MOST  # beyond a lead of 2 % over the best so far
    # Of those within the bar: the best, the worst, how many share the least factor, and the first of these.
    best, worst, least = _MOST, -_MOST, _MOST
    equals, chosen = 0, -1
    alone = known = True
    for at, worker in enumerate(workers):
        factor = factors[at]
        # Workers of one kind share their coefficients, so the request's own part is computed once a kind.
        if worker.step is not step:
            step = worker.step
            prefill = step.prefill_s(prompt)
            crowded = False
            held_before = 0
        own = prefill
        if some_cached and (held := cached.get(worker.id, 0)):
            # Many hold the same system prompt and nothing more.
            if held != held_before:
                rest, held_before = step.prefill_s(prompt - held, held), held
            own = rest
        delayed = own * worker.prefill_scale * worker.stretch
        delays = worker.base_s + delayed
        decode = output_steps * worker.step_s
        score = delays * factor + decode
        # What follows only adds: a worker that has lost by now keeps the score it has.
        if score <= bar:
            if worker.crowd or worker.miss_s:
                if not crowded:
                    crowding, crowded = step.crowding_s(output, prompt) * job.sequences, True
                if worker.crowd:
                    delays += (own + crowding) * worker.crowd
                if worker.miss_s:
                    delays += worker.miss_s * worker.broken_by(delayed + crowding)
                score = delays * factor + decode
            capacity = worker.kv_capacity
            if capacity:
                over = (worker.kv_used + kv_tokens) / capacity - KV_KNEE
                if over > 0.0:
                    score += KV_SLOPE_S * over
            if score * TIE < bar:
                bar = score * TIE
                if best > bar:
                    best, worst, least, chosen, known = _MOST, -_MOST, _MOST, -1, True
                elif worst > bar:
                    known = False  # some of those that were within are so no longer
            if score <= bar:
                alone = chosen < 0
                if score < best:
                    best = score
                if score > worst:
                    worst = score
                if factor < least:
                    least, equals, chosen = factor, 1, at
                elif factor == least:
                    equals += 1
        scores.append(score)
    job.step, job.prefill_s = step, prefill
    if not known or chosen < 0:
        chosen = _one_of(scores, bar, factors, rng)
    elif not alone:
        draw: float = rng.random() if job.draw is None else job.draw()
        chosen = _skip(int(draw * equals), chosen, scores, bar, factors)
    last = job.last
    if last and workers[chosen].id != last:
        for at, worker in enumerate(workers):
            if worker.id == last and factors[at] <= factors[chosen] and scores[at] <= bar:
                return at, scores
    return chosen, scores


def round_robin(workers: list[W], factors: list[float], job: Job, rng: Random) -> tuple[int, list[float]]:
    """The worker that was chosen longest ago."""
    scores = [float(worker.picked) for worker in workers]
    return scores.index(min(scores)), scores


def least_requests(workers: list[W], factors: list[float], job: Job, rng: Random) -> tuple[int, list[float]]:
    """The worker with the fewest requests, one more counted for a borrowed pool to weigh on an idle worker."""
    scores = [(worker.load + 1.0) * factors[at] for at, worker in enumerate(workers)]
    return pick_lowest(scores, factors, rng), scores


def power_of_two(workers: list[W], factors: list[float], job: Job, rng: Random) -> tuple[int, list[float]]:
    """The one with fewer requests of two drawn at random; what was not drawn scores infinite."""
    scores = [inf] * len(workers)
    drawn = rng.sample(range(len(workers)), min(2, len(workers)))
    for index in drawn:
        scores[index] = (workers[index].load + 1.0) * factors[index]
    chosen = pick_lowest([scores[index] for index in drawn], [factors[index] for index in drawn], rng)
    return drawn[chosen], scores


def pick_lowest(scores: list[float], factors: list[float], rng: Random) -> int:
    """Index of the lowest score; among those within 2 % of it a random one, so that equals share the load.

    Of equals those with the lowest factor: nobody borrows what home has too.
    """
    bar = min(scores) * TIE
    return _one_of(scores, bar, factors, rng)


def _one_of(scores: list[float], bar: float, factors: list[float], rng: Random) -> int:
    """One of the indexes whose score is within the bar and whose factor is the least of those."""
    within = equals = 0
    least = _MOST
    chosen = -1
    for at, score in enumerate(scores):
        if score <= bar:
            within += 1
            factor = factors[at]
            if factor < least:
                least, equals, chosen = factor, 1, at
            elif factor == least:
                equals += 1
    if within == 1:
        return chosen
    draw: float = rng.random()
    return _skip(int(draw * equals), chosen, scores, bar, factors)


def _skip(skipped: int, first: int, scores: list[float], bar: float, factors: list[float]) -> int:
    """The index that comes so many after the first of the equals."""
    if not skipped:
        return first
    chosen, least = first, factors[first]
    for at, score in enumerate(scores):
        if score <= bar and factors[at] == least:
            chosen = at
            if not skipped:
                break
            skipped -= 1
    return chosen


BALANCERS: Final[dict[str, Balancer]] = {
    "least_outstanding_work": least_outstanding_work,
    "round_robin": round_robin,
    "least_requests": least_requests,
    "power_of_two": power_of_two,
}
