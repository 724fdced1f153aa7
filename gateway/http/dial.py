"""A connection to where a worker is: a unix socket, an address, or the first of a name's addresses that answers.

A name is looked up again and again, so that a worker that has moved is found; in between for a few seconds only, so
that a slow resolver is not in the way of every connection. Of several addresses each gets a short head start over the
next (RFC 8305, families in turn): one that swallows what it is sent costs that, not the whole time for connecting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeVar

HEAD_START_S: Final = 0.1
MAX_ADDRESSES: Final = 8
RESOLVED_S: Final = 5.0

P = TypeVar("P", bound=asyncio.Protocol)
Address = tuple[int, Any]
"""(family, what `connect` takes)."""

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""(host, port) -> its addresses, the best first. Raises OSError for a name that nobody knows."""


async def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of a name, as the host's resolver orders them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


class Dialer:
    """Opens connections to one worker. `path`: of a unix socket, in place of host and port."""

    __slots__ = ("_host", "_looking", "_path", "_port", "_resolve", "_ssl", "_until", "addresses")

    def __init__(
        self,
        host: str,
        port: int,
        *,
        path: str | None = None,
        ssl: ssl_module.SSLContext | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self._host = host
        self._port = port
        self._path = path
        self._ssl = ssl
        self._resolve = resolve
        self.addresses: tuple[Address, ...] = ()  # of a name, as it was looked up last
        self._until = 0.0
        self._looking: asyncio.Future[Sequence[Address]] | None = None

    async def open(self, make: Callable[[], P]) -> P:
        """A new connection. Raises OSError. It takes as long as the addresses do: the caller sets a limit to that."""
        loop = asyncio.get_running_loop()
        if self._path is not None:
            _, protocol = await loop.create_unix_connection(make, self._path)
            return protocol
        addresses = await self._look_up(loop)
        name = self._host if self._ssl is not None else None
        sock = None
        try:
            if addresses:
                sock = await race(addresses, loop)
                _, protocol = await loop.create_connection(make, sock=sock, ssl=self._ssl, server_hostname=name)
            else:
                _, protocol = await loop.create_connection(
                    make, self._host, self._port, ssl=self._ssl, server_hostname=name
                )
        except BaseException:  # a cancelled one has a socket to close, too
            self._until = 0.0  # the addresses may have changed
            if sock is not None:
                sock.close()
            raise
        return protocol

    async def _look_up(self, loop: asyncio.AbstractEventLoop) -> tuple[Address, ...]:
        if is_literal(self._host):
            return ()
        if loop.time() >= self._until:
            if self._looking is None:
                # One question for all who wait, which goes on without them: a resolver's thread cannot be called back.
                self._looking = asyncio.ensure_future(self._resolve(self._host, self._port))
                self._looking.add_done_callback(self._looked_up)
            await asyncio.shield(self._looking)
        return self.addresses

    def _looked_up(self, looking: asyncio.Future[Sequence[Address]]) -> None:
        self._looking = None
        if not looking.cancelled() and looking.exception() is None:
            self.addresses = in_turn(looking.result())[:MAX_ADDRESSES]
            self._until = looking.get_loop().time() + RESOLVED_S


def is_literal(host: str) -> bool:
    """Whether this is an address and no name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def in_turn(addresses: Sequence[Address]) -> tuple[Address, ...]:
    """The addresses with families in turn, the first one's first: a family that leads nowhere costs one head start."""
    first = [one for one in addresses if one[0] == addresses[0][0]]
    others = [one for one in addresses if one[0] != addresses[0][0]]
    return tuple(one for one in chain.from_iterable(zip_longest(first, others)) if one is not None)


async def race(addresses: Sequence[Address], loop: asyncio.AbstractEventLoop) -> socket.socket:
    """A socket connected to the first address that takes it; the next one is tried after a head start or a failure.

    Raises what the first of them had to say when none does.
    """
    running: set[asyncio.Task[socket.socket]] = set()
    errors: list[OSError] = []
    waiting = list(addresses)
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(_connected(waiting.pop(0), loop)))
            done, running = await asyncio.wait(
                running, timeout=HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            won = [task for task in done if task.exception() is None]
            if won:
                for task in won[1:]:
                    task.result().close()
                return won[0].result()
            errors += [error for task in done if isinstance(error := task.exception(), OSError)]
        raise errors[0]
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()


async def _connected(address: Address, loop: asyncio.AbstractEventLoop) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
    except BaseException:  # the one that lost the race is cancelled
        sock.close()
        raise
    return sock


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    """One that connected while it was cancelled, and whose failure nobody asks for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
