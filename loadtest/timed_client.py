"""A load generator that looks at the clock: `python -m loadtest.timed_client '{"port": …}'`.

Either requests at an even pace over open connections, each timed, or streams that are opened one after the other and
then read for a while. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import cast

import orjson

from loadtest.raw_client import Load, question

CONNECTIONS = 32
EVENT = b"\ndata: "


@dataclass(frozen=True, slots=True)
class Visit:
    """What to do. `watch`: the process whose memory is looked at; 0: none."""

    port: int
    watch: int
    key: str = ""
    per_s: float = 0.0  # requests a second for `seconds`; 0: streams instead
    streams: int = 0
    opening_s: float = 0.0  # for all streams
    seconds: float = 1.0


@dataclass(slots=True)
class Seen:
    """What came of it so far."""

    times_s: list[float] = field(default_factory=list)
    chunks: int = 0
    faults: int = 0
    over: bool = False


class Asker(asyncio.Protocol):
    """One connection; asks when told to, and times what comes first."""

    def __init__(self, request: bytes, seen: Seen, free: list[Asker]) -> None:
        self._request = request
        self._seen = seen
        self._free = free
        self._asked_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready."""
        self.transport = cast(asyncio.Transport, transport)
        self._free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody closes but us, at the end."""
        if not self._seen.over:
            self._seen.faults += 1

    def ask(self) -> None:
        """Ask, from now on timed."""
        self._asked_at = perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """The beginning of an answer, and all of a short one; or more of a stream."""
        if self._asked_at:
            self._seen.times_s.append(perf_counter() - self._asked_at)
            self._asked_at = 0.0
            self._seen.faults += data[9:12] != b"200"
            self._free.append(self)
        self._seen.chunks += data.count(EVENT)


def resident_bytes(pid: int) -> int:
    """What a process has in memory (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


async def run(visit: Visit) -> dict[str, float]:
    """Do it; what was seen."""
    loop = asyncio.get_running_loop()
    request = question(Load(visit.port, 0, 0, 300, not visit.per_s, 0.0, 0.0, visit.key))
    seen, free = Seen(), list[Asker]()
    before = resident_bytes(visit.watch) if visit.watch else 0
    count = CONNECTIONS if visit.per_s else visit.streams
    all_askers: list[Asker] = []
    began = loop.time()
    for at in range(count):
        _, asker = await loop.create_connection(lambda: Asker(request, seen, free), "127.0.0.1", visit.port)
        all_askers.append(asker)
        if not visit.per_s:
            asker.ask()
            await asyncio.sleep(max(began + visit.opening_s * (at + 1) / count - loop.time(), 0.0))
    began, late = loop.time(), 0
    if visit.per_s:
        for at in range(int(visit.per_s * visit.seconds)):
            await asyncio.sleep(max(began + at / visit.per_s - loop.time(), 0.0))
            if free:
                free.pop(0).ask()
            else:
                late += 1
    else:
        seen.chunks = 0
        await asyncio.sleep(visit.seconds)
    chunks, faults = seen.chunks, seen.faults
    times = sorted(seen.times_s) or [0.0]
    after = resident_bytes(visit.watch) if visit.watch else 0
    seen.over = True
    for asker in all_askers:
        asker.transport.abort()
    return {
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[len(times) * 99 // 100],
        "answers": len(seen.times_s),
        "chunks_per_s": chunks / (loop.time() - began),
        "faults": faults + late,
        "before_bytes": before,
        "resident_bytes": after,
    }


if __name__ == "__main__":
    import uvloop

    sys.stdout.write(orjson.dumps(uvloop.run(run(Visit(**orjson.loads(sys.argv[1]))))).decode() + "\n")
