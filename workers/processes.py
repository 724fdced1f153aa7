"""Processes of this host as Linux' /proc tells of them, and ending exactly the one that was meant.

A process id alone names nobody: ids are used again. Its start time beside it, within one boot and one namespace of
ids, names one process for ever. Elsewhere than on Linux nothing is found, and nothing is ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
COMMAND_LENGTH = 120  # characters of a command line worth showing


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    session: int  # id of the process that made it, which may have ended
    start: int  # clock ticks from boot to its start
    zombie: bool


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process with this id; None when there is none. Field numbers: proc_pid_stat(5)."""
    try:
        raw = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = raw.rpartition(b")")[2].split()  # the name before it may hold anything
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X"))


def processes(proc: Path = PROC) -> Iterator[Process]:
    """Everybody, zombies aside."""
    try:
        names = [entry for entry in os.listdir(proc) if entry.isdecimal()]
    except OSError:
        return
    for name in names:
        process = read_process(int(name), proc)
        if process is not None and not process.zombie:
            yield process


def boot(proc: Path = PROC) -> str:
    """Names this boot and this namespace of process ids; empty where the system does not tell."""
    try:
        identity = (proc / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(proc / "self/ns/pid")
    except OSError:
        return ""
    return f"{identity} {namespace}"


def command_line(pid: int, proc: Path = PROC) -> str:
    """What was started, shortened to one line; empty when it ended meanwhile."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    text = " ".join(raw.decode("utf-8", "replace").replace("\0", " ").split())
    return text if len(text) <= COMMAND_LENGTH else text[: COMMAND_LENGTH - 1] + "…"


def end_process(process: Process, number: signal.Signals = signal.SIGKILL) -> bool:
    """Send a signal to this very process, never to one that got its id later. False: it ended, or is not ours."""
    try:
        handle = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start != process.start:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True
