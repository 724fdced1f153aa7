"""The connections to one worker: opened, kept a short while, and given out again, the longest idle first."""

from __future__ import annotations

import asyncio
import errno
import ssl as ssl_module
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gateway.scheduling.model import OutcomeKind
from workers.report import socket_of

from .answers import Routes
from .dial import Dialer
from .worker_connection import UpstreamConnection, clock

MAX_IDLE: Final = 512
MAX_STARTS: Final = 64
"""Paths whose request lines are kept; clients use few."""
REST_S: Final = 0.05
"""A connection rests this long before it is used again. What a worker sends too much, it sends right behind its answer:
on a connection in use already that would be taken for the answer to the next request, which may be another tenant's."""
SHORT_REST_S: Final = 0.01
PROOF: Final = 1_000
"""After so many answers with nothing behind them a worker's connections rest `SHORT_REST_S`, until the first time that
something is. Under load all that rest are out of the processor's caches when their turn comes: at 30,000 requests/s
50 ms mean 1,500 connections, and about a tenth more processor time a request than 10 ms."""
SPARE: Final = 64
"""Of more idle connections than these one is closed with each that is taken, while they rest longer than `REST_S`."""

AHEAD_FROM: Final = 8
"""A worker with so many open connections gets one more before it is needed: where requests keep coming for which none
is idle, they do not wait until one is made. Where there are few, one more would be many."""

