"""What a gateway adds to answers and what open streams take: the rest of what `headrace loadtest compare` prints.

Times are those of the same client with the engine alone, taken off: the least of the rounds, because whatever else the
machine does makes them longer.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from loadtest.compare import Bench, CompareError, Contender
from loadtest.timed_client import Visit

Show = Callable[[str, float, str, bool], None]

ALONE = "the engine alone"
WAITS = {
    "latency added at 500 requests/s, p50": 0.2,
    "latency added at 500 requests/s, p99": 0.6,
    "time to first token added, 200 streams, p50": 0.4,
}
"""What is waited for, and how much longer than at the engine it may take, in milliseconds."""

PER_S = 500.0
HELD = 2_000
MANY = 10_000
SPARE_FILES = 600
MIB = 1 << 20


def run_streams(show: Show, say: Callable[[str], None], *, seconds: float, rounds: int) -> bool:
    """Measure; whether ours kept to the bounds."""
    kept = True

    def told(name: str, value: float, unit: str, most: float | None) -> None:
        nonlocal kept
        ok = most is None or value <= most
        kept = kept and ok
        show(name, value, unit if most is None else f"{unit}; at most {most:g}", ok)

    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-streams-")))
        bench = Bench(stack, home)
        nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
        contenders = {"headrace": bench.headrace()} | ({"nginx": bench.nginx(nginx)} if nginx else {})
        engine = Contender(0, bench.engine)
        least: dict[tuple[str, str], float] = {}
        for _ in range(rounds):
            for name, one in {ALONE: engine, **contenders}.items():
                pace = _visit(bench, one, seconds, per_s=PER_S)
                first = _visit(bench, one, seconds, streams=200, opening_s=seconds)
                for what, value in zip(WAITS, (pace["p50_ms"], pace["p99_ms"], first["p50_ms"]), strict=True):
                    least[name, what] = min(value, least.get((name, what), value))
        for name in contenders:
            for what, most in WAITS.items():
                added = least[name, what] - least[ALONE, what]
                told(f"{name}: {what}", added, "ms", most if name == "headrace" else None)
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-streams-")))
        bench = Bench(stack, home, interval_s=1.0)
        one = bench.headrace()
        held = _visit(bench, one, seconds, streams=HELD, opening_s=2 * seconds)
        told("headrace: resident with 2,000 open streams", held["resident_bytes"] / MIB, "MiB", 90.0)
        grown = (held["resident_bytes"] - held["before_bytes"]) / HELD / 1024
        told("headrace: memory of an open stream", grown, "KiB", 12.0)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        many = min(MANY, (files - SPARE_FILES) // 2)
        if many < MANY:
            say(f"this process may open {files} files: {many} streams instead of {MANY} (ulimit -n)")
        found = _visit(bench, one, seconds, streams=many, opening_s=10 * seconds)
        told(f"headrace: errors with {many:,} streams of 1 chunk/s", found["faults"], "", 0.0)
        told(f"headrace: share of the chunks of {many:,} streams", found["chunks_per_s"] / many, "of 1/s", None)
    return kept


def _visit(bench: Bench, to: Contender, seconds: float, **load: float) -> dict[str, float]:
    visit = Visit(to.port, to.pid, to.key, seconds=seconds, **load)  # type: ignore[arg-type]
    client = bench.client("loadtest.timed_client", orjson.dumps(asdict(visit)).decode())
    said, _ = client.communicate(timeout=60.0 + 20 * (seconds + visit.opening_s))
    if client.returncode:
        raise CompareError(f"the client of {visit.streams or visit.per_s:g} at port {to.port} failed")
    found: dict[str, float] = orjson.loads(said)
    return found
