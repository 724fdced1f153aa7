"""The classic rules that the scheduler is compared with.

They send at once, with an exact count of what they have sent and no other knowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gateway.scheduling.model import Reason
from loadtest.fleet import Job, Placement, WorkerPlan
from loadtest.routers import OutputGuess
from policies.work import StepTime, preset_for
from workers.engines.timing import EngineCore


@dataclass(slots=True, eq=False)
class Load:
    """What a baseline knows of one worker."""

    id: str
    step: StepTime
    requests: int = 0
    prefill_tokens: int = 0  # of prompts not answered yet
    seconds: float = 0.0  # of outstanding work, prefill and decode
    picked: int = 0


Rule = Callable[[list[Load], Job, Random], Load]


def _round_robin(loads: list[Load], job: Job, rng: Random) -> Load:
    return min(loads, key=lambda load: load.picked)


def _least_requests(loads: list[Load], job: Job, rng: Random) -> Load:
    return min(loads, key=lambda load: (load.requests, rng.random()))


def _two_choices(loads: list[Load], job: Job, rng: Random) -> Load:
    return min(rng.sample(loads, min(2, len(loads))), key=lambda load: load.requests)


def _least_seconds(loads: list[Load], job: Job, rng: Random) -> Load:
    return min(loads, key=lambda load: (load.seconds, rng.random()))


def _lmetric(loads: list[Load], job: Job, rng: Random) -> Load:
    prompt = job.trace.prompt_tokens
    return min(loads, key=lambda load: ((load.prefill_tokens + prompt) * (load.requests + 1), rng.random()))


RULES: Final[dict[str, Rule]] = {
    "round_robin": _round_robin,
    "least_requests": _least_requests,
    "two_choices": _two_choices,
    "least_outstanding_seconds": _least_seconds,
    "lmetric": _lmetric,
}


@dataclass(slots=True)
class BaselineRouter:
    """One of `RULES`, as a gateway without a queue applies it."""

    rule: Rule
    rng: Random
    _loads: dict[str, Load] = field(init=False, default_factory=dict)
    _booked: dict[Job, tuple[int, float]] = field(init=False, default_factory=dict)
    _guesses: dict[str, OutputGuess] = field(init=False, default_factory=dict)
    _count: int = field(init=False, default=0)

    def join(self, plan: WorkerPlan, now: float) -> list[Placement]:
        """A worker exists."""
        self._loads[plan.id] = Load(plan.id, preset_for(plan.preset).step)
        return []

    def submit(self, job: Job, now: float) -> list[Placement]:
        """A request has arrived."""
        if not self._loads:
            job.refused = Reason.NO_WORKER
            return [(job, None)]
        load = self.rule(list(self._loads.values()), job, self.rng)
        request = job.trace
        guess = self._guesses.setdefault(request.tenant, OutputGuess())
        step = load.step
        decode_s = guess.mean * (step.W / 16 + step.c_seq + step.c_kv * (request.prompt_tokens + guess.mean / 2))
        seconds = step.prefill_s(request.prompt_tokens) + decode_s
        self._booked[job] = (request.prompt_tokens, seconds)
        self._count += 1
        load.picked = self._count
        load.requests += 1
        load.prefill_tokens += request.prompt_tokens
        load.seconds += seconds
        return [(job, load.id)]

    def first_token(self, job: Job, now: float) -> list[Placement]:
        """Its first token has come."""
        tokens, seconds = self._booked[job]
        load = self._loads[job.worker]
        prefill_s = load.step.prefill_s(tokens)
        load.prefill_tokens -= tokens
        load.seconds -= prefill_s
        self._booked[job] = (0, seconds - prefill_s)
        return []

    def progress(self, job: Job, tokens: int, now: float) -> None:
        """So many more tokens have come."""

    def finished(self, job: Job, now: float) -> list[Placement]:
        """All its tokens have come."""
        self._guesses[job.trace.tenant].observe(job.trace.output_tokens)
        tokens, seconds = self._booked.pop(job)
        load = self._loads.get(job.worker)
        if load is not None:
            load.requests -= 1
            load.prefill_tokens -= tokens
            load.seconds -= seconds
        return []

    def failed(self, job: Job, now: float) -> list[Placement]:
        """Its worker is gone, until it joins again."""
        self._booked.pop(job)
        self._loads.pop(job.worker, None)
        if job.first_token is None:
            return self.submit(job, now)
        job.refused = Reason.ATTEMPTS_EXHAUSTED
        return [(job, None)]

    def report(self, plan: WorkerPlan, core: EngineCore, now: float) -> list[Placement]:
        """What a worker says of itself."""
        return []

    def next_deadline(self) -> float | None:
        """Never."""
        return None

    def tick(self, now: float) -> list[Placement]:
        """Nothing."""
        return []
