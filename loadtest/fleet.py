"""A fleet in virtual time: simulated engines, one router, recorded traffic; deterministic and much faster than real.

The router decides (the production scheduler, or a baseline to compare with); this module lets the engines run, tells
the router what a gateway would see of them, and keeps what happened to each request.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Final, Protocol

from gateway.scheduling.model import Reason
from loadtest.traces import TraceRequest
from workers.engines.timing import EngineConfig, EngineCore, Sequence, State

PROGRESS_S: Final = 0.5  # how often a router hears of tokens; a gateway hears of each, which costs more to simulate
REPORT_S: Final = 1.0  # how often engines report, as agents do


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker of the fleet."""

    id: str
    engine: EngineConfig
    pool: str = "all"
    preset: str | None = None
    max_model_len: int | None = None
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that happens to a worker at a time.

    It is lost with all it has, comes back as a new incarnation with empty caches, or its steps take `slowdown` times as
    long from now on.
    """

    at_s: float
    worker: str
    lost: bool = False
    back: bool = False
    slowdown: float = 1.0


@dataclass(slots=True, eq=False)
class Job:
    """One request and what happened to it; seconds of virtual time."""

    index: int
    trace: TraceRequest
    arrival: float
    dispatched: float | None = None
    first_token: float | None = None
    finished: float | None = None
    worker: str = ""
    refused: Reason | None = None
    preemptions: int = 0
    cached_tokens: int = 0
    attempts: int = 0
    told: int = 0  # tokens the router has heard of
    ticket: object = None  # the router's own
    sequence: Sequence | None = None

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; 0 for a single one."""
        if self.first_token is None or self.finished is None:
            return None
        return (self.finished - self.first_token) / max(1, self.trace.output_tokens - 1)


Placement = tuple[Job, str | None]  # a job and the worker it goes to; None: it was refused, `job.refused` says why


class Router(Protocol):
    """Decides where jobs go. Whatever it is told, it may answer with placements that are due now."""

    def join(self, plan: WorkerPlan, now: float) -> list[Placement]:
        """A worker exists."""

    def submit(self, job: Job, now: float) -> list[Placement]:
        """A request has arrived."""

    def first_token(self, job: Job, now: float) -> list[Placement]:
        """Its first token has come."""

    def progress(self, job: Job, tokens: int, now: float) -> None:
        """So many more tokens have come."""

    def finished(self, job: Job, now: float) -> list[Placement]:
        """All its tokens have come."""

    def failed(self, job: Job, now: float) -> list[Placement]:
        """Its worker is gone; before its first token it may be placed again."""

    def report(self, plan: WorkerPlan, core: EngineCore, now: float) -> list[Placement]:
        """What a worker says of itself."""

    def next_deadline(self) -> float | None:
        """When `tick` is due."""

    def tick(self, now: float) -> list[Placement]:
        """Time has come."""


@dataclass(slots=True, eq=False)
class _Engine:
    plan: WorkerPlan
    core: EngineCore
    jobs: dict[Job, None] = field(default_factory=dict)
    version: int = 0  # of the event that ends the run in flight; events of older versions are void
    steps: int = 0  # of the run in flight that will be made
    ending: bool = False  # its run is being ended: it begins the next one by itself
    lost: bool = False
    peak_kv: float = 0.0
    requests: int = 0
    ended: list[WorkerFigures] = field(default_factory=list)  # of its earlier incarnations


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What one engine did."""

    id: str
    requests: int
    busy_s: float
    preemptions: int
    peak_kv: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What a run of the fleet did."""

    jobs: list[Job]
    workers: list[WorkerFigures]
    ended: float
    events: int


