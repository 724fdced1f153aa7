"""Listening sockets, taken before anything else starts, so that a taken port leaves nothing half-started."""

from __future__ import annotations

import errno
import socket
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


def url_of(sock: socket.socket) -> str:
    """Where a listener is reached from this host: the real port, and a host that can be called."""
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
