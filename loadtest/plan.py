"""`headrace plan`: from a model, devices and traffic to instances, values and a split, tried in simulation.

Arithmetic (`workers/plan.py`) says what fits and where the work lies; then the production scheduler runs the traffic
over simulated engines, for the plan itself, for more traffic (headroom) and for one instance more or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final

from loadtest.figures import Figures, Slo
from loadtest.fleet import Fleet, WorkerPlan
from loadtest.routers import ProductionRouter
from loadtest.traces import TraceRequest
from loadtest.workload import Workload
from policies.document import Policy, policy_from_mapping
from policies.work import PRESETS, EnginePreset, StepTime
from workers.capacity import EngineShape
from workers.engines.timing import EngineConfig
from workers.hardware import PRESET_NAMES, Card, roofline
from workers.model_shape import ModelError, ModelShape
from workers.plan import (
    RESERVE,
    Fit,
    Goal,
    Part,
    Split,
    Tenant,
    engine_for,
    fit,
    longest_length,
    share_card,
    splits,
    tensor_parallels,
    work_s,
)

SHORT: Final = "short-chat"
LONG: Final = "long-context"
ONLY: Final = "all"
MAX_INSTANCES: Final = 64
MAX_REQUESTS: Final = 6000  # of one simulated run: keeps a plan within a minute
LEAST_SECONDS: Final = 30.0
ALTERNATIVES: Final = 2  # that are shown where the number of cards is open
TARGET_LOAD: Final = 0.7  # of a worker, from which the search for a number of instances starts
MOST_SPLITS: Final = 2  # that are tried for a number of instances
HEADROOM: Final = (1.1, 1.25, 1.5, 2.0, 3.0)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one instance would run: over so many devices, with these step times."""

    fit: Fit
    step: StepTime
    basis: str  # where the step times are from
    model: ModelShape
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A number of instances, split or not, and what came of the traffic."""

    instances: int
    split: Split | None
    figures: Figures


@dataclass(slots=True)
class Plan:
    """The answer."""

    layouts: list[Layout]
    why_not: list[str]
    chosen: Layout | None = None
    trial: Trial | None = None
    one_more: Trial | None = None
    one_less: Trial | None = None
    headroom: float = 0.0  # times the traffic that still meets the goal; 0: not even this
    trials: list[Trial] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Question:
    """What to plan for."""

    model: ModelShape
    card: Card
    workload: Workload
    per_s: float
    goal: Goal
    devices: int | None = None  # None: as many as it takes
    tensor_parallel: int | None = None
    kv_value_bytes: int = 2
    max_model_len: int | None = None
    seconds: float = 180.0
    seed: int = 0

    def run_s(self, per_s: float) -> float:
        """Length of a simulated run at a rate."""
        return max(LEAST_SECONDS, min(self.seconds, MAX_REQUESTS / per_s))


def step_times(model: ModelShape, card: Card, engine: EngineShape) -> tuple[StepTime, str]:
    """Step times as measured where they are, else by the roofline; and which. Raises ModelError."""
    name = PRESET_NAMES.get((model.name, card.name, engine.tensor_parallel))
    if name is not None and model.quantization is None:
        return PRESETS[name].step, f"preset {name}: {PRESETS[name].status}"
    found = roofline(model, card, engine)
    return StepTime(**asdict(found)), "roofline from the data sheet, not validated"


def layouts_of(question: Question) -> tuple[list[Layout], list[str]]:
    """Every way to run one instance that fits, with the fewest devices first; and why the others do not."""
    good: list[Layout] = []
    reasons: list[str] = []
    lengths = question.workload.lengths
    most = question.devices or 16
    sizes = [question.tensor_parallel] if question.tensor_parallel else tensor_parallels(question.model, most)
    length = question.max_model_len or longest_length(lengths, question.model)
    for size in sizes:
        if not question.devices and len(good) == ALTERNATIVES:
            break
        card = question.card
        engine = engine_for(question.model, card.memory_bytes, card.name, size, question.kv_value_bytes)
        try:
            step, basis = step_times(question.model, card, engine)
            found = fit(
                question.model, engine, card.memory_bytes, 1 - RESERVE, lengths, step, question.goal.tpot_s, length
            )
        except ModelError as error:
            reasons.append(f"tensor_parallel {size}: {error}")
            continue
        if found.fits:
            good.append(Layout(found, step, basis, question.model, length))
        else:
            reasons.append(f"tensor_parallel {size}: {found.why_not}")
    return good, reasons


def make_plan(question: Question) -> Plan:
    """Plan one model on as many devices as there are, or as it takes."""
    layouts, reasons = layouts_of(question)
    plan = Plan(layouts, reasons)
    best: tuple[Trial, Layout] | None = None
    # With the devices given, more of them for one instance is another way to spend them; else the fewest do.
    for layout in layouts if question.devices else layouts[:1]:
        trial = _search(question, layout, plan.trials)
        if best is None or _better(trial, best[0], question.goal):
            best = trial, layout
    if best is None:
        return plan
    plan.trial, plan.chosen = best
    layout = plan.chosen
    plan.headroom = _headroom(question, layout, plan.trial)
    plan.one_more = _best_of(question, layout, plan.trial.instances + 1)
    if plan.trial.instances > 1:
        plan.one_less = _best_of(question, layout, plan.trial.instances - 1)
    return plan


def _better(one: Trial, other: Trial, goal: Goal) -> bool:
    first, second = one.figures.all, other.figures.all
    if first.goodput >= goal.goodput and second.goodput >= goal.goodput:
        return first.ttft_p99_s < second.ttft_p99_s
    return first.goodput > second.goodput


def _search(question: Question, layout: Layout, trials: list[Trial]) -> Trial:
    """The number of instances: all that the devices allow, or the least that meets the goal."""
    if question.devices:
        each = layout.fit.engine.tensor_parallel
        trial = _best_of(question, layout, max(1, question.devices // each))
        trials.append(trial)
        return trial
    count = _first_guess(question, layout)
    trial = _best_of(question, layout, count)
    trials.append(trial)
    step = 1 if trial.figures.all.goodput < question.goal.goodput else -1
    while 1 <= count + step <= MAX_INSTANCES:
        following = _best_of(question, layout, count + step)
        trials.append(following)
        met = following.figures.all.goodput >= question.goal.goodput
        if step == 1:
            count, trial = count + 1, following
            if met:
                break
        elif met:
            count, trial = count - 1, following
        else:
            break
    return trial


def _first_guess(question: Question, layout: Layout) -> int:
    lengths = question.workload.lengths
    load = question.per_s * sum(_work(layout, *one) for one in lengths) / len(lengths)
    return min(MAX_INSTANCES, max(1, round(load / TARGET_LOAD)))


def _work(layout: Layout, prompt: int, output: int) -> float:
    # A batch of half of what runs well: busy, not full.
    batch = max(1, layout.fit.concurrency.true // 2)
    return work_s(prompt, output, layout.step, min(batch, 64), 1024.0)


def _best_of(question: Question, layout: Layout, count: int) -> Trial:
    """So many instances as one pool and in the most even splits: the best of them."""
    candidates: list[Split | None] = [None]
    found = splits(question.workload.lengths, question.per_s, count, lambda one, two: _work(layout, one, two))
    candidates += found[:MOST_SPLITS]
    trials = [Trial(count, split, _run(question, layout, count, split, 1.0)) for split in candidates]
    best = trials[0]
    for trial in trials[1:]:
        if _better(trial, best, question.goal):
            best = trial
    return best


def _headroom(question: Question, layout: Layout, trial: Trial) -> float:
    if trial.figures.all.goodput < question.goal.goodput:
        return 0.0
    reached = 1.0
    for factor in HEADROOM:
        figures = _run(question, layout, trial.instances, trial.split, factor)
        if figures.all.goodput < question.goal.goodput:
            break
        reached = factor
    return reached


def _run(question: Question, layout: Layout, count: int, split: Split | None, factor: float) -> Figures:
    pools = [ONLY] * count if split is None else [SHORT] * split.short + [LONG] * split.long
    engine = EngineConfig(
        layout.step,
        layout.fit.room.kv_tokens,
        max_num_seqs=layout.fit.max_num_seqs,
        max_num_batched_tokens=layout.fit.engine.max_num_batched_tokens,
        prefix_caching=False,
    )
    per_s = question.per_s * factor
    trace = question.workload.sample(per_s, question.run_s(per_s))
    return simulate(pools, engine, layout, split, trace, question.goal, question.seed)


def simulate(
    pools: Sequence[str],
    engine: EngineConfig,
    layout: Layout,
    split: Split | None,
    trace: Sequence[TraceRequest],
    goal: Goal,
    seed: int,
) -> Figures:
    """Run traffic over one worker for each of `pools`."""
    name = f"plan {layout.model.name} x{layout.fit.engine.tensor_parallel}"
    # Workers name their preset in reports; the scheduler looks it up by name.
    PRESETS[name] = EnginePreset(
        layout.step, engine.kv_tokens, engine.max_num_batched_tokens, engine.max_num_seqs, status="planned"
    )
    plans = [WorkerPlan(f"{pool}-{number}", engine, pool, name) for number, pool in enumerate(pools)]
    router = ProductionRouter(policy_for(split, goal), Random(seed))
    slo = Slo(goal.ttft_s, goal.long_ttft_s_per_token, goal.tpot_s)
    return Figures.of(Fleet(plans, router).run(trace), slo)


def policy_for(split: Split | None, goal: Goal) -> Policy:
    """The policy that the plan would run under: the shipped one with these pools."""
    pools: dict[str, Any] = {ONLY: {}}
    if split is not None:
        pools = {SHORT: {"max_budget_tokens": split.threshold, "may_borrow": [LONG]}, LONG: {}}
    return policy_from_mapping({"pools": pools, "models": {}, "rules": []})


@dataclass(frozen=True, slots=True)
class Guest:
    """A model on a shared card and the traffic it gets."""

    model: ModelShape
    workload: Workload
    per_s: float


@dataclass(frozen=True, slots=True)
class Seat:
    """What a guest gets, and what comes of its traffic; no figures where it does not fit."""

    guest: Guest
    part: Part
    layout: Layout
    figures: Figures | None


def plan_card(
    guests: Sequence[Guest], card: Card, goal: Goal, kv_value_bytes: int = 2, seconds: float = 180.0, seed: int = 0
) -> list[Seat]:
    """One card, several models: memory by need, time by turns, each simulated as slow as the others make it."""
    tenants: list[Tenant] = []
    bases: list[str] = []
    for guest in guests:
        lengths = guest.workload.lengths
        engine = engine_for(guest.model, card.memory_bytes, card.name, 1, kv_value_bytes)
        step, basis = step_times(guest.model, card, engine)
        bases.append(basis)
        length = longest_length(lengths, guest.model)
        tenants.append(Tenant(guest.model, lengths, guest.per_s, step, engine, length))
    seats = []
    parts = share_card(tenants, card.memory_bytes, goal.tpot_s)
    for guest, tenant, basis, part in zip(guests, tenants, bases, parts, strict=True):
        alone, _ = step_times(guest.model, card, tenant.engine)
        slowed = StepTime(**{name: value * part.slowdown for name, value in asdict(alone).items()})
        layout = Layout(part.fit, slowed, basis, guest.model, tenant.max_model_len)
        figures = None
        if part.fit.fits:
            question = Question(guest.model, card, guest.workload, guest.per_s, goal, seconds=seconds, seed=seed)
            figures = _run(question, layout, 1, None, 1.0)
        seats.append(Seat(guest, part, layout, figures))
    return seats
