"""What operators would tell each other about a worker: rules over its last reports. Pure.

Each piece of advice has what was measured, the threshold, and the change to make. Rules look at samples ten seconds
apart over the last minutes of one incarnation: a single report proves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Final

from workers.report import WorkerReport

SAMPLE_S: Final = 10.0
KEPT: Final = 30  # samples of a worker: five minutes
ENOUGH: Final = 6  # samples before most rules say anything: a minute
MAX_WORKERS: Final = 4096

IDLE_UTILIZATION: Final = 0.30
BUSY_UTILIZATION: Final = 0.85
FULL_MEMORY: Final = 0.92
QUEUED_SAMPLES: Final = 3
LOW_KV: Final = 0.20
FULL_KV: Final = 0.95
SLOW_TTFT_S: Final = 2.0
UNUSED_SHARE: Final = 0.10  # of the places


@dataclass(frozen=True, slots=True)
class Sample:
    """What one report said, as far as rules ask. None: it did not say."""

    at: float
    running: int
    waiting: int
    preemptions: int
    kv_usage: float | None
    max_num_seqs: int | None
    utilization: float | None
    memory: float | None  # used share of the device's memory
    ttft_p95_s: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding. `measured` and `threshold` by name; `change` says what to do about it."""

    worker: str
    pool: str
    rule: str
    message: str
    measured: Mapping[str, float]
    threshold: Mapping[str, float]
    change: str


@dataclass(slots=True)
class _Track:
    pool: str
    incarnation: str
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))


