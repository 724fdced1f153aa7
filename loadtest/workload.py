"""The traffic that a plan is made for: a recorded trace, a file like one, or percentiles of lengths; at a rate."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from random import Random
from typing import Final

from loadtest.traces import (
    MOONCAKE_BLOCK_TOKENS,
    MOONCAKE_QUANTUM_S,
    TRACES,
    TraceRequest,
    block_ids,
    jitter,
    load,
    rate_per_s,
    window,
)

MAX_ROWS: Final = 200_000
MAX_TOKENS: Final = 10**7
SAMPLES: Final = 4000
SESSION_CHARS: Final = 64
COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
# How far into a trace its sample starts, as a share: beginnings are often quieter than the rest.
START: Final = 0.25


class WorkloadError(ValueError):
    """Traffic that cannot be planned for. The message names the value and what to write."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests over time, from 0 on. `recorded` has a rate of its own; `sample` brings it to the one asked for."""

    name: str
    recorded: tuple[TraceRequest, ...]

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(prompt, output) tokens of at most `SAMPLES` requests, evenly spread over it."""
        every = max(1, len(self.recorded) // SAMPLES)
        return [(one.prompt_tokens, one.output_tokens) for one in self.recorded[::every]]

    @property
    def own_per_s(self) -> float:
        """The rate at which it was recorded."""
        return rate_per_s(list(self.recorded))

    def sample(self, per_s: float, seconds: float) -> list[TraceRequest]:
        """Traffic of `seconds` at a mean rate of `per_s`."""
        slower = self.own_per_s / per_s
        # Cut first: bringing all of a long trace to the rate would cost more than to simulate the part.
        cut = window(list(self.recorded), START * self.recorded[-1].arrival_s, seconds / slower)
        return [replace(one, arrival_s=one.arrival_s * slower) for one in cut]


def named_or_file(name: str) -> Workload:
    """A trace that comes with Headrace, or a CSV file with arrival_s, input_tokens, output_tokens."""
    found = recorded(name)
    # One tenant: who sends is the policy's business, not the plan's.
    plain = (TraceRequest(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in found.recorded)
    return Workload(found.name, tuple(plain))


def recorded(name: str) -> Workload:
    """The same with all that was recorded: prefixes and sessions too."""
    if name in TRACES:
        found = load(name)
        if name.startswith("mooncake"):
            found = jitter(found, MOONCAKE_QUANTUM_S, Random(0))
        start = found[0].arrival_s
        return Workload(name, tuple(replace(one, arrival_s=one.arrival_s - start) for one in found))
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(f"trace: {name!r} is no file and no trace; there are {', '.join(TRACES)}")
    return Workload(path.name, tuple(_read(path)))


def _read(path: Path) -> list[TraceRequest]:
    rows: list[TraceRequest] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                if number > MAX_ROWS + 1:
                    raise WorkloadError(f"{path}: has more than {MAX_ROWS} rows")
                rows.append(_request(path, number, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    return from_start(path, rows)


def from_start(path: Path, rows: list[TraceRequest]) -> list[TraceRequest]:
    """The requests of a file in the order of their times, which then count from the first. Raises `WorkloadError`."""
    rows.sort(key=lambda one: one.arrival_s)
    if len(rows) < 2 or rows[0].arrival_s == rows[-1].arrival_s:
        raise WorkloadError(f"{path}: needs at least two requests at different times")
    start = rows[0].arrival_s
    return [replace(one, arrival_s=one.arrival_s - start) for one in rows]


def _request(path: Path, line: int, row: dict[str, str]) -> TraceRequest:
    try:
        arrival, prompt, output = float(row[COLUMNS[0]]), int(row[COLUMNS[1]]), int(row[COLUMNS[2]])
    except (KeyError, TypeError, ValueError) as error:
        raise WorkloadError(f"{path}: line {line}: needs numbers for {', '.join(COLUMNS)} ({error})") from error
    if not (0 <= arrival < 1e9 and 1 <= prompt <= MAX_TOKENS and 1 <= output <= MAX_TOKENS):
        raise WorkloadError(f"{path}: line {line}: arrival_s from 0, tokens from 1 to {MAX_TOKENS}, got {row}")
    return TraceRequest(
        arrival,
        prompt,
        output,
        hashes=_blocks(path, line, row, prompt),
        session=(row.get("session") or "")[:SESSION_CHARS],
    )


def _blocks(path: Path, line: int, row: dict[str, str], prompt: int) -> tuple[int, ...]:
    """Ids of the prompt's blocks, where the file has them."""
    runs = row.get("hash_runs_blk512") or ""
    most = prompt // MOONCAKE_BLOCK_TOKENS + 1
    try:
        ends = [(int(first), int(last or first)) for first, _, last in (run.partition("-") for run in runs.split())]
        if all(first <= last for first, last in ends) and sum(last - first + 1 for first, last in ends) <= most:
            return block_ids(runs)
    except ValueError:
        pass
    raise WorkloadError(
        f"{path}: line {line}: hash_runs_blk512: must be ids such as 0 14-16, for a prompt of {prompt} tokens at most "
        f"{most} of them; got {runs[:60]!r}"
    )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Lengths of which 50, 90 and 99 of 100 are below these."""

    p50: int
    p90: int
    p99: int

    def at(self, share: float) -> int:
        """The length below which `share` of all are: straight lines between the points on a logarithmic scale.

        Below the median it mirrors what is above; nothing is longer than the 99th.
        """
        points = [(0.01, self.p50**2 / self.p90), (0.5, self.p50), (0.9, self.p90), (0.99, self.p99)]
        share = min(0.99, max(0.01, share))
        for (left, low), (right, high) in pairwise(points):
            if share <= right:
                part = (share - left) / (right - left)
                return max(1, round(exp(log(max(1.0, low)) * (1 - part) + log(max(1.0, high)) * part)))
        raise AssertionError("the last point is at the greatest share")


def parse_percentiles(text: str) -> Percentiles:
    """`P50,P90,P99`. Raises WorkloadError."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and 0 < int(part) <= MAX_TOKENS for part in parts):
        raise WorkloadError(f"must be P50,P90,P99 in tokens, such as 1000,2700,4100; got {text!r}")
    found = Percentiles(*map(int, parts))
    if not found.p50 <= found.p90 <= found.p99:
        raise WorkloadError(f"percentiles must not fall, got {text!r}")
    return found


def from_percentiles(prompt: Percentiles, output: Percentiles, rng: Random, requests: int = SAMPLES) -> Workload:
    """Requests that come at random (Poisson), their prompt and output lengths drawn independently."""
    now = 0.0
    drawn: list[TraceRequest] = []
    for _ in range(requests):
        now += rng.expovariate(1.0)
        drawn.append(TraceRequest(now, prompt.at(rng.random()), output.at(rng.random())))
    return Workload("percentiles", tuple(drawn))


def rate_of_concurrency(lengths: Sequence[tuple[int, int]], in_flight: int, ttft_s: float, tpot_s: float) -> float:
    """Requests a second at which so many are in flight while each just meets its goals (Little's law)."""
    stay_s = sum(ttft_s + output * tpot_s for _, output in lengths) / len(lengths)
    return in_flight / stay_s
