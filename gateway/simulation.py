"""`policy simulate` inside of the gateway: the recorded traffic through two policies, in a process of its own.

The simulation lives in `loadtest`, which nothing imports, and takes a core for seconds: a child computes it, at low
priority, one at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.traffic import HEADER

if TYPE_CHECKING:
    from gateway.scheduling.model import WorkerSpec

TIMEOUT_S = 300.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_TOLD_BYTES = 2000
ARGV = (sys.executable, "-P", "-m", "loadtest.what_if")
"""`-P`: a directory that we happen to be in must not hide a package."""


class SimulationError(Exception):
    """There is no result: `code` is busy, no_traffic or simulation_failed, the message one line for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Simulator:
    """Runs simulations, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(
        self, before: str, after: str, workers: Sequence[WorkerSpec], lines: Iterable[bytes]
    ) -> dict[str, Any]:
        """What the recorded `lines` meet under the documents `before` and `after`. Raises `SimulationError`."""
        if self._lock.locked():
            raise SimulationError("busy", "another simulation runs; wait until it has ended")
        async with self._lock:
            head = {"before": before, "after": after, "workers": [spec_view(worker) for worker in workers]}
            data = b"\n".join((orjson.dumps(head), orjson.dumps(HEADER), *lines, b""))
            return _answer(*await _compute(data))


async def _compute(data: bytes) -> tuple[int | None, bytes, bytes]:
    """(exit status, output, complaints) of the child; it is gone when this ends, however it ends."""
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*ARGV, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise SimulationError("simulation_failed", f"cannot start the simulation: {error.strerror}") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, complaints = await child.communicate(data)
    except TimeoutError:
        raise SimulationError("simulation_failed", f"the simulation took longer than {TIMEOUT_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, out[:MAX_ANSWER_BYTES], complaints


def _answer(status: int | None, out: bytes, complaints: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(out)
    except orjson.JSONDecodeError:
        told = complaints[-MAX_TOLD_BYTES:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise SimulationError("simulation_failed", f"the simulation ended with status {status}: {told}") from None
    if status != 0:
        told = str(found.get("error", ""))
        code = "no_traffic" if "no recorded traffic" in told or "no workers" in told else "simulation_failed"
        raise SimulationError(code, told)
    result: dict[str, Any] = found
    return result


def spec_view(spec: WorkerSpec) -> dict[str, Any]:
    """A worker as the simulation reads it."""
    return {
        "id": spec.id,
        "pool": spec.pool,
        "models": sorted(spec.models),
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "kv_tokens": spec.kv_tokens,
        "max_num_batched_tokens": spec.max_num_batched_tokens,
        "preset": spec.preset,
    }
