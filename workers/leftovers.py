"""What an earlier run left behind: found by recorded identity, never by name; shown, and ended on request.

Every started engine has a record in the state directory while it runs: the session its guardian made, that guardian's
start time and the boot. A session's number is not given to anybody else while one of its processes lives, so its
members are known for certain: the leader has the recorded start time, or there is no leader and the boot is the same.
Who left the session is found by a random mark in the environment, unless it has overwritten that.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import orjson

from workers.processes import PROC, Process, boot, command_line, end_process, processes, read_process

MARK = "HEADRACE_INSTANCE_MARK"  # environment variable
MAX_RECORD_BYTES = 64 * 1024
END_S = 10.0
POLL_S = 0.05
KEEP_RECORDS = 4096  # more files than this in the directory are not read


class StateInUse(RuntimeError):  # noqa: N818 - it says what is the case
    """Another supervisor runs with the same state directory."""


@dataclass(frozen=True, slots=True)
class Record:
    """Who one started engine is."""

    instance: str
    session: int  # process id of the guardian
    start: int  # its start time in clock ticks
    boot: str
    mark: str
    ports: tuple[int, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A recorded engine of which something still runs."""

    record: Record
    found: tuple[Process, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """`pid 123 VLLM::EngineCore`, one for each process."""
        return tuple(f"pid {process.pid} {command_line(process.pid)}" for process in self.found)


class StateDir:
    """The supervisor's directory: logs, records of what runs, and a lock against a second supervisor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._records = path / "running"
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make it and lock it until this process ends. Raises `StateInUse` or OSError."""
        for directory in (self.path, self.logs, self._records):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.path / "supervisor.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read(64).strip() or "unknown"
            lock.close()
            raise StateInUse(
                f"state_dir: {self.path} is in use by the supervisor with pid {holder}; stop it, or set another one"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remember(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        path = self._records / f"{record.instance}.{record.session}.json"
        fresh = path.with_suffix(".new")
        fresh.write_bytes(orjson.dumps(asdict(record)))
        fresh.replace(path)

    def forget(self, record: Record) -> None:
        """Nothing of it runs any more."""
        (self._records / f"{record.instance}.{record.session}.json").unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """Every record that can be read; others are taken away, since they can tell nothing."""
        found = []
        for path in sorted(self._records.glob("*.json"))[:KEEP_RECORDS]:
            try:
                found.append(_read(path))
            except (OSError, ValueError, TypeError, KeyError):
                with contextlib.suppress(OSError):
                    path.unlink()
        return found

    def leftovers(self) -> list[Leftover]:
        """Records of which something still runs. Records of what has ended are taken away."""
        everybody = list(processes())
        here = boot()
        found = []
        for record in self.records():
            left = tuple(process for process in everybody if record.boot == here and belongs(process, record))
            if left:
                found.append(Leftover(record, left))
            else:
                self.forget(record)
        return found


def record_of(instance: str, pid: int, mark: str, ports: tuple[int, ...], command: tuple[str, ...]) -> Record:
    """The record of a guardian that has just been started."""
    process = read_process(pid)
    return Record(instance, pid, 0 if process is None else process.start, boot(), mark, ports, command)


def belongs(process: Process, record: Record, proc: Path = PROC) -> bool:
    """Whether this process is of the recorded engine. The caller has compared the boots."""
    # No guardian has session 0: it is the kernel's, and everybody's who entered this container from outside.
    if process.session == record.session > 0:
        leader = read_process(record.session, proc)
        if leader is None or leader.start == record.start:
            return process.start >= record.start
    return bool(record.mark) and _has_mark(process.pid, record.mark, proc)


async def clean(leftover: Leftover, state: StateDir) -> bool:
    """End all of it and wait until it is gone; then its record goes too. False: something survives, or is not ours."""
    deadline = time.monotonic() + END_S
    while left := [process for process in processes() if belongs(process, leftover.record)]:
        if time.monotonic() > deadline:
            return False
        for process in left:
            end_process(process)
        await asyncio.sleep(POLL_S)
    state.forget(leftover.record)
    return True


def _has_mark(pid: int, mark: str, proc: Path) -> bool:
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return False  # another user's, or ended
    return f"{MARK}={mark}".encode() in environment.split(b"\0")


def _read(path: Path) -> Record:
    with path.open("rb") as file:
        document = orjson.loads(file.read(MAX_RECORD_BYTES))
    return Record(
        instance=str(document["instance"]),
        session=int(document["session"]),
        start=int(document["start"]),
        boot=str(document["boot"]),
        mark=str(document["mark"]),
        ports=tuple(int(port) for port in document["ports"]),
        command=tuple(str(word) for word in document["command"]),
    )
