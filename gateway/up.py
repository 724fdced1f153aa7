"""`headrace up`: a whole fleet on this machine, for trying things out and for tests that want the real thing.

An embedded Valkey and the workers are children (`process.py`); every simulated worker is a process with an agent of its
own that reports through Valkey, exactly as on a GPU host. Real engines are the supervisor's, which is one child in the
place of these (`up_supervised.py`). The gateway runs inside this process: it starts while the workers do,
and there is one process less that could be left behind. Nothing is kept but the admin tokens, which the command line
looks for in the state directory, which other gateways of this host share: so they cannot go when this one does.
Whatever ends this process, SIGKILL included, ends the rest.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SecretStr

from gateway.admin.access import Role
from gateway.admin_client import get
from gateway.embedded import EmbeddedRedis
from gateway.listen import ListenError, listen
from gateway.process import Child, ChildError, describe_exit
from gateway.serve import Face as ServeFace
from gateway.serve import tell
from gateway.signals import ending_signals
from gateway.upkeep import keep_doing

if TYPE_CHECKING:
    from gateway.app import Addresses
    from gateway.settings import Settings
    from gateway.up_engines import Engines
    from gateway.up_supervised import Supervised

MODEL = "tiny"
WORKER_READY_S = 20.0
FLEET_READY_S = 10.0
FLEET_POLL_S = 0.05
GATEWAY_STOP_S = 5.0
STOP_CHILD_S = 3.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What the workers of one pool are started as."""

    prefix: str  # of their ids
    pool: str
    max_model_len: int  # tokens
    max_num_seqs: int


