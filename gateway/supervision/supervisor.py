"""Starts several gateway processes on one port, restarts what dies, replaces them one by one, and ends them.

Each process is a gateway of its own that shares its limits with the others through Redis, as gateways on several hosts
do. The listening sockets belong to the supervisor: what connects while a process is replaced waits in its socket.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pydantic import SecretStr

from gateway.listen import listen, listen_shared, url_of
from gateway.process import Child, ChildError, describe_exit
from gateway.settings_text import Address
from gateway.start import start_log, start_redis, start_tokens
from gateway.supervision.child import write_settings
from gateway.supervision.exposition import Exposition, add_totals, parse

if TYPE_CHECKING:
    from gateway.log import Log
    from gateway.settings import Settings

READY_S = 30.0
STABLE_S = 5.0  # who lived that long is restarted at once
PAUSE_MIN_S = 0.25
PAUSE_MAX_S = 10.0
STOP_MARGIN_S = 15.0  # beyond the drain, for queue and clean-up
QUEUE_S = 10.0


@dataclass(slots=True)
class Place:
    """One process's place: its socket, its admin socket, and who has it now."""

    number: int
    data: socket.socket
    child: Child | None = None
    admin: str = ""  # URL of its own admin listener
    final: IO[bytes] | None = None
    seen: Exposition = field(default_factory=dict)  # what its child said last of itself
    pause_s: float = PAUSE_MIN_S
    ready_at: float = 0.0
    replacing: bool = False
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Supervisor:
    """The processes of one `headrace serve` with `processes` above one."""

    def __init__(self, settings: Settings, log: Log, redis_url: str, sockets: list[socket.socket], fresh: bool) -> None:
        # Children must not start a Redis each; what they get is where ours is.
        self._settings = settings.model_copy(update={"redis": SecretStr(redis_url)})
        self._log = log
        self._fresh = fresh
        self._stopping = False
        self._clock = asyncio.get_running_loop().time
        self.places = [Place(number, sock) for number, sock in enumerate(sockets, 1)]
        self.ended: Exposition = {}
        """Totals of processes that have ended."""
        self.restarts = 0

    def living(self) -> list[str]:
        """Admin URLs of the processes that serve."""
        return [place.admin for place in self.places if place.admin]

    async def start(self) -> None:
        """Start them all. Raises `ChildError` when one does not get ready."""
        await asyncio.gather(*(self._start(place) for place in self.places))
        for place in self.places:
            self._watch(place)

    async def stop(self) -> None:
        """Ask them all to end and wait until they have."""
        self._stopping = True
        grace = self._settings.drain_s + QUEUE_S + STOP_MARGIN_S
        children = [place.child for place in self.places if place.child is not None]
        await asyncio.gather(*(child.stop(grace_s=grace) for child in children))
        for place in self.places:
            for task in place.tasks:
                task.cancel()
            await asyncio.gather(*place.tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Have them end what still streams."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on to every process."""
        for place in self.places:
            if place.child is not None and place.child.returncode is None:
                os.kill(place.child.pid, number)

    async def replace(self) -> None:
        """Replace them one after the other: the new one serves before the old one ends."""
        for place in self.places:
            old, old_final, old_seen = place.child, place.final, place.seen
            if self._stopping or old is None or old.returncode is not None or place.replacing:
                continue
            place.replacing = True
            try:
                await self._start(place)
            except ChildError as error:
                self._log.event("process_not_replaced", process=place.number, why=str(error))
                place.replacing = False
                return  # the next ones would not start either
            self._watch(place)
            place.replacing = False
            self._log.event("process_replaced", process=place.number, pid=place.child.pid if place.child else 0)
            await old.stop(grace_s=self._settings.drain_s + QUEUE_S + STOP_MARGIN_S)
            self._take_totals(old_final, old_seen)

    # -- one process -----------------------------------------------------------------------------------------------

    async def _start(self, place: Place) -> None:
        """Start a process in its place; when it serves, it is the place's. Raises `ChildError`."""
        admin = listen(Address("127.0.0.1", 0))
        final = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with tempfile.TemporaryFile() as told:
            told.write(write_settings(self._settings))
            told.flush()
            numbers = [told.fileno(), place.data.fileno(), admin.fileno(), final.fileno()]
            argv = [sys.executable, "-P", "-m", "gateway.supervision.child", *map(str, numbers), str(int(self._fresh))]
            child = await Child.start(f"process {place.number}", argv, pass_fds=numbers, own_stderr=True)
        url = url_of(admin)
        admin.close()
        try:
            await child.wait_ready(READY_S)
        except BaseException:
            await child.stop(grace_s=0.0)
            final.close()
            raise
        place.child, place.admin, place.final, place.ready_at = child, url, final, self._clock()
        place.seen = {}

    def _watch(self, place: Place) -> None:
        task = asyncio.create_task(self._restart(place), name=f"process-{place.number}")
        place.tasks.add(task)
        task.add_done_callback(place.tasks.discard)

    async def _restart(self, place: Place) -> None:
        """When this process ends without having been asked to, start another one."""
        child, final = place.child, place.final
        assert child is not None, "it was started just now"
        code = await child.wait()
        if place.child is not child:
            return  # it was replaced
        place.admin = ""
        self._take_totals(final, place.seen)
        while not self._stopping and not place.replacing:
            self._log.event("process_ended", process=place.number, pid=child.pid, how=describe_exit(code))
            if self._clock() - place.ready_at < STABLE_S:
                await asyncio.sleep(place.pause_s)
                place.pause_s = min(place.pause_s * 2, PAUSE_MAX_S)
            else:
                place.pause_s = PAUSE_MIN_S
            try:
                await self._start(place)
            except ChildError as error:
                self._log.event("process_not_started", process=place.number, why=str(error))
                place.ready_at = self._clock()
                continue
            self.restarts += 1
            self._watch(place)
            return

    def _take_totals(self, final: IO[bytes] | None, seen: Exposition) -> None:
        """Keep what an ended process has counted: what it wrote down at its end, or, killed, what it said last."""
        if final is None or final.closed:
            return
        final.seek(0)
        text = final.read().decode("utf-8", "replace")
        final.close()
        add_totals(self.ended, parse(text) if text else seen)

    def said(self, admin: str, metrics: Exposition) -> None:
        """A process says this of itself now."""
        for place in self.places:
            if place.admin == admin:
                place.seen = metrics


async def supervise(
    settings: Settings,
    *,
    on_ready: Callable[[str, str, dict[str, str]], None],
    stop: asyncio.Event,
    hurry: asyncio.Event,
    replace: asyncio.Event,
    reload: asyncio.Event,
) -> int:
    """Run the processes until `stop` is set; `hurry` cuts what still streams, `replace` replaces them one by one and
    `reload` has them read the policy again. `on_ready` gets the URLs of both listeners and new admin tokens.

    Raises what `gateway.app.serve` raises.
    """
    from gateway.supervision.front import start_front

    async with AsyncExitStack() as stack:
        sockets = listen_shared(settings.listen, settings.processes)
        for sock in sockets:
            stack.callback(sock.close)
        if settings.listen.is_unix:
            stack.callback(Path(settings.listen.host).unlink, missing_ok=True)
        admin_socket = stack.enter_context(listen(settings.admin))
        tokens = start_tokens(settings)
        log = start_log(settings)
        stack.callback(log.close)
        redis_url = await start_redis(settings, stack)
        assert redis_url is not None, "the settings demand a Redis for several processes"
        supervisor = Supervisor(settings, log, redis_url, sockets, settings.redis_mode == "embedded")
        stack.push_async_callback(supervisor.stop)
        starting = asyncio.create_task(supervisor.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        starting.result()
        await start_front(stack, supervisor, admin_socket)
        data = url_of(sockets[0], tls=settings.tls_cert is not None)
        on_ready(data, url_of(admin_socket), {str(role): token for role, token in tokens.made.items()})
        await _obey(supervisor, stop, hurry, replace, reload)
    return 0


async def _obey(
    supervisor: Supervisor, stop: asyncio.Event, hurry: asyncio.Event, replace: asyncio.Event, reload: asyncio.Event
) -> None:
    """Do what the events say until the processes have ended."""

    async def on(event: asyncio.Event, act: Callable[[], object]) -> None:
        while True:
            await event.wait()
            event.clear()
            act()

    replacing: set[asyncio.Task[None]] = set()

    def begin() -> None:
        if not replacing:
            task = asyncio.create_task(supervisor.replace())
            replacing.add(task)
            task.add_done_callback(replacing.discard)

    helpers = [
        asyncio.create_task(on(hurry, supervisor.hurry)),
        asyncio.create_task(on(replace, begin)),
        asyncio.create_task(on(reload, lambda: supervisor.signal(signal.SIGHUP))),
    ]
    try:
        await stop.wait()
        await supervisor.stop()
    finally:
        for task in (*helpers, *replacing):
            task.cancel()
        await asyncio.gather(*helpers, *replacing, return_exceptions=True)
