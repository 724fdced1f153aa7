"""Recorded traffic: load, cut windows, change the rate, jitter, merge. Pure but for reading our own data files.

Origin and licence of each file: `data/README.md`.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge as merge_sorted
from importlib.resources import files
from random import Random
from typing import Final

MOONCAKE_BLOCK_TOKENS: Final = 512
MOONCAKE_QUANTUM_S: Final = 3.0  # its time stamps are rounded to about this


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    hashes: tuple[int, ...] = ()  # of whole prefix blocks of MOONCAKE_BLOCK_TOKENS, each covering all before it
    source: str = ""
    session: str = ""  # whose turn of a conversation it is, where the recording says so

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """Tokens of the prompt up to the end of the block of each hash."""
        return tuple(MOONCAKE_BLOCK_TOKENS * place for place in range(1, len(self.hashes) + 1))


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """A request with what a real engine did to it, in seconds."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    queue_s: float
    ttft_s: float
    e2e_s: float
    tpot_s: float


def _rows(name: str) -> Iterator[dict[str, str]]:
    path = files("loadtest") / "data" / f"{name}.csv.gz"
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="ascii", newline="") as text:
        yield from csv.DictReader(text)


def block_ids(runs: str) -> tuple[int, ...]:
    """Block ids from their run coding: `0 14-16` is 0, 14, 15, 16."""
    ids: list[int] = []
    for run in runs.split():
        first, _, last = run.partition("-")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


TRACES: Final = ("azure2023_conv", "azure2023_code", "mooncake_conversation", "servegen_m-mid_sampled")
MEASURED: Final = {
    "rtx4090": ("vllm019_rtx4090_llama31-8b_requests", "llama3-8b/rtx4090"),
    "rtxpro6000": ("vllm019_rtxpro6000_llama31-8b_requests", "llama3-8b/rtxpro6000"),
}


def load(name: str) -> list[TraceRequest]:
    """A trace of `TRACES`, by arrival. Raises ValueError for another name."""
    if name not in TRACES:
        raise ValueError(f"no trace {name!r}; there are {', '.join(TRACES)}")
    return [
        TraceRequest(
            float(row["arrival_s"]),
            max(1, int(row["input_tokens"])),
            max(1, int(row["output_tokens"])),
            tenant=row.get("client_id") or "default",
            hashes=block_ids(row.get("hash_runs_blk512") or ""),
            source=name,
        )
        for row in _rows(name)
    ]


def load_measured(name: str) -> list[MeasuredRequest]:
    """What a real engine did, by a key of `MEASURED`."""
    return [
        MeasuredRequest(
            float(row["arrival_s"]),
            int(row["input_tokens"]),
            int(row["output_tokens"]),
            float(row["queue_s"]),
            float(row["ttft_s"]),
            float(row["e2e_s"]),
            float(row["tpot_ms"]) / 1000,
        )
        for row in _rows(MEASURED[name][0])
    ]


def rate_per_s(trace: list[TraceRequest]) -> float:
    """Mean arrivals per second from the first to the last request."""
    span = trace[-1].arrival_s - trace[0].arrival_s
    return (len(trace) - 1) / span


def at_rate(trace: list[TraceRequest], per_s: float) -> list[TraceRequest]:
    """The same trace on a stretched or compressed time axis, starting at 0, with a mean rate of `per_s`."""
    factor = rate_per_s(trace) / per_s
    start = trace[0].arrival_s
    return [replace(request, arrival_s=(request.arrival_s - start) * factor) for request in trace]


def jitter(trace: list[TraceRequest], width_s: float, rng: Random) -> list[TraceRequest]:
    """Each arrival later by uniform(0, `width_s`): undoes the rounding of time stamps."""
    moved = [replace(request, arrival_s=request.arrival_s + width_s * rng.random()) for request in trace]
    return sorted(moved, key=lambda request: request.arrival_s)


def window(trace: list[TraceRequest], start_s: float, length_s: float) -> list[TraceRequest]:
    """The requests of `start_s` … `start_s + length_s`, times counted from the window's start.

    A window that goes over the trace's end continues at its beginning.
    """
    span = trace[-1].arrival_s
    picked: list[TraceRequest] = []
    for lap in range(int((start_s + length_s) // span) + 1):
        shift = lap * span - start_s
        picked.extend(
            replace(request, arrival_s=request.arrival_s + shift)
            for request in trace
            if 0 <= request.arrival_s + shift < length_s
        )
    return picked


def merge(*traces: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Several traces on one time axis, by arrival."""
    return list(merge_sorted(*traces, key=lambda request: request.arrival_s))