class History:
    """The last samples of every worker, bounded."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def observe(self, report: WorkerReport, now: float) -> None:
        """Take in a report; all but one in `SAMPLE_S` are passed over, and all that are not from a ready worker."""
        if report.state != "ready":
            return
        track = self._tracks.get(report.id)
        if track is None or track.incarnation != report.incarnation:
            if track is None and len(self._tracks) >= MAX_WORKERS:
                return
            track = self._tracks[report.id] = _Track(report.pool, report.incarnation)
        if not track.samples or now - track.samples[-1].at >= SAMPLE_S:
            track.pool = report.pool
            track.samples.append(sample_of(report, now))

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        self._tracks.pop(worker, None)

    def advice(self) -> list[Advice]:
        """All findings about all workers, by worker."""
        return [
            finding
            for worker, track in sorted(self._tracks.items())
            for finding in advise(worker, track.pool, tuple(track.samples))
        ]


def sample_of(report: WorkerReport, now: float) -> Sample:
    """A report as the rules see it."""
    used, size = report.device_used_bytes, report.device_bytes
    return Sample(
        now,
        report.running,
        report.waiting,
        report.preemptions,
        report.kv_usage,
        report.max_num_seqs,
        report.device_utilization,
        used / size if used is not None and size else None,
        report.ttft_p95_s,
    )


def advise(worker: str, pool: str, samples: Sequence[Sample]) -> list[Advice]:
    """Findings about one worker, from its samples, oldest first."""
    found = []
    for name, rule in RULES.items():
        finding = rule(samples)
        if finding is not None:
            message, measured, threshold, change = finding
            rounded = {key: round(value, 4) for key, value in measured.items()}
            found.append(Advice(worker, pool, name, message, rounded, threshold, change))
    return found


Finding = tuple[str, dict[str, float], dict[str, float], str] | None
"""Message, measured values, thresholds, change."""


def _known(values: Sequence[float | None]) -> list[float]:
    """The values, if enough of them are known; nothing otherwise."""
    known = [value for value in values if value is not None]
    return known if len(known) >= ENOUGH else []


def _idle(samples: Sequence[Sample]) -> Finding:
    busy = _known([one.utilization for one in samples])
    if not busy or fmean(busy) >= IDLE_UTILIZATION or not any(one.running for one in samples):
        return None
    if samples[-1].waiting:
        message = f"the device computes {fmean(busy):.0%} of the time although requests wait"
        change = "raise max_num_seqs or max_num_batched_tokens, and look at host load: something else holds it back"
    else:
        message = f"the device computes {fmean(busy):.0%} of the time"
        change = "give it more work: fewer instances in the pool, or another model on the same device"
    return message, {"utilization": fmean(busy)}, {"utilization": IDLE_UTILIZATION}, change


def _busy(samples: Sequence[Sample]) -> Finding:
    busy = _known([one.utilization for one in samples])
    if not busy or fmean(busy) <= BUSY_UTILIZATION:
        return None
    return (
        f"the device computes {fmean(busy):.0%} of the time: bursts will queue",
        {"utilization": fmean(busy)},
        {"utilization": BUSY_UTILIZATION},
        "add an instance to the pool, or let another pool take some of its work (may_borrow)",
    )


def _memory_and_queue(samples: Sequence[Sample]) -> Finding:
    if len(samples) < QUEUED_SAMPLES:
        return None
    last = samples[-QUEUED_SAMPLES:]
    memory = last[-1].memory
    grows = all(before.waiting < after.waiting for before, after in pairwise(last))
    if memory is None or memory <= FULL_MEMORY or not grows:
        return None
    return (
        f"device memory is {memory:.0%} full and the queue grows",
        {"memory": memory, "waiting_before": last[0].waiting, "waiting": last[-1].waiting},
        {"memory": FULL_MEMORY},
        "lower max_model_len or use an fp8 KV cache, so that more requests fit, or add an instance",
    )


def _queue(samples: Sequence[Sample]) -> Finding:
    last = samples[-QUEUED_SAMPLES:]
    if len(last) < QUEUED_SAMPLES or not all(
        one.max_num_seqs is not None and one.waiting > one.max_num_seqs for one in last
    ):
        return None
    places = last[-1].max_num_seqs or 0
    return (
        f"{last[-1].waiting} requests wait in the engine, more than the {places} it can run",
        {"waiting": last[-1].waiting, "samples": QUEUED_SAMPLES},
        {"waiting": places},
        "cap the worker at max_num_seqs in the policy, so that requests wait in the gateway, or add an instance",
    )


def _kv_low(samples: Sequence[Sample]) -> Finding:
    usage = _known([one.kv_usage for one in samples if one.running])
    if not usage or max(usage) >= LOW_KV:
        return None
    return (
        f"never more than {max(usage):.0%} of the KV cache is used",
        {"kv_usage_most": max(usage)},
        {"kv_usage": LOW_KV},
        "give it less memory (memory_share or kv_bytes) and let another instance have it, or raise max_num_seqs",
    )


def _kv_full(samples: Sequence[Sample]) -> Finding:
    usage = _known([one.kv_usage for one in samples])
    if not usage or min(usage) <= FULL_KV:
        return None
    return (
        f"the KV cache is never less than {min(usage):.0%} full",
        {"kv_usage_least": min(usage)},
        {"kv_usage": FULL_KV},
        "lower max_num_seqs to what the KV cache holds, give it more memory, or use an fp8 KV cache",
    )


def _cold(samples: Sequence[Sample]) -> Finding:
    if len(samples) < QUEUED_SAMPLES:
        return None
    last = samples[-1]
    ttft, busy = last.ttft_p95_s, last.utilization
    if ttft is None or busy is None or ttft <= SLOW_TTFT_S or busy >= IDLE_UTILIZATION or last.waiting:
        return None
    return (
        f"the first token takes {ttft:.1f} s while the device computes {busy:.0%} of the time and nobody waits",
        {"ttft_p95_s": ttft, "utilization": busy},
        {"ttft_p95_s": SLOW_TTFT_S, "utilization": IDLE_UTILIZATION},
        "warm it up: give the pool's system prompts as warmup_prompts, and check that graphs are captured at start",
    )


def _preemptions(samples: Sequence[Sample]) -> Finding:
    more = samples[-1].preemptions - samples[0].preemptions if samples else 0
    if more <= 0:
        return None
    seconds = samples[-1].at - samples[0].at
    return (
        f"{more} requests lost their KV and were computed anew in {seconds:.0f} s",
        {"preemptions": more, "seconds": seconds},
        {"preemptions": 0},
        "lower max_num_seqs or admission.kv_watermark, or give it more KV memory",
    )


def _unused(samples: Sequence[Sample]) -> Finding:
    if len(samples) < KEPT:
        return None
    most = max(one.running for one in samples)
    places = samples[-1].max_num_seqs
    if places is None or most > UNUSED_SHARE * places:
        return None
    minutes = (samples[-1].at - samples[0].at) / 60
    return (
        f"never ran more than {most} of {places} requests in {minutes:.0f} minutes",
        {"running_most": most},
        {"running": UNUSED_SHARE * places},
        "drain and stop it, or give its pool more of the traffic (budget range, may_borrow)",
    )


RULES: Final[Mapping[str, Callable[[Sequence[Sample]], Finding]]] = {
    "device_idle": _idle,
    "device_busy": _busy,
    "memory_full_queue_grows": _memory_and_queue,
    "engine_queue_long": _queue,
    "kv_always_low": _kv_low,
    "kv_always_full": _kv_full,
    "not_warmed": _cold,
    "preemptions": _preemptions,
    "unused": _unused,
}
"""Name of a rule -> the rule."""
