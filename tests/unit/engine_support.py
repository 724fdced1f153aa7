"""Engines for the tests of the simulated engine's core."""

from __future__ import annotations

from policies.work import StepTime
from workers.engines.timing import EngineConfig, EngineCore

UNIT = StepTime(t0=1.0, c_seq=0.0, W=0.0, c_tok=0.0, c_kv=0.0, c_pair=0.0)  # every step takes a second
REAL = StepTime(t0=0.0015, c_seq=2.5e-5, W=0.0106, c_tok=6.65e-5, c_kv=7.6e-8, c_pair=3.1e-9)


def engine(step: StepTime = UNIT, **changes: object) -> EngineCore:
    fields: dict[str, object] = {"kv_tokens": 1600, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineCore(EngineConfig(step=step, **{**fields, **changes}))  # type: ignore[arg-type]


def drain(core: EngineCore, now: float = 0.0, limit: int = 10_000) -> float:
    """Step until idle; the time then."""
    for _ in range(limit):
        result = core.step(now)
        if result is None:
            return now
        now += result.duration_s
    raise AssertionError(f"not idle after {limit} steps: {core!r}")