class Fleet:
    """Runs traffic through a router and its engines."""

    def __init__(self, plans: Seq[WorkerPlan], router: Router, troubles: Seq[Trouble] = ()) -> None:
        self._router = router
        self._engines = {plan.id: _Engine(plan, EngineCore(plan.engine)) for plan in plans}
        self._troubles = sorted(troubles, key=lambda trouble: trouble.at_s)
        self._ends: list[tuple[float, int, _Engine, int]] = []  # heap of run ends: time, tie, engine, version
        self._pushed = 0
        self._open = 0  # jobs neither finished nor refused

    def cores(self) -> dict[str, EngineCore]:
        """The engines by their workers' ids, for who may look into them."""
        return {worker: engine.core for worker, engine in self._engines.items() if not engine.lost}

    def run(self, trace: Seq[TraceRequest]) -> FleetResult:
        """Let all requests of a trace arrive and end."""
        router, ends = self._router, self._ends
        jobs = [Job(index, request, request.arrival_s) for index, request in enumerate(trace)]
        for engine in self._engines.values():
            self._place(router.join(engine.plan, 0.0), 0.0)
        self._open = len(jobs)
        report_at, progress_at = REPORT_S, PROGRESS_S
        events = arrived = trouble = 0
        now = 0.0
        while self._open:
            events += 1
            arrival = jobs[arrived].arrival if arrived < len(jobs) else inf
            end = ends[0][0] if ends else inf
            deadline = router.next_deadline()
            due = inf if deadline is None else max(deadline, now)
            struck = self._troubles[trouble].at_s if trouble < len(self._troubles) else inf
            now = min(end, arrival, due, struck, report_at, progress_at)
            if now == end:
                _, _, engine, version = heappop(ends)
                if version == engine.version and not engine.lost:
                    self._end_run(engine, now)
            elif now == arrival:
                arrived += 1
                self._place(router.submit(jobs[arrived - 1], now), now)
            elif now == due:
                self._place(router.tick(now), now)
            elif now == struck:
                self._strike(self._troubles[trouble], now)
                trouble += 1
            elif now == report_at:
                report_at += REPORT_S
                for engine in self._engines.values():
                    if not engine.lost:
                        self._place(router.report(engine.plan, engine.core, now), now)
            else:
                progress_at += PROGRESS_S
                self._tell_progress(now)
        workers = [figures for engine in self._engines.values() for figures in (*engine.ended, _figures(engine))]
        return FleetResult(jobs, workers, now, events)

    def _place(self, placements: list[Placement], now: float) -> None:
        for job, worker in placements:
            if worker is None:
                self._open -= 1
                continue
            engine = self._engines[worker]
            if engine.lost:
                self._place(self._router.failed(job, now), now)
                continue
            request = job.trace
            job.dispatched = now
            job.worker = worker
            job.attempts += 1
            job.told = 0
            job.sequence = Sequence(str(job.index), request.prompt_tokens, request.output_tokens, hashes=request.hashes)
            job.sequence.owner = job
            engine.jobs[job] = None
            engine.requests += 1
            engine.core.add(job.sequence, now)
            if not engine.ending:
                self._disturb(engine, now)

    def _disturb(self, engine: _Engine, now: float) -> None:
        """Something changed at an engine: its run in flight ends with the step that is under way."""
        run = engine.core.run
        if run is None:
            self._begin_run(engine, now)
        elif engine.steps > 1:
            steps = run.steps_until(now - run.start)
            if steps < engine.steps:
                self._plan_end(engine, steps)

    def _begin_run(self, engine: _Engine, now: float) -> None:
        run = engine.core.begin(now)
        if run is not None:
            self._plan_end(engine, run.max_steps)

    def _plan_end(self, engine: _Engine, steps: int) -> None:
        run = engine.core.run
        assert run is not None
        engine.steps = steps
        engine.version += 1
        self._pushed += 1
        heappush(self._ends, (run.start + run.duration_s(steps), self._pushed, engine, engine.version))

    def _end_run(self, engine: _Engine, now: float) -> None:
        router, core = self._router, engine.core
        result = core.end(engine.steps)
        engine.peak_kv = max(engine.peak_kv, core.pool.usage)
        engine.ending = True
        for seq in result.prefilled:
            job = seq.owner
            assert isinstance(job, Job)
            if job.first_token is None:
                job.first_token = now
                job.cached_tokens = seq.cached_tokens
            job.told = max(job.told, 1)
            self._place(router.first_token(job, now), now)
        for seq in result.finished:
            job = seq.owner
            assert isinstance(job, Job)
            job.finished = now
            job.preemptions = seq.preemptions
            del engine.jobs[job]
            self._open -= 1
            self._place(router.finished(job, now), now)
        engine.ending = False
        self._begin_run(engine, now)

    def _tell_progress(self, now: float) -> None:
        router = self._router
        for engine in self._engines.values():
            if engine.lost:
                continue
            produced = engine.core.produced
            for seq in engine.core.running_sequences():
                job = seq.owner
                if seq.state is State.DECODE and isinstance(job, Job):
                    tokens = produced(seq) - job.told
                    if tokens > 0:
                        job.told += tokens
                        router.progress(job, tokens, now)

    def _strike(self, trouble: Trouble, now: float) -> None:
        engine = self._engines[trouble.worker]
        if trouble.back and engine.lost:
            engine.ended.append(_figures(engine))
            engine.lost = False
            engine.core = EngineCore(engine.plan.engine)
            engine.plan = replace(engine.plan, incarnation=f"{trouble.at_s:g}")
            engine.requests, engine.peak_kv = 0, 0.0
            engine.version += 1
            self._place(self._router.join(engine.plan, now), now)
        engine.core.slowdown = trouble.slowdown
        if trouble.lost and not engine.lost:
            engine.lost = True
            jobs, engine.jobs = list(engine.jobs), {}
            for job in jobs:
                self._place(self._router.failed(job, now), now)


def _figures(engine: _Engine) -> WorkerFigures:
    core = engine.core
    return WorkerFigures(
        engine.plan.id,
        engine.requests,
        core.busy_s,
        core.preemptions,
        engine.peak_kv,
        core.prompt_tokens,
        core.cached_prompt_tokens,
        core.generated_tokens,
    )
