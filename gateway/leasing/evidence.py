"""Which process a gateway is, and whether another one's process still exists. Certain answers, or none.

Two processes can judge each other where they share a boot of one kernel and a process namespace: then a process id and
the time at which it began name exactly one process.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity() -> str:
    """This process: `boot/namespace/pid/began`; empty where the kernel does not tell."""
    place, began = _place(), _began(os.getpid())
    return f"{place}/{os.getpid()}/{began}" if place and began else ""


def lives(who: str) -> bool | None:
    """Whether the process of that identity exists; None: it is not ours to know."""
    boot, _, rest = who.rpartition("/")
    boot, _, pid = boot.rpartition("/")
    if not boot or boot != _place() or not pid.isascii() or not pid.isdigit() or len(pid) > 9:
        return None
    return _began(int(pid)) == rest


@cache
def _place() -> str:
    try:
        boot = BOOT.read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}/{namespace}"


def _began(pid: int) -> str:
    """When a process began, in ticks since boot; empty when there is none, or it has ended and waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may contain anything.
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return ""
    return fields[19].decode()
