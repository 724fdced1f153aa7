"""The data plane's listener: accepts connections, knows them all, and drains them."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl as ssl_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from gateway.scheduling.desk import Scheduling, desk
from gateway.tls import HANDSHAKE_S

from .connection import ClientConnection
from .messages import Gate, HttpLimits, Telemetry
from .proxied import ProxiedConnection, Trust
from .sweep import Sweeper

if TYPE_CHECKING:
    from .upstream import UpstreamPool

BACKLOG: Final = 1024
_TWO_DIGITS: Final = [f"{number:02x}" for number in range(256)]
SETTLE_S: Final = 0.5  # a draining server waits so long for handshakes that have begun


@dataclass(frozen=True, slots=True)
class ServerStats:
    """What the listener holds at one moment, and what it has seen since it started."""

    connections: int
    busy: int
    accepted: int
    refused: int
    lags: int


class DataServer:
    """Everything the connections share. Build it on the running loop, then `start` it.

    `limits` may be replaced at any time; a connection reads its next request within the new ones. `on_error` gets
    what should not have happened: the connection concerned answers 500 and the others go on. `on_crowd` hears of each
    client that was one too many, and whether it is the first since there was room for an eighth more. `on_reset` hears
    of each body under which a worker's connection was reset, and says whether that shall not happen to another one.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        dispatcher: Scheduling,
        upstreams: dict[str, UpstreamPool],
        telemetry: Telemetry,
        limits: HttpLimits,
        on_error: Callable[[BaseException], None],
        on_crowd: Callable[[bool], None] = lambda _: None,
        on_reset: Callable[[bytes, str], bool] = lambda _body, _worker: False,
        longest_context: Callable[[str], int | None] = lambda _model: None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.gate = gate
        self.dispatcher = desk(dispatcher)
        self.upstreams = upstreams
        self.telemetry = telemetry
        self.limits = limits
        self.on_error = on_error
        self.on_crowd = on_crowd
        self.on_reset = on_reset
        self.longest_context = longest_context  # of an engine's model, in tokens: for what a refusal says
        self._crowded = False
        self.clock = dispatcher.now  # one clock for all that is told of a request
        self.sweeper = Sweeper(loop)
        self.draining = False
        self._ended = False
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._secure = False
        self._accepted = self._refused = 0
        self._id_prefix = f"req-{secrets.token_hex(8)}"
        self._id_row = ""  # what the ids of one row have in common
        self._ids = 0

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        ssl: ssl_module.SSLContext | None = None,
        trust: Trust | None = None,
    ) -> tuple[str, int]:
        """Listen on an address or on a socket bound elsewhere; returns the address. Raises OSError if it is taken.

        `trust`: whose word about the clients behind them counts.
        """
        loop = asyncio.get_running_loop()
        self._secure = self._secure or ssl is not None

        def protocol() -> ClientConnection:
            if trust is not None:
                return ProxiedConnection(self, trust, secure=ssl is not None)
            return ClientConnection(self, secure=ssl is not None)

        patience = None if ssl is None else HANDSHAKE_S
        if sock is not None:
            make = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
            server = await make(protocol, sock=sock, ssl=ssl, ssl_handshake_timeout=patience, backlog=BACKLOG)
        else:
            server = await loop.create_server(
                protocol, host, port, ssl=ssl, ssl_handshake_timeout=patience, backlog=BACKLOG
            )
        self._servers.append(server)
        name = cast(Any, server).sockets[0].getsockname()  # of uvloop's a list
        return (name, 0) if isinstance(name, str) else (name[0], name[1])

    def stats(self) -> ServerStats:
        """Counts for metrics."""
        busy = sum(connection.busy for connection in self._connections)
        return ServerStats(len(self._connections), busy, self._accepted, self._refused, self.sweeper.lags)

    def stop_accepting(self) -> None:
        """Close the listeners. Connections that exist go on."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def drain(self, timeout_s: float, accept_s: float = 0.0) -> bool:
        """Accept nothing more, let answers end, close what idles; after `timeout_s` cut what still runs.

        For `accept_s` new connections are still taken, for one answer each: whoever sends them may not know yet. So are
        those that had been accepted and not been asked anything: no request is lost where another process goes on.

        True when every answer ended by itself. Open streams that are cut end with an error event, not with `[DONE]`.
        """
        self.draining = True
        for connection in list(self._connections):
            connection.close_if_idle()
        if accept_s > 0.0:
            await asyncio.sleep(accept_s)
        self.stop_accepting()
        # What the loop has accepted gets its protocol in its next turns; a TLS handshake takes a moment.
        for _ in range(2):
            await asyncio.sleep(0.0)
        if self._secure:
            await asyncio.sleep(min(SETTLE_S, timeout_s))
        for connection in list(self._connections):
            connection.close_if_idle()
        if await self._wait_empty(timeout_s):
            self._ended = True
            self.sweeper.stop()
            return True
        self._ended = True
        for connection in list(self._connections):
            connection.shut_down()
        if not await self._wait_empty(1.0):
            for connection in list(self._connections):
                connection.kill()
        self.sweeper.stop()
        return False

    async def _wait_empty(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # -- what connections do ----------------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> bool:
        """A connection was made; False when there are too many and it must end at once."""
        if len(self._connections) >= self.limits.connections or self._ended:
            self._refused += 1
            if not self._ended:
                self.on_crowd(not self._crowded)
                self._crowded = True
            return False
        self._accepted += 1
        self._connections.add(connection)
        self._empty.clear()
        return True

    def forget(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if self._crowded and len(self._connections) <= self.limits.connections * 7 // 8:
            self._crowded = False
        if not self._connections:
            self._empty.set()

    def new_request_id(self) -> str:
        """An id that no other process makes."""
        number = self._ids = self._ids + 1
        place = number & 255
        if place == 0 or not self._id_row:
            self._id_row = f"{self._id_prefix}{number >> 8:06x}"
        return self._id_row + _TWO_DIGITS[place]
