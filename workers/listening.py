"""Which TCP ports of this host are taken now, and by whom, as Linux' /proc tells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.portplan import Listening
from workers.processes import PROC, command_line

_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


def listening(ports: Iterable[tuple[int, int]], proc: Path = PROC, *, ours: Iterable[int] = ()) -> list[Listening]:
    """Who listens on any of these ranges (first, last), on whatever address; `ours` are ports that do not count.

    A port bound on one address only is told as taken all the same: an engine's parts may want any of them.
    """
    spans, own = list(ports), set(ours)
    sockets = {
        inode: port
        for inode, port in _sockets(proc)
        if port not in own and any(first <= port <= last for first, last in spans)
    }
    if not sockets:
        return []
    owners = _owners(set(sockets), proc)
    taken = {port: owners.get(inode, "an unknown process") for inode, port in sockets.items()}
    return [Listening(port, owner) for port, owner in sorted(taken.items())]


def _sockets(proc: Path) -> list[tuple[str, int]]:
    found = []
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6, or no /proc at all
        for row in rows:
            fields = row.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                found.append((fields[9], int(fields[1].rpartition(":")[2], 16)))
    return found


def _owners(inodes: set[str], proc: Path) -> dict[str, str]:
    """Socket inode -> `pid 123 (python3 -m http.server)`, for processes that we may look into."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, str] = {}
    for name in sorted((entry for entry in os.listdir(proc) if entry.isdecimal()), key=int):
        for link in _links(f"{proc}/{name}/fd"):
            if link in wanted:
                owners.setdefault(wanted[link], f"pid {name} ({command_line(int(name), proc)})")
        if len(owners) == len(wanted):
            break
    return owners


def _links(directory: str) -> Iterator[str]:
    """Where the links of a directory lead, as far as they can be read."""
    try:
        names = os.listdir(directory)
    except OSError:
        return  # ended meanwhile, or another user's
    for name in names:
        try:
            yield os.readlink(f"{directory}/{name}")
        except OSError:
            continue  # closed meanwhile
