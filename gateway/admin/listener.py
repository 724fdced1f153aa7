"""How the admin plane listens: aiohttp, with bounds that it does not have itself.

aiohttp takes any number of connections and waits for ever for a reader that takes nothing. The descriptors that such
clients hold would be missing for streams, and who opens enough of them would lock the operators out.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from gateway.admin.access import is_loopback_address
from gateway.start import background
from gateway.upkeep import keep_doing

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

KEEPALIVE_S: Final = 30.0
"""Also for the head of a request: whoever drips it is cut then."""

MAX_CONNECTIONS: Final = 512
MAX_OF_ADDRESS: Final = 64
"""Connections of one address, this host's own apart: what comes through a tunnel or from the supervisor."""

LOOK_S: Final = 5.0
# For what clients do wrong: they are answered, and standard error is not theirs to fill.
_QUIET: Final = logging.getLogger("headrace.admin")
_QUIET.propagate = False
_QUIET.addHandler(logging.NullHandler())

CONNECTED_WITHIN: Final = 5
"""Rounds of the loop until an accepted connection is set up, at most."""

STALLED_LOOKS: Final = 6
"""A connection whose unsent bytes have not become fewer in so many looks is cut."""


async def serve_admin(
    stack: AsyncExitStack,
    app: web.Application,
    sock: Any,
    *,
    stop_s: float,
    most: int = MAX_CONNECTIONS,
    most_of_address: int = MAX_OF_ADDRESS,
) -> None:
    """Serve `app` on a bound socket until the stack closes; what runs then gets `stop_s`."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=stop_s,
        auto_decompress=False,
        logger=_QUIET,
    )
    await runner.setup()
    handlers = runner.server
    assert handlers is not None
    gate = _Gate(handlers, most, most_of_address)
    server = await asyncio.get_running_loop().create_server(gate.protocol, sock=sock)

    async def close() -> None:
        server.close()
        await runner.cleanup()

    stack.push_async_callback(close)
    background(stack, keep_doing(gate.watch, "cut-stalled-readers"), "cut-stalled-readers")


class _Gate:
    """Lets connections in as far as there is room, and cuts those that take nothing."""

    def __init__(self, handlers: web.Server, most: int, most_of_address: int) -> None:
        self._handlers = handlers
        self._most = most
        self._most_of_address = most_of_address
        self._unsent: dict[RequestHandler, tuple[int, int]] = {}

    def protocol(self) -> asyncio.Protocol:
        """What takes the next connection: aiohttp's handler, or something that closes it."""
        if len(self._handlers.connections) >= self._most:
            return _TurnedAway()
        handler = self._handlers()
        # Where it comes from is not known before it is connected.
        self._judge(handler, CONNECTED_WITHIN)
        return handler

    def _judge(self, handler: RequestHandler, rounds: int) -> None:
        """Cut it if its address has too many, as soon as it is connected."""
        if handler.transport is None:
            if rounds:
                asyncio.get_running_loop().call_soon(self._judge, handler, rounds - 1)
            return
        address = _address(handler.transport)
        if is_loopback_address(address):
            return
        if sum(_address(each.transport) == address for each in self._handlers.connections) > self._most_of_address:
            handler.transport.abort()

    async def watch(self) -> None:
        """Look at what is not sent yet; for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Look once, and cut who has taken nothing for too many looks."""
        before, self._unsent = self._unsent, {}
        for each in self._handlers.connections:
            transport = each.transport
            size = transport.get_write_buffer_size() if transport is not None else 0
            if transport is None or not size:
                continue
            last, looks = before.get(each, (size + 1, 0))
            looks = looks + 1 if size >= last else 0
            self._unsent[each] = size, looks
            if looks >= STALLED_LOOKS:
                transport.abort()


class _TurnedAway(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it: at once, it has sent nothing that could be answered."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _address(transport: asyncio.BaseTransport | None) -> str:
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""
