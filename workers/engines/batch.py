"""The words of the simulated engine's core: its configuration, a sequence, a run of steps and what came of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from typing import Protocol


class State(StrEnum):
    """Where a sequence is."""

    NEW = "new"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


class StepModel(Protocol):
    """How long a step takes: `policies.work.StepTime`, or what stands in for it. Seconds, and seconds per unit."""

    @property
    def W(self) -> float:  # noqa: N802 - the name of the formula
        """Reading the weights once."""
        ...

    @property
    def c_seq(self) -> float:
        """Per sequence in the step."""
        ...

    @property
    def c_kv(self) -> float:
        """Per token of context of a decoding sequence."""
        ...

    def step_s(self, n_tokens: int, n_seqs: int, decode_ctx: int, prefill_pairs: float = 0.0, /) -> float:
        """Seconds of one step."""
        ...

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0, /) -> float:
        """Seconds of computing a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is started with. `kv_tokens` is rounded down to whole blocks, the null block comes on top."""

    step: StepModel
    kv_tokens: int
    block_size: int = 16  # tokens
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    reserve_full_isl: bool = True  # admit only when the whole prompt's blocks are free, not just the first chunk's
    priority_scheduling: bool = False  # lower value first, ties by arrival
    prefix_caching: bool = True
    prefix_unit_tokens: int | None = None  # tokens a hash stands for; None: one block

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens {self.kv_tokens} must hold at least one block of {self.block_size}")
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is less than max_num_seqs {self.max_num_seqs}"
            )
        if self.unit_tokens % self.block_size:
            raise ValueError(f"prefix_unit_tokens {self.unit_tokens} is no multiple of block_size {self.block_size}")

    @property
    def unit_tokens(self) -> int:
        """Tokens that one prefix hash stands for."""
        return self.prefix_unit_tokens or self.block_size


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence to generate: `prompt_tokens` in, exactly `output_tokens` out (0: a prefill only)."""

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    hashes: Seq[int] = ()  # of the prompt's whole prefix units, each covering all before it
    owner: object = None  # the driver's own
    arrival: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    cached_tokens: int = 0  # of the prompt, found in the prefix cache at first
    preemptions: int = 0
    state: State = State.NEW
    # Bookkeeping of the core. While decoding, tokens computed = steps done - origin; before, `computed` holds them.
    computed: int = 0
    made: int = 0  # tokens produced before the present decode phase
    origin: int = 0
    end: int = 0  # step number after which it has all its tokens
    order: int = 0
    units: list[int] = field(default_factory=list)  # cached units it references


@dataclass(slots=True)
class Run:
    """What `begin` has scheduled: at least one step, and up to `max_steps` alike but for growing context."""

    start: float
    first_s: float
    growth_s: float  # each further step takes this much longer than the one before
    max_steps: int
    tokens: int  # scheduled in one step
    decodes: int
    prefills: list[tuple[Sequence, int]]
    preempted: list[Sequence]

    def duration_s(self, steps: int) -> float:
        """Seconds of the first `steps` steps."""
        return steps * self.first_s + self.growth_s * (steps * (steps - 1) // 2)

    def steps_until(self, elapsed_s: float) -> int:
        """The least number of whole steps, 1 … max_steps, that takes at least `elapsed_s`."""
        if elapsed_s <= self.first_s or self.max_steps == 1:
            return 1
        half = self.growth_s / 2
        linear = self.first_s - half
        # The stable form of the quadratic's root: also right where growth is zero.
        root = 2 * elapsed_s / (linear + sqrt(linear * linear + 4 * half * elapsed_s))
        if root >= self.max_steps:
            return self.max_steps
        steps = max(1, int(root))
        while steps < self.max_steps and self.duration_s(steps) < elapsed_s:
            steps += 1
        return steps


@dataclass(slots=True)
class StepResult:
    """What one step, or a run of steps, has done. Those still decoding got `steps` tokens each and are not listed."""

    duration_s: float
    steps: int
    scheduled_tokens: int  # in one step
    decodes: int  # sequences that were decoding
    prefilled: list[Sequence]  # prompt done, one token each; after a preemption: resumed
    finished: list[Sequence]
    preempted: list[Sequence]
