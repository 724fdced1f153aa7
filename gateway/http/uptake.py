"""What the kernel knows of a client's connection and the transport alone does not: bytes not taken, bytes not read."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from typing import Final

WRITE_HIGH_BYTES: Final = 65_536
WRITE_LOW_BYTES: Final = 16_384
"""Between these a client's buffer of ours is full. What is shorter is copied behind its head."""
UNSENT_BYTES: Final = 524_288
"""What the kernel takes for one client beyond what is on its way; it would hold megabytes for one that stands still.
Much less would make the sender wait for its timers: segments on the loopback are as large as 64 KiB."""


def bound_unsent(transport: asyncio.Transport) -> None:
    """Let the kernel take no more than `UNSENT_BYTES` that it cannot send yet."""
    sock = transport.get_extra_info("socket")
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def untaken(transport: asyncio.Transport) -> int:
    """Bytes written that the client's side has not confirmed: in our buffer, in the kernel, on their way.

    While nothing more is written this falls as long as the client reads, however slowly: a slow client can take
    minutes to empty enough for the next write.
    """
    ours = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")  # None: a TLS connection that is lost, before it has been told so
    if transport.is_closing() or sock is None:
        return ours
    kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return ours + int.from_bytes(kernel, sys.byteorder)


def unread(transport: asyncio.Transport) -> bool:
    """Whether the kernel has bytes of the client's that the loop has not brought yet."""
    sock = transport.get_extra_info("socket")
    if sock is None:  # as above
        return False
    waiting = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    return waiting != bytes(4)
