"""What to run where, as far as arithmetic tells: does it fit, with which values, where to split short and long.

What it comes to under traffic is for the simulation to say (`loadtest/plan.py`), which starts from these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean
from typing import Final, Protocol

from workers.capacity import (
    Budget,
    Capacity,
    Concurrency,
    EngineShape,
    KvLayout,
    budget,
    capacity,
    held_bytes,
    kv_concurrency,
    kv_layout,
    residency,
    step_concurrency,
)
from workers.ledger import default_batch
from workers.model_shape import ModelShape

Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) of requests."""

RESERVE: Final = 0.05
LENGTH_STEP: Final = 1024  # a longest length is rounded up to a multiple
LEAST_SEQS: Final = 8
LEAST_THRESHOLD: Final = 2048
MAX_TENSOR_PARALLEL: Final = 16
ROUNDS: Final = 50


class StepTimes(Protocol):
    """How long a step takes; `policies.work.StepTime` is one."""

    def decode_step_s(self, n_seqs: int, kv_tokens: int, /) -> float:
        """Seconds of a step that only decodes."""
        ...

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0, /) -> float:
        """Seconds of computing a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class Goal:
    """What a good answer is, and the share of requests that must be good."""

    ttft_s: float = 2.0
    long_ttft_s_per_token: float = 1 / 4000
    tpot_s: float = 0.1
    goodput: float = 0.99


@dataclass(frozen=True, slots=True)
class Fit:
    """One instance of a model on its devices: the memory, how many requests, and why not, if it does not fit."""

    engine: EngineShape
    layout: KvLayout
    budget: Budget
    room: Capacity
    concurrency: Concurrency
    why_not: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can run the longest request that is wanted."""
        return not self.why_not

    @property
    def max_num_seqs(self) -> int:
        """Value for the flag: no more than run well, and some."""
        return min(self.engine.max_num_seqs, max(LEAST_SEQS, self.concurrency.true))


