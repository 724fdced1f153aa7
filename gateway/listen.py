"""Listening sockets, taken before anything else starts, so that a taken port leaves nothing half-started."""

from __future__ import annotations

import errno
import socket
import sys
from typing import TYPE_CHECKING

from gateway.ports import port_in_use

if TYPE_CHECKING:
    from gateway.settings_text import Address

BACKLOG = 1024


class ListenError(OSError):
    """A listener cannot be had; the message is one line that names the address, and who holds it."""


def listen(address: Address) -> socket.socket:
    """A listening socket at `address`. Raises `ListenError`."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error
    # `localhost` may have both: the older protocol is the one that every client tries.
    family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(port_in_use(address.host, address.port)) from error
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


def listen_shared(address: Address, count: int) -> list[socket.socket]:
    """So many listening sockets at one address, over which the kernel spreads connections evenly. Raises `ListenError`.

    Where it cannot (only Linux does), they are one socket, several times. Nobody else's port is shared: it has to be
    free first.
    """
    first = listen(address)
    if sys.platform != "linux":
        return [first, *(first.dup() for _ in range(count - 1))]
    where, family = first.getsockname(), first.family
    first.close()
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket(family, socket.SOCK_STREAM)
            found.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in found:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(port_in_use(address.host, where[1])) from error
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error
    return found


def url_of(sock: socket.socket) -> str:
    """Where a listener is reached from this host: the real port, and a host that can be called."""
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
