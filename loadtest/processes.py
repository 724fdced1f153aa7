"""What a second gateway process brings on this machine: `headrace loadtest processes`.

The same load against `processes: 1` and `processes: 2`, in turn, in one run: requests a second with every processor in
use, how evenly connections spread, and what a request costs in processor time, which must not grow with the number of
processes if throughput is to grow with processors. Engine and clients share the processors with the gateway: on a
machine with two, the second process has only what they leave. Linux only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import orjson

from loadtest.compare import START_S, Bench, CompareError, Contender, Show
from loadtest.raw_client import Load, cpu_s

COUNTS: Final = (1, 2)
CLIENTS: Final = 2
CONNECTIONS: Final = 128
SETTLE_S: Final = 5.0
BODY_BYTES: Final = 300
DEAREST: Final = 1.25
"""How much more a request may cost in two processes: they lease slots six times a second and share a cache."""

MOST_OF_ONE: Final = 0.65
"""The most of two processes' work that one may have: connections are spread by a hash of their addresses."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: requests a second, processor seconds for a thousand, and the busiest process's part."""

    per_s: float
    cpu_s: float
    most: float


def run_processes(show: Show, say: Callable[[str], None], *, seconds: float, rounds: int) -> bool:
    """Measure; the best of the rounds counts. Whether all bounds were kept."""
    busy = os.getloadavg()[0]
    if busy > 0.5 * len(os.sched_getaffinity(0)):
        say(f"the machine is busy (load {busy:.1f}): a second process finds no free processor, rates say little")
    found: dict[int, list[Run]] = {count: [] for count in COUNTS}
    for _ in range(rounds):
        for count in COUNTS:
            with ExitStack() as stack:
                home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-processes-")))
                found[count].append(_measure(stack, home, count, seconds, SETTLE_S))
                say(f"{count} process(es): {found[count][-1]}")
    one, two = (max(runs, key=lambda run: run.per_s) for runs in found.values())
    cost = min(run.cpu_s for run in found[2]) / min(run.cpu_s for run in found[1])
    spread = min(run.most for run in found[2])
    processors = len(os.sched_getaffinity(0))
    show("requests a second, 1 process", one.per_s, f"1/s, {processors} processors for all", True)
    show("requests a second, 2 processes", two.per_s, "1/s", True)
    grows = two.per_s / one.per_s
    show("2 processes: times the requests of 1", grows, "times; more than 1", grows > 1.0)
    show("2 processes: times the processor time a request", cost, f"times; at most {DEAREST}", cost <= DEAREST)
    show("2 processes: part of the work that the busier has", spread, f"at most {MOST_OF_ONE}", spread <= MOST_OF_ONE)
    return grows > 1.0 and cost <= DEAREST and spread <= MOST_OF_ONE


def _measure(stack: ExitStack, home: Path, count: int, seconds: float, settle_s: float = 0.0) -> Run:
    bench = Bench(stack, home, pinned=False)
    gateway = bench.headrace(redis="embedded", processes=count)
    pids = [gateway.pid] if count == 1 else _children(gateway.pid)
    if len(pids) != count:
        raise CompareError(f"{len(pids)} processes run instead of {count}")
    time.sleep(settle_s)  # slots are shared, code is warm
    clients = [_client(stack, gateway, seconds) for _ in range(CLIENTS)]
    time.sleep(1.0 + seconds / 4)  # all connections are there
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(seconds / 2)  # the time that is measured
    spent, took = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)], time.monotonic() - began
    said = [orjson.loads(client.communicate(timeout=START_S + 3 * seconds)[0]) for client in clients]
    if any(each["refused"] or each["lost"] or not each["answers"] for each in said):
        raise CompareError(f"{count} process(es): {said}")
    per_s = sum(each["answers"] / each["seconds"] for each in said)
    return Run(round(per_s, 1), round(sum(spent) / took / per_s * 1000, 4), round(max(spent) / sum(spent), 3))


def _client(stack: ExitStack, gateway: Contender, seconds: float) -> subprocess.Popen[bytes]:
    load = Load(gateway.port, gateway.pid, CONNECTIONS // CLIENTS, BODY_BYTES, False, 1.0, seconds, gateway.key)
    command = [sys.executable, "-m", "loadtest.raw_client", orjson.dumps(asdict(load)).decode()]
    return stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))


def _children(supervisor: int) -> list[int]:
    """The gateway processes under a supervisor."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # ended meanwhile
            if parent == str(supervisor) and b"supervision.child" in command:
                found.append(int(entry.name))
    return found
