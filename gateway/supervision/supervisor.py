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

from gateway.listen import listen, listen_beside, listen_shared, url_of
from gateway.process import Child, ChildError, describe_exit
from gateway.settings_text import Address
from gateway.start import start_log, start_redis, start_tokens
from gateway.supervision.child import write_settings
from gateway.supervision.exposition import Exposition, add_totals, parse

if TYPE_CHECKING:
    from gateway.admin.access import Tokens
    from gateway.log import Log
    from gateway.settings import Settings

READY_S = 30.0
STABLE_S = 5.0  # who lived that long is restarted at once
PAUSE_MIN_S = 0.25
PAUSE_MAX_S = 10.0
STOP_MARGIN_S = 15.0  # beyond the drain, for queue and clean-up
QUEUE_S = 10.0


@dataclass(slots=True, eq=False)
class Process:
    """One gateway process from its ready line to its end."""

    child: Child
    admin: str  # URL of its own admin listener
    final: IO[bytes]
    ready_at: float
    seen: Exposition = field(default_factory=dict)  # what it said last of itself
    asked_at: float = 0.0  # when that was asked for
    ended: bool = False  # and what it had counted is in the supervisor's totals

    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.child.returncode is None


@dataclass(slots=True)
class Place:
    """One process's place: its socket, and who has it now."""

    number: int
    data: socket.socket
    now: Process | None = None
    pause_s: float = PAUSE_MIN_S
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
        self._leaving: list[Process] = []
        self.ended: Exposition = {}
        """Totals of processes that have ended; replaced, never changed: whoever reads it may take its time."""
        self.restarts = 0

    def living(self) -> list[str]:
        """Admin URLs of the processes that serve."""
        return [place.now.admin for place in self.places if place.now is not None]

    def counting(self) -> list[Process]:
        """Every process that runs, those that have been replaced and drain included."""
        return [*(place.now for place in self.places if place.now is not None), *self._leaving]

    async def start(self) -> None:
        """Start them all. Raises `ChildError` when one does not get ready."""
        await asyncio.gather(*(self._start(place) for place in self.places))
        self._fresh = False  # whoever is started from now on meets gateways that hold slots
        for place in self.places:
            self._watch(place)

    async def stop(self) -> None:
        """Ask them all to end and wait until they have."""
        self._stopping = True
        # Those that drain have been asked: a second signal would cut what they still have.
        leaving = [self._left(process) for process in self._leaving]
        asked = [place.now.child.stop(grace_s=self._grace_s()) for place in self.places if place.now is not None]
        await asyncio.gather(*asked, *leaving)
        for place in self.places:
            for task in place.tasks:
                task.cancel()
            await asyncio.gather(*place.tasks, return_exceptions=True)

    async def _left(self, process: Process) -> None:
        """Wait until a process that was asked before has ended."""
        try:
            async with asyncio.timeout(self._grace_s()):
                await process.child.wait()
        except TimeoutError:
            process.child.kill()
            await process.child.wait()

    def hurry(self) -> None:
        """Have them end what still streams."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on to every process."""
        for process in self.counting():
            if process.lives():
                os.kill(process.child.pid, number)

    async def replace(self) -> None:
        """Replace them one after the other: the new one serves before the old one ends."""
        for place in self.places:
            old = place.now
            if self._stopping or old is None or not old.lives():
                continue
            place.replacing = True
            try:
                new = await self._start(place)
            except (ChildError, OSError) as error:
                self._log.event("process_not_replaced", process=place.number, why=str(error))
                if not old.lives():
                    self._watch(place)  # it died meanwhile, and whoever watched it left that to us
                return  # the next ones would not start either
            finally:
                place.replacing = False
            self._leaving.append(old)
            self._watch(place)
            self._log.event("process_replaced", process=place.number, pid=new.child.pid)
            await old.child.stop(grace_s=self._grace_s())
            self._leaving.remove(old)
            self._take_totals(old)

    # -- one process -----------------------------------------------------------------------------------------------

    def _grace_s(self) -> float:
        return self._settings.drain_s + QUEUE_S + STOP_MARGIN_S

    async def _start(self, place: Place) -> Process:
        """Start a process in its place; when it serves, it is the place's. Raises `ChildError`, `OSError`."""
        admin = listen(Address("127.0.0.1", 0))
        final = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        if place.data.fileno() < 0:
            place.data = listen_beside(self._address(place))
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
        except BaseException:  # also when the supervisor itself is told to stop meanwhile
            await child.stop(grace_s=0.0)
            final.close()
            raise
        place.now = process = Process(child, url, final, self._clock())
        return process

    def _watch(self, place: Place) -> None:
        task = asyncio.create_task(self._restart(place), name=f"process-{place.number}")
        place.tasks.add(task)
        task.add_done_callback(place.tasks.discard)

    async def _restart(self, place: Place) -> None:
        """When this process ends without having been asked to, start another one."""
        process = place.now
        assert process is not None, "it was started just now"
        how = describe_exit(await process.child.wait())
        if place.now is not process or place.replacing:
            return  # it is replaced anyway
        place.now = None
        self._take_totals(process)
        ready_at = process.ready_at
        while not self._stopping:
            self._log.event("process_ended", process=place.number, pid=process.child.pid, how=how)
            if self._clock() - ready_at < STABLE_S:
                self._rest(place)
                await asyncio.sleep(place.pause_s)
                place.pause_s = min(place.pause_s * 2, PAUSE_MAX_S)
            else:
                place.pause_s = PAUSE_MIN_S
            try:
                await self._start(place)
            except (ChildError, OSError) as error:
                self._log.event("process_not_started", process=place.number, why=str(error))
                ready_at = self._clock()
                continue
            self.restarts += 1
            self._watch(place)
            return

    def _rest(self, place: Place) -> None:
        """Nobody accepts here for a while: what connects goes to the others, where the kernel spreads over sockets."""
        others = [other for other in self.places if other is not place and other.data.fileno() >= 0]
        if others and others[0].data.family != socket.AF_UNIX and sys.platform == "linux":
            place.data.close()

    def _address(self, place: Place) -> socket.socket:
        """A socket of another place, at whose address a new one is made."""
        return next(other.data for other in self.places if other is not place and other.data.fileno() >= 0)

    def _take_totals(self, process: Process) -> None:
        """Keep what an ended process has counted: what it wrote down at its end, or, killed, what it said last."""
        if process.ended:
            return
        process.ended = True
        process.final.seek(0)
        text = process.final.read().decode("utf-8", "replace")
        process.final.close()
        totals: Exposition = {}
        for one in (self.ended, parse(text) if text else process.seen):
            add_totals(totals, one)
        self.ended = totals


async def supervise(
    settings: Settings,
    *,
    on_ready: Callable[[str, str, Tokens], None],
    stop: asyncio.Event,
    hurry: asyncio.Event,
    replace: asyncio.Event,
    reload: asyncio.Event,
) -> int:
    """Run the processes until `stop` is set; `hurry` cuts what still streams, `replace` replaces them one by one and
    `reload` has them read the policy again. `on_ready` gets the URLs of both listeners and the admin tokens.

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
        redis_url = await start_redis(settings, stack, log)
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
        on_ready(data, url_of(admin_socket), tokens)
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
