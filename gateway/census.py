"""A gateway that tells what it holds: `python -m gateway.census SETTINGS`, for `headrace loadtest soak`.

It serves as `headrace serve` does. Each line on its standard input is answered by one JSON line: tasks, descriptors,
Python objects and resident memory now. It ends when the input does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import orjson

import gateway.traffic
from gateway.app import Addresses, serve
from gateway.settings import load_settings

RECORDED = 2048
"""Requests that the record of traffic keeps here: its bound is to be reached before anything is compared."""


def counts(tasks: int) -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    return {
        "tasks": tasks,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


def _say(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


async def main(path: str) -> int:
    """Serve until the standard input ends."""
    gateway.traffic.MAX_REQUESTS = RECORDED  # type: ignore[misc]
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def read() -> None:
        said = os.read(sys.stdin.fileno(), 4096)
        if not said:
            stop.set()
        for _ in range(said.count(b"\n")):
            _say(counts(len(asyncio.all_tasks())))

    def ready(addresses: Addresses) -> None:
        loop.add_reader(sys.stdin.fileno(), read)
        _say({"data": addresses.data, "admin": addresses.admin})

    return await serve(load_settings(Path(path)), on_ready=ready, stop=stop)


if __name__ == "__main__":
    import uvloop

    raise SystemExit(uvloop.run(main(sys.argv[1])))
