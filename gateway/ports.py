"""TCP ports of this machine: a free one, and who holds a taken one."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
LISTEN = "0A"  # state of a listening socket in /proc/net/tcp
COMMAND_LENGTH = 80  # characters of a command line worth showing


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on at this moment. Somebody else may take it: whoever uses it must be ready to retry."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def port_in_use(host: str, port: int, proc: Path = PROC) -> str:
    """The one line to say when a listener cannot be had: `127.0.0.1:8080 is in use by pid 123 (python3 -m …)`."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    holder = port_holder(host, port, proc)
    if holder.startswith(f"pid {os.getpid()} ("):
        holder = "another listener of this very process: give each a port of its own"
    return f"{shown} is in use by {holder}"


def port_holder(host: str, port: int, proc: Path = PROC) -> str:
    """Who listens on a port, as Linux tells it: `pid 123 (python3 -m http.server)`.

    Says so when it is unknown: another user's process, another container, another system than Linux.
    """
    inodes = {inode for address, inode in listeners(port, proc) if overlaps(host, address)}
    if not inodes:
        return "an unknown process"
    pid = socket_owner(inodes, proc)
    if pid is None:
        return "a process of another user"
    return f"pid {pid} ({command_line(pid, proc)})"


def listeners(port: int, proc: Path = PROC) -> Iterator[tuple[str, str]]:
    """(address, socket inode) of every TCP listener on `port`."""
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6, or no /proc at all
        for row in rows:
            fields = row.split()
            address, _, port_hex = fields[1].rpartition(":")
            if fields[3] == LISTEN and int(port_hex, 16) == port:
                yield decode_address(address), fields[9]


def decode_address(text: str) -> str:
    """An address of /proc/net/tcp: 32-bit words in the byte order of the machine (little endian, as far as we run)."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def overlaps(host: str, listening: str) -> bool:
    """Whether a listener on `listening` keeps us from `host`. A name that is no address may be anything."""
    wildcards = {"0.0.0.0", "::", ""}
    if host in wildcards or listening in wildcards or host == listening:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    held = ipaddress.ip_address(listening)
    return isinstance(held, ipaddress.IPv6Address) and held.ipv4_mapped == address


def socket_owner(inodes: set[str], proc: Path = PROC) -> int | None:
    """The first process that has one of these sockets open; None when we may not look into it."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:
            continue  # ended meanwhile, or not ours to look at
        for descriptor in descriptors:
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue  # closed meanwhile
            if target in wanted:
                return int(process.name)
    return None


def command_line(pid: int, proc: Path = PROC) -> str:
    """What was started, without the program's directory, shortened."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return "ended meanwhile"
    program, *arguments = raw.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    text = " ".join([Path(program).name, *arguments])
    return text if len(text) <= COMMAND_LENGTH else text[: COMMAND_LENGTH - 1] + "…"
