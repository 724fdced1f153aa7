"""Hold the simulated engine against measured runs of a real one: the same requests, the same arrival times."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from loadtest.traces import MEASURED, MeasuredRequest, load_measured
from policies.work import PRESETS, EnginePreset
from workers.engines.timing import EngineConfig, EngineCore, Sequence


def percentile(values: Seq[float], share: float) -> float:
    """The value that `share` (0 … 1) of all values do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What one run looks like from outside; seconds."""

    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    makespan: float

    @staticmethod
    def of(requests: Seq[MeasuredRequest]) -> RunFigures:
        """Figures of a list of requests."""
        ttft = [request.ttft_s for request in requests]
        tpot = [request.tpot_s for request in requests]
        return RunFigures(
            fmean(ttft),
            percentile(ttft, 0.5),
            percentile(ttft, 0.99),
            fmean(tpot),
            percentile(tpot, 0.99),
            max(request.arrival_s + request.e2e_s for request in requests),
        )

    def error_of(self, other: RunFigures) -> dict[str, float]:
        """Relative error of `other`'s figures, by name, when these are the truth."""
        return {name: getattr(other, name) / getattr(self, name) - 1 for name in self.__slots__}


def replay(requests: Seq[MeasuredRequest], preset: EnginePreset) -> list[MeasuredRequest]:
    """What the simulated engine with `preset` does to the same requests."""
    if preset.kv_tokens is None:
        raise ValueError("the preset does not say how much KV cache the engine has")
    core = EngineCore(
        EngineConfig(
            preset.step,
            preset.kv_tokens,
            max_num_seqs=preset.max_num_seqs,
            max_num_batched_tokens=preset.max_num_batched_tokens,
        )
    )
    seqs = [Sequence(str(index), r.prompt_tokens, r.output_tokens) for index, r in enumerate(requests)]
    now, arrived = 0.0, 0
    while arrived < len(seqs) or not core.idle:
        while arrived < len(seqs) and requests[arrived].arrival_s <= now:
            core.add(seqs[arrived], requests[arrived].arrival_s)
            arrived += 1
        run = core.begin(now)
        if run is None:
            now = requests[arrived].arrival_s
            continue
        more = arrived < len(seqs)
        now += core.end(run.steps_until(requests[arrived].arrival_s - now) if more else run.max_steps).duration_s
    return [_measured(request, seq) for request, seq in zip(requests, seqs, strict=True)]


def _measured(request: MeasuredRequest, seq: Sequence) -> MeasuredRequest:
    if seq.scheduled_at is None or seq.first_token_at is None or seq.finished_at is None:
        raise RuntimeError(f"sequence {seq.id} has not run to its end")
    decode_s = seq.finished_at - seq.first_token_at
    return MeasuredRequest(
        request.arrival_s,
        request.prompt_tokens,
        request.output_tokens,
        queue_s=seq.scheduled_at - request.arrival_s,
        ttft_s=seq.first_token_at - request.arrival_s,
        e2e_s=seq.finished_at - request.arrival_s,
        tpot_s=decode_s / max(1, request.output_tokens - 1),
    )


def fidelity(name: str) -> tuple[RunFigures, RunFigures]:
    """Figures of the measured run `name` (a key of `MEASURED`) and of its simulation."""
    measured = load_measured(name)
    return RunFigures.of(measured), RunFigures.of(replay(measured, PRESETS[MEASURED[name][1]]))
