"""What a request costs on a worker, in seconds: the step-time model of one engine and its presets.

One step of a continuously batching engine takes

    T = t0 + c_seq·B + sqrt(W² + (c_tok·n)²) + c_kv·Σ decode context + c_pair·Σ q(h + q/2) + c_comm·n

with n scheduled tokens, B sequences in the step, q new tokens of a prefill chunk and h tokens already in its KV
cache. The root joins the two roofs of a matrix product (reading the weights, multiplying) the way measured kernels
do; `max` underestimates around the knee. All arguments are clamped to a finite range, so no input overflows,
divides by zero or gives a negative or non-finite time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

MAX_TOKENS: Final = 1_000_000_000  # beyond any context; keeps every product finite
MAX_PAIRS: Final = 1e18
MAX_SEQS: Final = 1_000_000
USUAL_BATCH: Final = 16  # sequences that decode together where a fleet is busy and no worker is known


def _bounded(tokens: int) -> int:
    """`tokens` within 0 … MAX_TOKENS."""
    return 0 if tokens < 0 else tokens if tokens < MAX_TOKENS else MAX_TOKENS


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients of one engine on its hardware, in seconds and seconds per unit."""

    t0: float  # fixed overhead of a step
    c_seq: float  # per sequence in the step
    W: float  # reading the weights once
    c_tok: float  # per token, compute bound
    c_kv: float  # per token of context of a decoding sequence
    c_pair: float  # per (query, key) pair of prefill attention
    c_comm: float = 0.0  # per token, tensor-parallel communication

    def step_s(self, n_tokens: int, n_seqs: int, decode_ctx: int, prefill_pairs: float = 0.0) -> float:
        """Seconds of one step.

        `n_tokens`: scheduled tokens, decodes and prefill chunks together; `n_seqs`: sequences in the step;
        `decode_ctx`: sum of the context of the decoding ones; `prefill_pairs`: sum of q·(h + q/2) of the chunks.
        """
        n = _bounded(n_tokens)
        seqs = 0 if n_seqs < 0 else min(n_seqs, MAX_SEQS)
        # Written so that NaN counts as none.
        pairs = min(prefill_pairs, MAX_PAIRS) if prefill_pairs > 0.0 else 0.0
        compute = self.c_tok * n
        return (
            self.t0
            + self.c_seq * seqs
            + sqrt(self.W * self.W + compute * compute)
            + self.c_kv * _bounded(decode_ctx)
            + self.c_pair * pairs
            + self.c_comm * n
        )

    def decode_step_s(self, n_seqs: int, kv_tokens: int) -> float:
        """Seconds of a step that only decodes: one token for each of `n_seqs` sequences over `kv_tokens` of context."""
        n = 0 if n_seqs < 0 else n_seqs if n_seqs < MAX_SEQS else MAX_SEQS
        compute = self.c_tok * n
        # `step_s` without prefill, term by term.
        return (
            self.t0
            + self.c_seq * n
            + sqrt(self.W * self.W + compute * compute)
            + self.c_kv * _bounded(kv_tokens)
            + self.c_comm * n
        )

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds of engine time that `new_tokens` after `cached_tokens` add to the steps that carry them."""
        if 0 <= new_tokens < MAX_TOKENS and 0 <= cached_tokens < MAX_TOKENS:
            pairs = new_tokens * (cached_tokens + new_tokens / 2)  # at most 1.5e18: finite
            return (self.c_tok + self.c_comm) * new_tokens + self.c_pair * pairs
        return (self.c_tok + self.c_comm) * _bounded(new_tokens) + self.c_pair * prefill_pairs(
            new_tokens, cached_tokens
        )

    def decode_seconds(self, output_tokens: int, step_s: float) -> float:
        """Seconds of `output_tokens` decode steps at `step_s` each."""
        return _bounded(output_tokens) * step_s

    def occupancy_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds of an engine's time that a request is worth where USUAL_BATCH sequences share each step.

        Its prefill, and of each decode step its part of reading the weights and what it adds itself.
        """
        output, prompt = _bounded(output_tokens), _bounded(prompt_tokens)
        decode = self.W / USUAL_BATCH + self.c_seq + self.c_kv * (prompt + output / 2)
        return self.prefill_s(prompt) + output * decode

    def crowding_s(self, output_tokens: int, context_tokens: int) -> float:
        """Seconds that decoding `output_tokens` after `context_tokens` adds to the steps of everyone else.

        The token's own compute counts at 0.3 of `c_tok`, because while decoding the batch is bound by reading
        the weights and hides most of it (judgement).
        """
        output = _bounded(output_tokens)
        context = _bounded(context_tokens) + output / 2
        return output * (self.c_seq + 0.3 * self.c_tok + self.c_kv * context)

    def chunk_s(self, max_num_batched_tokens: int) -> float:
        """Seconds of a step filled with prefill; the unit in which prefill progresses."""
        return self.t0 + self.c_tok * _bounded(max_num_batched_tokens)


def prefill_pairs(new_tokens: int, cached_tokens: int = 0) -> float:
    """(query, key) pairs of a prefill of `new_tokens` over `cached_tokens`: q·(h + q/2)."""
    new = _bounded(new_tokens)
    return min(new * (_bounded(cached_tokens) + new / 2), MAX_PAIRS)


