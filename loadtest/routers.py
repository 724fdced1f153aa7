"""The production scheduler in a simulated fleet, seen as one gateway sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf
from random import Random
from typing import Final

from gateway.scheduling.model import (
    Effect,
    Lease,
    Outcome,
    OutcomeKind,
    Reason,
    Refuse,
    Request,
    Signal,
    Ticket,
    WorkerSpec,
)
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.shares import HEAVY_S
from gateway.scheduling.tuning import learn, staff_of
from loadtest.fleet import Job, Placement, WorkerPlan
from policies.classify import Classifier, Endpoint, Refusal, RequestFacts
from policies.document import Policy
from policies.tuning import EVERY_S, BudgetChange, BudgetTuner
from workers.engines.timing import EngineCore

MODEL: Final = "simulated"
GUESS_TOKENS: Final = 256.0  # of an output before any has been seen
GUESS_WEIGHT: Final = 0.02


@dataclass(slots=True)
class OutputGuess:
    """What the gateway has learned of a tenant's output lengths: mean and an upper quantile, from finished requests."""

    mean: float = GUESS_TOKENS
    high: float = 2 * GUESS_TOKENS

    def observe(self, tokens: int) -> None:
        """An output has ended with so many tokens."""
        self.mean += GUESS_WEIGHT * (tokens - self.mean)
        # Stochastic approximation of the 90th percentile: up nine times as fast as down.
        self.high += GUESS_WEIGHT * self.mean * (0.9 if tokens > self.high else -0.1)


@dataclass(slots=True, eq=False)
class ProductionRouter:
    """The scheduler that serves production, seen as one gateway sees its fleet.

    `noise`: σ of the logarithm of the prompt estimate's error.
    """

    policy: Policy
    rng: Random
    noise: float = 0.0
    classes: dict[str, str] = field(default_factory=dict)  # tenant -> class it asks for
    prefixes: bool = True  # tell the scheduler which prefixes prompts share
    scheduler: Scheduler = field(init=False)
    heavy: bool = field(init=False, default=False)  # a long prefill was sent since somebody took this back
    tuner: BudgetTuner = field(init=False)
    changes: list[BudgetChange] = field(init=False, default_factory=list)  # of pools' budgets
    _tunes_at: float = field(init=False, default=EVERY_S)
    _classifier: Classifier = field(init=False)
    _guesses: dict[str, OutputGuess] = field(init=False, default_factory=dict)
    _leases: dict[Job, Lease] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.policy, self.rng)
        self._classifier = Classifier(self.policy)
        self.tuner = BudgetTuner(self.policy)
        self._classifier.budgets = self.tuner.budgets

    def join(self, plan: WorkerPlan, now: float) -> list[Placement]:
        """A worker exists."""
        return self._placements(self.scheduler.observe(_spec(plan), None, now))

    def submit(self, job: Job, now: float) -> list[Placement]:
        """A request has arrived."""
        request = job.trace
        prompt = request.prompt_tokens
        if self.noise:
            prompt = max(1, round(prompt * exp(self.rng.gauss(0.0, self.noise))))
        guess = self._guesses.setdefault(request.tenant, OutputGuess())
        facts = RequestFacts(
            Endpoint.CHAT,
            MODEL,
            request.tenant,
            prompt,
            round(guess.high),
            stream=True,
            asked_class=self.classes.get(request.tenant),
            key=str(job.index),
        )
        found = self._classifier.classify(facts)
        if isinstance(found, Refusal):
            raise TypeError(f"the policy refuses simulated traffic: {found.message}")
        asked = Request(
            id=str(job.index),
            tenant=found.tenant,
            klass=found.klass,
            model=found.served_model,
            pools=found.pools,
            prompt_tokens=prompt,
            max_output_tokens=None,
            expected_output=max(1, round(guess.mean)),
            p90_output=max(1, round(guess.high)),
            queue_timeout_s=found.queue_timeout_s,
            fallback_pools=found.fallback_pools,
            prompt_exact=not self.noise,
            prefix_hashes=request.hashes if self.prefixes else (),
            prefix_ends=request.prefix_ends if self.prefixes else (),
            budget_tokens=found.home_budget_tokens,
        )
        job.ticket, effects = self.scheduler.submit(asked, job, now)
        return self._placements(effects)

    def first_token(self, job: Job, now: float) -> list[Placement]:
        """Its first token has come."""
        return self._placements(self.scheduler.first_token(self._leases[job], now))

    def progress(self, job: Job, tokens: int, now: float) -> None:
        """So many more tokens have come."""
        self.scheduler.progress(self._leases[job], tokens, now)

    def finished(self, job: Job, now: float) -> list[Placement]:
        """All its tokens have come."""
        request = job.trace
        self._guesses[request.tenant].observe(request.output_tokens)
        outcome = Outcome(OutcomeKind.OK, 200, None, request.prompt_tokens, request.output_tokens)
        lease = self._leases.pop(job)
        learn(self.tuner, lease, outcome)
        return self._placements(self.scheduler.settle(lease, outcome, now))

    def failed(self, job: Job, now: float) -> list[Placement]:
        """Its worker is gone."""
        retry = job.first_token is None
        placements = self._placements(
            self.scheduler.settle(self._leases.pop(job), Outcome(OutcomeKind.CONNECT_FAILED), now, retry=retry)
        )
        if not retry:
            job.refused = Reason.ATTEMPTS_EXHAUSTED
            placements.append((job, None))
        return placements

    def report(self, plan: WorkerPlan, core: EngineCore, now: float) -> list[Placement]:
        """What a worker says of itself."""
        used = core.pool.used * core.config.block_size
        signal = Signal(now, len(core.running), core.waiting, used, core.preemptions, prefix_hits=core.prefix_hits)
        return self._placements(self.scheduler.observe(_spec(plan), signal, now))

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        deadline = self.scheduler.next_deadline()
        return deadline if not self.tuner.active else min(self._tunes_at, inf if deadline is None else deadline)

    def tick(self, now: float) -> list[Placement]:
        """Time has come."""
        if self.tuner.active and now >= self._tunes_at:
            self._tunes_at = now + EVERY_S
            self.changes += self.tuner.decide(staff_of(self.scheduler.snapshot(now)))
            self._classifier.budgets = self.tuner.budgets
        return self._placements(self.scheduler.tick(now))

    def _placements(self, effects: list[Effect]) -> list[Placement]:
        placements: list[Placement] = []
        for effect in effects:
            if isinstance(effect, Lease):
                job = _job(effect.ticket)
                self._leases[job] = effect
                if effect.cost.prefill_s >= HEAVY_S:
                    self.heavy = True
                placements.append((job, effect.worker))
            elif isinstance(effect, Refuse):
                job = _job(effect.ticket)
                job.refused = effect.reason
                placements.append((job, None))
        return placements


def _job(ticket: Ticket) -> Job:
    assert isinstance(ticket.owner, Job)
    return ticket.owner


def _spec(plan: WorkerPlan) -> WorkerSpec:
    engine = plan.engine
    return WorkerSpec(
        plan.id,
        plan.pool,
        frozenset({MODEL}),
        max_model_len=plan.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        kv_tokens=engine.kv_tokens,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        incarnation=plan.incarnation,
        preset=plan.preset,
    )