def longest_length(lengths: Lengths, model: ModelShape) -> int:
    """`max_model_len` for this traffic: its longest request, rounded up, within what the model can."""
    longest = max(prompt + output for prompt, output in lengths)
    rounded = -(-longest // LENGTH_STEP) * LENGTH_STEP
    return rounded if model.max_model_len is None else min(rounded, max(model.max_model_len, 1))


def fit(
    model: ModelShape,
    engine: EngineShape,
    device_bytes: int,
    share: float,
    lengths: Lengths,
    step: StepTimes,
    tpot_s: float,
    max_model_len: int,
) -> Fit:
    """One instance with `share` of each device. Raises ModelError where heads cannot be spread over the devices."""
    layout = kv_layout(model, engine)
    parts = budget(model, engine, device_bytes, share)
    room = capacity(layout, parts.kv, max_model_len)
    held = residency(lengths)
    by_kv = kv_concurrency(room.usable_blocks * layout.bytes_per_block, held_bytes(layout, held))
    by_step = step_concurrency(lambda n: step.decode_step_s(n, round(n * held.mean)), tpot_s, engine.max_num_seqs)
    found = Fit(engine, layout, parts, room, Concurrency(engine.max_num_seqs, by_kv, by_step, room.guaranteed))
    if parts.kv <= 0:
        short = -parts.kv / 2**30
        return replace(found, why_not=f"weights and overhead are {short:.1f} GiB more than its share of the device")
    if not room.fits:
        return replace(found, why_not=f"the longest request that fits has {room.longest} of {max_model_len} tokens")
    if by_step == 0:
        return replace(found, why_not=f"a step takes longer than {1000 * tpot_s:g} ms even for one request")
    return found


def tensor_parallels(model: ModelShape, devices: int) -> list[int]:
    """Numbers of devices that one instance can be spread over, up to `devices`: powers of two that divide the heads."""
    sizes = [2**power for power in range(devices.bit_length()) if 2**power <= min(devices, MAX_TENSOR_PARALLEL)]
    return [size for size in sizes if model.heads % size == 0]


def engine_for(
    model: ModelShape, device_bytes: int, device_name: str, tensor_parallel: int, kv_bytes: int
) -> EngineShape:
    """What an engine that nobody tuned would be started with on such devices."""
    tokens, seqs = default_batch(device_bytes, device_name)
    return EngineShape(
        tensor_parallel=tensor_parallel,
        kv_value_bytes=kv_bytes,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
    )


@dataclass(frozen=True, slots=True)
class Split:
    """Two pools: requests of up to `threshold` tokens go to the short one. Load: seconds of work a second, a worker."""

    threshold: int
    short: int
    long: int
    short_share: float  # of the work
    short_load: float
    long_load: float

    @property
    def worst(self) -> float:
        """The load of the pool that has more."""
        return max(self.short_load, self.long_load)


def work_s(prompt: int, output: int, step: StepTimes, batch: int, context: float) -> float:
    """Engine seconds of one request beside `batch` others: its prefill, and its part of each decode step."""
    whole = step.decode_step_s(batch, round(batch * context))
    own = step.decode_step_s(batch + 1, round(batch * context + prompt + output / 2)) - whole
    return step.prefill_s(prompt) + output * (whole / max(1, batch) + own)


def splits(lengths: Lengths, per_s: float, workers: int, work: Callable[[int, int], float]) -> list[Split]:
    """Every sensible threshold for so many workers, the most even first; none for a single worker.

    Thresholds are powers of two and their midpoints; the short pool gets workers by its share of the work, because
    sizes by number of requests leave long ones far too few.
    """
    if workers < 2:
        return []
    costs = [(prompt + output, work(prompt, output)) for prompt, output in lengths]
    total = sum(cost for _, cost in costs)
    longest = max(length for length, _ in costs)
    found: list[Split] = []
    threshold = LEAST_THRESHOLD
    while threshold < longest:
        for one in (threshold, threshold + threshold // 2):
            short = sum(cost for length, cost in costs if length <= one)
            if one < longest and 0 < short < total:
                found.append(_split(one, short / total, per_s * total / len(costs), workers))
        threshold *= 2
    return sorted(found, key=lambda split: (round(split.worst, 3), -split.threshold))


def _split(threshold: int, share: float, load: float, workers: int) -> Split:
    short = min(workers - 1, max(1, round(workers * share)))
    long = workers - short
    return Split(threshold, short, long, share, load * share / short, load * (1 - share) / long)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model on a card that several share: its traffic and what it needs."""

    model: ModelShape
    lengths: Lengths
    per_s: float
    step: StepTimes
    engine: EngineShape
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a tenant gets of the card: a share of the memory, and how much slower the others make it."""

    fit: Fit
    share: float
    active: float  # share of the time in which it has anything to do
    slowdown: float


def share_card(tenants: Sequence[Tenant], device_bytes: int, tpot_s: float, reserve: float = RESERVE) -> list[Part]:
    """Divide one card: each gets its weights and one longest request, the rest goes where tokens stay.

    Time is shared as well: a step takes twice as long while one other engine has something to do, three times while
    two have (time slices, as the driver deals them out without MPS or MIG; an estimate).
    """
    fixed = [budget(one.model, one.engine, device_bytes, 0.0) for one in tenants]
    needed = [-part.kv for part in fixed]
    least = []
    weight = []
    for one in tenants:
        layout = kv_layout(one.model, one.engine)
        # One block more than the longest request: the engine keeps one for itself.
        least.append((layout.blocks_for(one.max_model_len) + 1) * layout.bytes_per_block)
        held = held_bytes(layout, residency(one.lengths))
        weight.append(one.per_s * fmean(output for _, output in one.lengths) * held.mean)
    free = device_bytes * (1 - reserve) - sum(needed) - sum(least)
    extra = [free * part / sum(weight) if free > 0 else free / len(tenants) for part in weight]
    shares = [(one + two + three) / device_bytes for one, two, three in zip(needed, least, extra, strict=True)]
    slowdowns, active = _slowdowns(tenants)
    parts = []
    for one, share, slowdown, own in zip(tenants, shares, slowdowns, active, strict=True):
        bounded = max(0.0, share)
        found = fit(
            one.model, one.engine, device_bytes, bounded, one.lengths, one.step, tpot_s / slowdown, one.max_model_len
        )
        if found.fits and (load := _load(one, slowdown, max(1, found.concurrency.true))) >= 1:
            found = replace(found, why_not=f"beside the others it needs {load:.2f} times what it can compute")
        parts.append(Part(found, bounded, own, slowdown))
    return parts


def _slowdowns(tenants: Sequence[Tenant]) -> tuple[list[float], list[float]]:
    """How much longer each one's steps take, and the share of the time in which each has anything to do."""
    slow = [1.0] * len(tenants)
    active = [0.0] * len(tenants)
    flight = [1.0] * len(tenants)
    # More slowdown, more in flight, more slowdown: bounded by the number of tenants, so that it settles.
    for _ in range(ROUNDS):
        for index, one in enumerate(tenants):
            seconds = _request_s(one, flight[index]) * slow[index]
            flight[index] = min(float(one.engine.max_num_seqs), one.per_s * seconds)
            active[index] = 1 - exp(-flight[index])
        slow = [1 + sum(active) - own for own in active]
    return slow, active


def _request_s(one: Tenant, batch: float) -> float:
    """Seconds from dispatch to end of a mean request beside so many others, on a card of its own."""
    seqs = max(1, round(batch))
    step_s = one.step.decode_step_s(seqs, round(seqs * residency(one.lengths).mean))
    return fmean(one.step.prefill_s(prompt) + output * step_s for prompt, output in one.lengths)


def _load(one: Tenant, slowdown: float, batch: int) -> float:
    """Seconds of engine time a second, with steps as full as they may be: from 1 on it cannot keep up."""
    context = residency(one.lengths).mean
    step_s = one.step.decode_step_s(batch, round(batch * context)) / batch
    return slowdown * one.per_s * fmean(one.step.prefill_s(prompt) + output * step_s for prompt, output in one.lengths)