@dataclass(frozen=True, slots=True)
class EnginePreset:
    """A model on hardware: its step time, what the engine is started with, and how far to trust the row."""

    step: StepTime
    kv_tokens: int | None  # KV capacity; None: not known for this row
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    status: str = ""  # where the numbers come from and how they were checked


# Coefficients: attention and GEMM kernels as profiled by vidur and LLMServingSim (MIT), roofline where no profile
# exists; status "fitted": t0, c_seq and c_comm were set by hand on the same 300-request vLLM 0.19 run that the given
# errors are measured on, so it is a check of fit, not a blind test.
PRESETS: Final[dict[str, EnginePreset]] = {
    "llama3-8b/rtx4090": EnginePreset(
        StepTime(t0=0.0015, c_seq=2.5e-5, W=0.0163, c_tok=8.71e-5, c_kv=1.373e-7, c_pair=3.70e-9),
        kv_tokens=41_408,
        status="fitted (TTFT mean +0.6 %, TPOT mean -0.5 %, p99 within 1 %)",
    ),
    "llama3-8b/rtxpro6000": EnginePreset(
        StepTime(t0=0.0015, c_seq=3.5e-5, W=0.0108, c_tok=3.65e-5, c_kv=8.56e-8, c_pair=1.83e-9),
        kv_tokens=515_000,
        max_num_seqs=128,
        status="fitted (TTFT mean -2 %, TPOT mean +0.5 %, p99 within 1 %)",
    ),
    "qwen3-32b/2xrtxpro6000-tp2-pcie": EnginePreset(
        StepTime(t0=0.003, c_seq=2.5e-5, W=0.0236, c_tok=8.2e-5, c_kv=8.64e-8, c_pair=3.67e-9, c_comm=1.1e-4),
        kv_tokens=None,
        max_num_seqs=128,
        status="fitted (TTFT mean +4 %, TPOT mean -1 %)",
    ),
    "llama3-8b/a100-80": EnginePreset(
        StepTime(t0=0.0015, c_seq=2.5e-5, W=0.0106, c_tok=6.65e-5, c_kv=7.6e-8, c_pair=3.1e-9),
        kv_tokens=440_000,
        status="kernel (GEMM), attention derived",
    ),
    "llama3-8b/h100": EnginePreset(
        StepTime(t0=0.0015, c_seq=2.5e-5, W=0.0072, c_tok=2.5e-5, c_kv=4.9e-8, c_pair=1.06e-9),
        kv_tokens=450_000,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        status="kernel/derived",
    ),
    "llama3-8b/l4": EnginePreset(
        StepTime(t0=0.002, c_seq=2.5e-5, W=0.062, c_tok=1.72e-4, c_kv=5.1e-7, c_pair=8e-9),
        kv_tokens=30_000,
        status="derived, not validated",
    ),
    "llama3-8b/a10": EnginePreset(
        StepTime(t0=0.002, c_seq=2.5e-5, W=0.031, c_tok=1.67e-4, c_kv=2.6e-7, c_pair=8e-9),
        kv_tokens=38_000,
        status="derived, not validated",
    ),
    "llama3-8b/a6000": EnginePreset(
        StepTime(t0=0.002, c_seq=2.5e-5, W=0.0235, c_tok=1.65e-4, c_kv=2.0e-7, c_pair=6e-9),
        kv_tokens=None,
        status="kernel (GEMM)",
    ),
    "llama3-8b/rtx3090": EnginePreset(
        StepTime(t0=0.002, c_seq=2.5e-5, W=0.0219, c_tok=2.45e-4, c_kv=1.6e-7, c_pair=1.3e-8),
        kv_tokens=31_232,
        status="kernel (GEMM)",
    ),
    "llama3-70b/4xa100-80-nvlink-tp4": EnginePreset(
        StepTime(t0=0.006, c_seq=2.5e-5, W=0.0255, c_tok=1.607e-4, c_kv=4.7e-8, c_pair=3.8e-9, c_comm=3.5e-5),
        kv_tokens=480_000,
        status="kernel + communication from Splitwise end to end",
    ),
    "llama3-70b/4xh100-tp4": EnginePreset(
        StepTime(t0=0.005, c_seq=2.5e-5, W=0.0147, c_tok=5.56e-5, c_kv=3.06e-8, c_pair=1.33e-9, c_comm=1.5e-5),
        kv_tokens=486_800,
        max_num_batched_tokens=8192,
        status="kernel; BLIS predicts an ITL of 18.3 ms, which agrees",
    ),
    "llama3-70b/8xh100-tp8": EnginePreset(
        StepTime(t0=0.005, c_seq=2.5e-5, W=0.0085, c_tok=2.98e-5, c_kv=1.53e-8, c_pair=6.7e-10, c_comm=1.8e-5),
        kv_tokens=None,
        status="kernel",
    ),
}

DEFAULT_PRESET: Final = "llama3-8b/a100-80"


def preset_for(name: str | None) -> EnginePreset:
    """The preset called `name`; the default for None and for names nobody knows: online correction does the rest."""
    found = PRESETS.get(name) if name is not None else None
    return found if found is not None else PRESETS[DEFAULT_PRESET]
