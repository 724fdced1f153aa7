"""Listening sockets, taken before anything else starts, so that a taken port leaves nothing half-started."""

from __future__ import annotations

import errno
import os
import socket
import stat
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
    if address.is_unix:
        return _listen_unix(address)
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


def _listen_unix(address: Address) -> socket.socket:
    """A socket file that its owner and group may use; one that nobody listens at any more is replaced."""
    path = address.host
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o660)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        taken = ": somebody listens there" if error.errno == errno.EADDRINUSE else f": {error.strerror or error}"
        raise ListenError(f"cannot listen on {address}{taken}") from error
    sock.setblocking(False)
    return sock


def _is_left_over(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except FileNotFoundError:
        return False
    except ConnectionRefusedError:
        return True
    return False


def listen_beside(other: socket.socket) -> socket.socket:
    """One more socket at the address of one that `listen_shared` has made. Raises `ListenError`."""
    where = other.getsockname()
    sock = socket.socket(other.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen on {where[0]}:{where[1]} once more: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


def listen_shared(address: Address, count: int) -> list[socket.socket]:
    """So many listening sockets at one address, over which the kernel spreads connections evenly. Raises `ListenError`.

    Where it cannot (only Linux does), they are one socket, several times. Nobody else's port is shared: it has to be
    free first.
    """
    first = listen(address)
    if sys.platform != "linux" or address.is_unix:
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


def url_of(sock: socket.socket, *, tls: bool = False) -> str:
    """Where a listener is reached from this host: the real port, and a host that can be called; or `unix:/path`."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    scheme = "https" if tls else "http"
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