# What our own host lacks; never the worker's fault.
_LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class ConnectSink(Protocol):
    """Who waits for a new connection."""

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Open and ready to be asked."""
        ...

    def on_connect_failed(self, kind: OutcomeKind, detail: str) -> None:
        """It could not be opened."""
        ...


class UpstreamPool:
    """The connections to one worker.

    `url`: scheme, host, port and an optional path prefix, or the path of a unix socket (`unix:///run/engine.sock`).
    `token` is sent as the worker's own bearer token. `idle_s`
    must stay below the worker's keep-alive (vLLM: 5 s), so that ours is the side that closes. `make_room` closes idle
    connections, of other workers too, when there is no descriptor left for a new one; None: only our own are closed.
    """

    def __init__(
        self,
        worker_id: str,
        url: str,
        *,
        token: str | None = None,
        idle_s: float = 3.0,
        rest_s: float = REST_S,
        connect_s: float = 1.0,
        ssl: ssl_module.SSLContext | None = None,
        make_room: Callable[[], int] | None = None,
    ) -> None:
        path = socket_of(url)
        parts = urlsplit(url if path is None else "http://localhost")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"worker {worker_id}: url must be http(s)://host[:port] or unix:///path, got {url!r}")
        self.worker_id = worker_id
        self.url = url
        self.idle_s = idle_s
        self.rest_s = self._long_rest_s = rest_s
        self._unproven = PROOF  # answers until rests are short; -1: something was behind one
        self.connect_s = connect_s
        self._make_room = make_room or self.close_idle
        self.prefix = parts.path.rstrip("/")
        self.authorization = None if token is None else b"Bearer " + token.encode("ascii")
        self._ssl = (ssl or ssl_module.create_default_context()) if parts.scheme == "https" else None
        port = parts.port or (443 if self._ssl else 80)
        self._dialer = Dialer(parts.hostname, port, path=path, ssl=self._ssl)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        where = host if path is not None else f"{host}:{port}"
        self.host_field = where.encode("idna" if not host.isascii() else "ascii")
        self._starts: dict[str, bytes] = {}  # of POST, by path
        self._last_path = self._last_method = ""  # of the request whose line is the next
        self._last_start = b""
        self.routes = Routes()  # what is told of requests to this worker
        # Idle connections, the longest idle first, each with the next one: a list's first is dear to take.
        self._first: UpstreamConnection | None = None
        self._last: UpstreamConnection | None = None
        self._idle = 0
        self._ahead: UpstreamConnection | None = None  # made before it is needed; nothing was asked on it yet
        self._open: set[UpstreamConnection] = set()
        self._making_ahead = False
        self._connecting: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open_connections(self) -> int:
        """Connections that exist, idle ones included."""
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        """Connections that nobody uses."""
        return self._idle + (self._ahead is not None)

    def start_of(self, method: str, path: str) -> bytes:
        """The beginning of a request to this worker: request line and `Host`, without the end of its line."""
        if path == self._last_path and method == self._last_method:
            return self._last_start
        start = self._starts.get(path) if method == "POST" else None
        if start is None:
            start = b"%b\r\nhost: %b" % (f"{method} {self.prefix}{path} HTTP/1.1".encode("latin-1"), self.host_field)
            if method == "POST" and len(self._starts) < MAX_STARTS:
                self._starts[path] = start
        self._last_path, self._last_method, self._last_start = path, method, start
        return start

    def take(self) -> UpstreamConnection | None:
        """The connection that has been idle longest and is still good, if one has rested; else the one made ahead."""
        first = self._first
        if first is None and self._ahead is None:
            return None
        now = clock()
        rested = now - self.rest_s
        while first is not None and first.idle_since <= rested:
            if first.quiet():
                self._take_out(None, first)
                first.taken_at = now
                if self._unproven > 0:
                    self._unproven -= 1
                    if self._unproven == 0:
                        self.rest_s = min(self.rest_s, SHORT_REST_S)
                elif self._idle > SPARE and self._first is not None and self._first.idle_since < now - REST_S:
                    self.discard(self._first)
                return first
            self.discard(first)
            first = self._first
        ahead = self._ahead
        if ahead is None:
            return None
        if not ahead.quiet():
            self.discard(ahead)
            return None
        self._ahead = None
        ahead.taken_at = now
        ahead.reused = True  # the worker may have closed it meanwhile, as any other that was idle
        self._connect_ahead()
        return ahead

    def connect(self, sink: ConnectSink) -> asyncio.Task[None]:
        """Open a new connection for `sink`; cancel the task to give up."""
        task = self._begin(self._connect(sink))
        self._connect_ahead()
        return task

    def _begin(self, connecting: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    def _connect_ahead(self) -> None:
        """There was none left to take, or there is none now: the next one shall find one."""
        if len(self._open) >= AHEAD_FROM and self._ahead is None and not self._making_ahead:
            self._making_ahead = True
            self._begin(self._make_ahead())

    async def _make_ahead(self) -> None:
        try:
            async with asyncio.timeout(self.connect_s if self._ssl is None else 2 * self.connect_s):
                connection = await self._dial()
        except OSError:  # all of it: a timeout, TLS. Whoever needs one will find the same, and say so
            return
        finally:
            self._making_ahead = False
        self._open.add(connection)
        if self._closed:
            self.discard(connection)
            return
        connection.idle_since = clock()
        self._ahead = connection
        if self._reaper is None:
            self._reap_later(connection.loop, self.idle_s)

    async def _connect(self, sink: ConnectSink) -> None:
        try:
            async with asyncio.timeout(self.connect_s if self._ssl is None else 2 * self.connect_s):
                connection = await self._open_one()
        except TimeoutError:
            sink.on_connect_failed(OutcomeKind.CONNECT_FAILED, "connect_timeout")
        except ssl_module.SSLError:
            sink.on_connect_failed(OutcomeKind.CONNECT_FAILED, "tls_error")
        except OSError as error:
            if error.errno in _LOCAL_ERRORS:
                sink.on_connect_failed(OutcomeKind.LOCAL, errno.errorcode[error.errno or 0])
            else:
                # A unix socket that is not there is a port where nobody listens.
                refused = isinstance(error, ConnectionRefusedError | FileNotFoundError)
                sink.on_connect_failed(OutcomeKind.CONNECT_FAILED, "connect_refused" if refused else "connect_error")
        else:
            self._open.add(connection)
            sink.on_connected(connection)

    async def _open_one(self) -> UpstreamConnection:
        try:
            return await self._dial()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._make_room():
                raise
        await asyncio.sleep(0)  # the descriptors are free a turn of the loop later
        await asyncio.sleep(0)
        return await self._dial()

    async def _dial(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        return await self._dialer.open(lambda: UpstreamConnection(self, loop))

    def close_idle(self) -> int:
        """Close the connections that nobody uses; returns how many there were."""
        count = self.idle_connections
        while self._first is not None:
            self.discard(self._first)
        if self._ahead is not None:
            self.discard(self._ahead)
        return count

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer was complete for the next request."""
        if self._closed or self._idle >= MAX_IDLE:
            self.discard(connection)
            return
        connection.idle_since = clock()
        if self._last is None:
            self._first = connection
        else:
            self._last.idle_next = connection
        self._last = connection
        self._idle += 1
        if self._reaper is None:
            self._reap_later(connection.loop, self.idle_s)

    def distrust(self) -> None:
        """This worker has sent what nobody asked for: its connections rest long from now on."""
        self._unproven = -1
        self.rest_s = self._long_rest_s

    def discard(self, connection: UpstreamConnection) -> None:
        """Close a connection for good."""
        self._open.discard(connection)
        if connection is self._ahead:
            self._ahead = None
        before, each = None, self._first
        while each is not None and each is not connection:
            before, each = each, each.idle_next
        if each is not None:
            self._take_out(before, each)
        if not connection.lost:
            connection.abort()

    def _take_out(self, before: UpstreamConnection | None, connection: UpstreamConnection) -> None:
        """An idle connection is that no more; `before`: the one that has been idle a little longer."""
        if before is None:
            self._first = connection.idle_next
        else:
            before.idle_next = connection.idle_next
        if self._last is connection:
            self._last = before
        connection.idle_next = None
        self._idle -= 1

    def close(self) -> None:
        """No worker, no connections: idle ones close now, busy ones when their answer ends."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        self.close_idle()

    def _reap_later(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._reaper = loop.call_later(seconds, self._reap)

    def _reap(self) -> None:
        """Close what has been idle too long; the list is in order of idle time."""
        now = clock()
        while self._first is not None and now - self._first.idle_since >= self.idle_s:
            self.discard(self._first)
        if self._ahead is not None and now - self._ahead.idle_since >= self.idle_s:
            self.discard(self._ahead)
        self._reaper = None
        since = [each.idle_since for each in (self._first, self._ahead) if each is not None]
        if since:
            self._reap_later(asyncio.get_running_loop(), min(since) + self.idle_s - now)