SHORT = Shape("short", "short-chat", 4096, 64)
LONG = Shape("long", "long-context", 32768, 16)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many workers, and how much faster than real ones they run."""

    short: int = 2
    long: int = 1
    speed: float = 1.0
    engines: Engines | None = None  # None: simulated ones

    @property
    def label(self) -> str:
        """What the workers are, in a word."""
        return "simulated" if self.engines is None else self.engines.label

    @property
    def model(self) -> str:
        """The name that they serve."""
        return MODEL if self.engines is None else self.engines.served_name

    def workers(self) -> list[tuple[str, Shape]]:
        """Id and shape of every worker."""
        counts = ((SHORT, self.short), (LONG, self.long))
        return [(f"{shape.prefix}-{n}", shape) for shape, count in counts for n in range(1, count + 1)]


class Face(ServeFace, Protocol):
    """Who tells the caller what happens. Each call is one thing to show."""

    def ready(
        self, addresses: Addresses, workers: Sequence[Mapping[str, Any]], took_s: float, label: str, model: str
    ) -> None:
        """Everything runs and the gateway sees every worker."""

    def progress(self, message: str) -> None:
        """It takes its time; so far it has come, in one line."""


async def run_up(plan: Plan, settings: Settings, face: Face) -> int:
    """Run the fleet until a signal ends it; returns the exit status. Everything it started has ended by then."""
    # Asked before anything starts: then a taken port costs nothing but the line.
    for address in (settings.listen, settings.admin):
        try:
            listen(address).close()
        except ListenError as error:
            face.trouble(str(error))
            return 1
    fleet = Fleet(plan, settings, face)
    session = asyncio.create_task(fleet.run())

    def interrupt() -> None:
        # A cancellation while it cleans up would cut that short.
        if fleet.stopping:
            fleet.hurry()
        else:
            session.cancel()

    with ending_signals(interrupt, fleet.hurry):
        await asyncio.wait({session})
        if session.cancelled():
            face.stopped()
            return 0
        fault = session.exception()
        assert fault is not None, "it ends by a signal or by an error"
        return tell(fault, face)


class Fleet:
    """The children and the gateway of one `headrace up`."""

    def __init__(self, plan: Plan, settings: Settings, face: Face) -> None:
        self._plan = plan
        self._settings = settings
        self._face = face
        self._children: list[Child] = []
        self._redis: EmbeddedRedis | None = None
        self._supervised: Supervised | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._gateway: asyncio.Task[int] | None = None
        self._stop_gateway = asyncio.Event()
        self._began = time.monotonic()
        self.stopping = False

    def hurry(self) -> None:
        """End the children now: whoever asks twice does not want to wait."""
        for child in self._children:
            child.kill()
        if self._gateway is not None:
            self._gateway.cancel()

    async def run(self) -> None:
        """Start everything, show it, watch it; ends by cancellation or by an error, with everything stopped."""
        try:
            await self._start()
            await self._watch()
        finally:
            await self._stop()

    async def _start(self) -> None:
        self._redis = valkey = await EmbeddedRedis.start(lambda event, why: self._face.trouble(why))
        self._keeping = asyncio.create_task(keep_doing(valkey.keep, "embedded-redis"))
        plan = self._plan
        if plan.engines is not None:
            self._supervised = await self._start_engines(plan.engines, valkey.url)
        else:
            for name, shape in plan.workers():
                await self._start_worker(name, shape, valkey.url)
        addresses = await self._start_gateway(valkey.url)
        if self._supervised is not None:
            await self._supervised.wait_ready()
        else:
            await asyncio.gather(*(worker.wait_ready(WORKER_READY_S) for worker in self._children))
        seen = await self._wait_fleet(addresses, {name for name, _ in plan.workers()})
        addresses = replace(addresses, redis=valkey.url)
        self._face.ready(addresses, seen, time.monotonic() - self._began, plan.label, plan.model)

    async def _start_worker(self, name: str, shape: Shape, redis_url: str) -> None:
        child = await Child.start(name, worker_argv(name, shape, self._plan.speed, redis_url, self._settings.fleet))
        self._children.append(child)

    async def _start_engines(self, engines: Engines, redis_url: str) -> Supervised:
        from gateway.up_engines import Place
        from gateway.up_supervised import Supervised

        places = [Place(name, shape.pool, shape.max_num_seqs, shape is LONG) for name, shape in self._plan.workers()]
        face = self._face
        started = await Supervised.start(engines, places, redis_url, self._settings.fleet, face.progress, face.trouble)
        self._children.append(started.child)
        return started

    async def _start_gateway(self, redis_url: str) -> Addresses:
        # Imported here: the workers start meanwhile, on another core.
        from gateway.app import serve

        ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        settings = self._settings.model_copy(update={"redis": SecretStr(redis_url)})
        self._gateway = asyncio.create_task(
            serve(settings, on_ready=ready.set_result, stop=self._stop_gateway, fresh=True)
        )
        either: set[asyncio.Future[Any]] = {ready, self._gateway}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise ChildError("gateway", f"ended with status {self._gateway.result()} before it was ready")
        return ready.result()

    async def _wait_fleet(self, addresses: Addresses, names: set[str]) -> list[Mapping[str, Any]]:
        """Wait until the gateway sees every worker ready, and return what it sees."""
        from gateway.start import start_tokens

        token = None
        if not self._settings.admin.is_loopback:
            token = start_tokens(self._settings).by_role[Role.VIEWER]
        deadline = time.monotonic() + FLEET_READY_S
        while True:
            for child in self._children:
                if child.returncode is not None:
                    raise ChildError(child.name, f"ended with {describe_exit(child.returncode)}", child.tail)
            fleet = await asyncio.to_thread(get, addresses.admin, "/admin/v1/fleet", token=token, timeout_s=1.0)
            seen = [worker for worker in fleet["workers"] if worker["id"] in names and worker["state"] == "ready"]
            if len(seen) == len(names):
                return sorted(seen, key=lambda worker: [name for name, _ in self._plan.workers()].index(worker["id"]))
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(names - {worker["id"] for worker in seen}))
                raise ChildError("gateway", f"does not see {missing} within {FLEET_READY_S:g} s")
            await asyncio.sleep(FLEET_POLL_S)

    async def _watch(self) -> None:
        """Tell of every child that ends, until the gateway does."""
        assert self._gateway is not None
        watched = {asyncio.ensure_future(child.wait()): child for child in self._children}
        try:
            while not self._gateway.done():
                done, _ = await asyncio.wait({*watched, self._gateway}, return_when=asyncio.FIRST_COMPLETED)
                for ended in done - {self._gateway}:
                    child = watched.pop(ended)
                    self._face.trouble(f"{child.name} (pid {child.pid}) ended with {describe_exit(ended.result())}")
        finally:
            for waiting in watched:
                waiting.cancel()
        raise ChildError("gateway", f"ended with status {self._gateway.result()}")

    async def _stop(self) -> None:
        """The gateway first, so that nobody is sent to a worker that has gone; then the children, all at once."""
        self.stopping = True
        self._stop_gateway.set()
        if self._gateway is not None:
            _, late = await asyncio.wait({self._gateway}, timeout=GATEWAY_STOP_S + self._settings.drain_s)
            if late:
                self._gateway.cancel()
                await asyncio.wait({self._gateway})
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._redis is not None:
            self._children.append(self._redis.child)
        try:
            await asyncio.gather(*(child.stop(self._grace_s(child)) for child in self._children))
        finally:
            if self._supervised is not None:
                self._supervised.remove()

    def _grace_s(self, child: Child) -> float:
        """The supervisor has engines to end, and these have families."""
        if self._supervised is not None and child is self._supervised.child:
            from gateway.up_supervised import STOP_S

            return STOP_S
        return STOP_CHILD_S


def worker_argv(name: str, shape: Shape, speed: float, redis_url: str, fleet: str) -> list[str]:
    """The command line of one simulated worker. `-P`: a directory that we happen to be in must not hide a package."""
    options = {
        "id": name,
        "pool": shape.pool,
        "model": MODEL,
        "max-model-len": str(shape.max_model_len),
        "max-num-seqs": str(shape.max_num_seqs),
        "speed": f"{speed:g}",
        "redis": redis_url,
        "fleet": fleet,
    }
    argv = [sys.executable, "-P", "-m", "workers.engines.simulator_cli", "--json"]
    for option, value in options.items():
        argv += [f"--{option}", value]
    return argv
