"""What a gateway adds to answers and what open streams take: the rest of what `headrace loadtest compare` prints.

Times are those of the same client with the engine alone, taken off: the least of the rounds, because whatever else the
machine does makes them longer.
"""

from __future__ import annotations

import math
import resource
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from loadtest.compare import OURS, Bench, CompareError, Contender
from loadtest.peers import PEERS, find
from loadtest.raw_client import Load, question
from loadtest.timed_client import Visit, resident_bytes

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
UNREAD = 8
SPARE_FILES = 600
MIB = 1 << 20


def run_streams(
    show: Show, say: Callable[[str], None], *, seconds: float, rounds: int, commands: Mapping[str, str]
) -> bool:
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
        nginx = next(peer for peer in PEERS if peer.name == "nginx")
        command = find(nginx, commands)
        contenders = {OURS: bench.headrace()} | ({nginx.name: bench.peer(nginx, command)} if command else {})
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
        told("headrace: a client that does not read an endless stream", _unread(one, seconds) / MIB, "MiB", 1.0)
    processes = _processes_for(MANY)
    if processes > 1:
        say(f"a process may open {_files()} files here (ulimit -n), two a stream: {processes} share the one processor")
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-streams-")))
        bench = Bench(stack, home, interval_s=1.0)
        one = bench.headrace(*(("none", 1) if processes == 1 else ("embedded", processes)))
        found = _visit(bench, one, seconds, streams=MANY, opening_s=10 * seconds)
        told(f"headrace: errors with {MANY:,} streams of 1 chunk/s", found["faults"], "", 0.0)
        told(f"headrace: share of the chunks of {MANY:,} streams", found["chunks_per_s"] / MANY, "of 1/s", None)
    return kept


def _unread(gateway: Contender, seconds: float) -> float:
    """How many bytes the process grows by for each client that does not read. The first ones make what is kept."""
    request = question(Load(gateway.port, gateway.pid, 1, 300, True, 0.0, 0.0, gateway.key), max_tokens=9)
    sizes = []
    with ExitStack() as stack:
        for _ in range(2):
            for _ in range(UNREAD):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                client.connect(("127.0.0.1", gateway.port))
                client.sendall(request)
            time.sleep(seconds)  # what nobody reads fills every buffer on its way
            sizes.append(resident_bytes(gateway.pid))
    return (sizes[1] - sizes[0]) / UNREAD


def _files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _processes_for(streams: int) -> int:
    """Gateway processes that have the descriptors for so many streams, connections spread a little unevenly."""
    needed = 2 * streams + SPARE_FILES
    return 1 if needed <= _files() else math.ceil(1.2 * needed / _files())


def _visit(bench: Bench, to: Contender, seconds: float, **load: float) -> dict[str, float]:
    visit = Visit(to.port, to.pid, to.key, seconds=seconds, **load)  # type: ignore[arg-type]
    client = bench.client("loadtest.timed_client", orjson.dumps(asdict(visit)).decode())
    said, _ = client.communicate(timeout=60.0 + 20 * (seconds + visit.opening_s))
    if client.returncode:
        raise CompareError(f"the client of {visit.streams or visit.per_s:g} at port {to.port} failed")
    found: dict[str, float] = orjson.loads(said)
    return found
