"""Recorded traffic as it is to be sent: a part of a trace, at its own pace, a multiple of it, or a rate. Pure but for
reading files.

Beside the traces that come with Headrace and CSV files like them, it reads JSON lines as Mooncake's tools write them:
`{"timestamp": milliseconds, "input_length": …, "output_length": …, "hash_ids": […]}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from loadtest.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from loadtest.workload import MAX_ROWS, MAX_TOKENS, SESSION_CHARS, Workload, WorkloadError, from_start, recorded

MAX_REQUESTS: Final = 200_000
"""Of one replay, and of one step of a ramp: each is remembered to its end."""

MAX_LINE_CHARS: Final = 1 << 20
DEFAULT_SECONDS: Final = 60.0
LEAST_S: Final = 0.001  # of requests that all come at once


def read_trace(name: str) -> Workload:
    """A trace by name or a file, with all that was recorded. Raises WorkloadError."""
    path = Path(name)
    if path.suffix in {".jsonl", ".ndjson"} and path.is_file():
        return Workload(path.name, tuple(_json_lines(path)))
    return recorded(name)


def _json_lines(path: Path) -> list[TraceRequest]:
    rows: list[TraceRequest] = []
    try:
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(MAX_LINE_CHARS):
                number += 1
                if number > MAX_ROWS:
                    raise WorkloadError(f"{path}: has more than {MAX_ROWS} lines")
                if len(line) == MAX_LINE_CHARS:
                    raise WorkloadError(f"{path}: line {number}: is longer than {MAX_LINE_CHARS} characters")
                if line.strip():
                    rows.append(_json_request(path, number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    return from_start(path, rows)


def _json_request(path: Path, number: int, line: str) -> TraceRequest:
    try:
        row: dict[str, Any] = orjson.loads(line)
        arrival, prompt, output = float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"])
        hashes = tuple(map(int, row.get("hash_ids") or ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = "needs numbers for timestamp, input_length, output_length, and in hash_ids if it has any"
        raise WorkloadError(f"{path}: line {number}: {what} ({type(error).__name__}: {error})") from error
    if not (0 <= arrival < 1e9 and 1 <= prompt <= MAX_TOKENS and 1 <= output <= MAX_TOKENS):
        raise WorkloadError(
            f"{path}: line {number}: timestamp from 0, lengths from 1 to {MAX_TOKENS}, got {line[:120]!r}"
        )
    most = prompt // MOONCAKE_BLOCK_TOKENS + 1
    if len(hashes) > most:
        raise WorkloadError(
            f"{path}: line {number}: at most {most} hash_ids for a prompt of {prompt} tokens, got {len(hashes)}"
        )
    session = str(row.get("session_id") or "")[:SESSION_CHARS]
    return TraceRequest(arrival, prompt, output, hashes=hashes, session=session)


def laps(trace: Workload, skip_s: float) -> Iterator[TraceRequest]:
    """The trace from `skip_s` on, at times counted from there, and again from its beginning, for ever."""
    requests = trace.recorded
    span = requests[-1].arrival_s
    if not 0 <= skip_s < span:
        raise WorkloadError(f"--skip {skip_s:g}: {trace.name} is {span:.0f} s long; leave out less of it")
    # One mean distance between the last request and the first one again.
    lap_s = span + span / (len(requests) - 1)
    shift = -skip_s
    while True:
        for request in requests:
            if request.arrival_s + shift >= 0:
                yield replace(request, arrival_s=request.arrival_s + shift)
        shift += lap_s


def at_scale(
    trace: Workload, scale: float, *, seconds: float | None, skip_s: float = 0.0, limit: int | None = None
) -> tuple[float, list[TraceRequest]]:
    """How long it takes, and the requests of `seconds` at `scale` times the recorded pace.

    A trace that is too short goes on at its beginning, where `seconds` are said; else it ends.
    """
    if seconds is None:
        left = (trace.recorded[-1].arrival_s - skip_s) / scale
        seconds = min(DEFAULT_SECONDS, max(left, 0.0) + 1e-6)
    picked: list[TraceRequest] = []
    for request in laps(trace, skip_s):
        arrival = request.arrival_s / scale
        if arrival >= seconds:
            break
        if len(picked) == limit:
            return max(arrival, LEAST_S), picked
        picked.append(replace(request, arrival_s=arrival))
        _check(len(picked), f"{seconds:g} s at {scale:g} times the rate of {trace.name}")
    if not picked:
        raise WorkloadError(f"{trace.name} has no request in {seconds * scale:.3g} s from its second {skip_s:g} on")
    return seconds, picked


def at_rate(
    trace: Workload, per_s: float, *, seconds: float, skip_s: float = 0.0, limit: int | None = None
) -> tuple[float, list[TraceRequest]]:
    """How long it takes, and the requests of `seconds`, or `limit` of them, at exactly this mean rate.

    They are the first of the trace, their distances in the recorded proportions. A higher rate has the same, and more.
    """
    count = max(1, round(per_s * seconds))
    if limit is not None and limit < count:
        count, seconds = limit, limit / per_s
    _check(count, f"{seconds:g} s at {per_s:g} requests/s")
    found = list(islice(laps(trace, skip_s), count + 1))
    start, end = found[0].arrival_s, found[-1].arrival_s
    # Recorded at one moment: then they come at even distances.
    factor = seconds / (end - start) if end > start else 0.0
    picked = [
        replace(one, arrival_s=(one.arrival_s - start) * factor if factor else place * seconds / count)
        for place, one in enumerate(found[:count])
    ]
    return seconds, picked


def _check(count: int, what: str) -> None:
    if count > MAX_REQUESTS:
        raise WorkloadError(f"{what} are more than {MAX_REQUESTS} requests; ask for fewer seconds or a lower rate")
