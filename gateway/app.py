"""The composition root: the only place that builds everything, in the order in which it must start and stop."""

from __future__ import annotations

import asyncio
import platform
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gateway.admin.access import Role, Tokens
from gateway.admin.listener import serve_admin
from gateway.admin.server import AdminPorts, build_admin
from gateway.admission import Admission
from gateway.compiled import in_use
from gateway.control import Control
from gateway.cors import CorsGate
from gateway.dispatcher import Dispatcher
from gateway.fleet_sync import FleetSync
from gateway.guarded_gate import GuardedGate
from gateway.http.server import DataServer
from gateway.http.upstream import UpstreamPool
from gateway.keys_shared import SharedKeys
from gateway.learned_state import LearnedState
from gateway.learning import Learning
from gateway.listen import listen, url_of
from gateway.log import Log
from gateway.metrics import CONNECTIONS_REFUSED, ERRORS, QUARANTINED, REDIS_ERRORS, Metrics
from gateway.poison import PoisonGuard
from gateway.poison_sync import PoisonSync
from gateway.policy_store import Current
from gateway.readiness import Readiness
from gateway.recent import Recent
from gateway.redis_link import RedisLink
from gateway.replica import Replica
from gateway.scheduling.model import WorkerChange, WorkerState
from gateway.scheduling.scheduler import Scheduler
from gateway.serve import Inherited
from gateway.settings import Settings
from gateway.start import (
    background,
    check_keys,
    http_limits,
    on_hangup,
    settle_memory,
    start_connections,
    start_edge,
    start_keys,
    start_log,
    start_redis,
    start_tokens,
)
from gateway.telemetry import Telemetry
from gateway.upkeep import keep_doing, sample_lag, watch_keys

QUEUE_GRACE_S = 10.0
"""How long what waits may still find a worker after the stop signal."""

ADMIN_STOP_S = 1.0
ACCEPT_S = 5.0
"""How long connections are still taken after the stop signal, where somebody watches `/readyz`."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running gateway is reached. `tokens`: those of the admin plane that were made just now, by role; they
    are shown this once. `kept_in`: the directory that has them, None for none. `redis`: where workers report that are
    added by hand, of a fleet that has a Redis of its own."""

    data: str
    admin: str
    tokens: Mapping[Role, str] = field(default_factory=dict, repr=False)
    kept_in: Path | None = None
    redis: str | None = None

    @property
    def dashboard(self) -> str:
        """What to open in a browser."""
        return f"{self.admin}/dashboard"


async def serve(
    settings: Settings,
    *,
    on_ready: Callable[[Addresses], None],
    stop: asyncio.Event,
    fresh: bool = False,
    inherited: Inherited | None = None,
) -> int:
    """Run the gateway until `stop` is set and its streams have ended; returns the exit status.

    `fresh`: whoever calls has started the Redis just now. `inherited`: this is one of several processes. Raises
    `PolicyError`, `StartError`, `OSError` (a port is taken) or `ChildError` when it cannot start. Cancelling it cuts
    what still streams, with an error event each, and ends.
    """
    async with AsyncExitStack() as stack:
        # The sockets first, so that a taken port leaves nothing half-started.
        data_socket = stack.enter_context(inherited.data if inherited else listen(settings.listen))
        admin_socket = stack.enter_context(inherited.admin if inherited else listen(settings.admin))
        tokens = start_tokens(settings)
        if settings.listen.is_unix and inherited is None:
            stack.callback(Path(settings.listen.host).unlink, missing_ok=True)
        data = url_of(data_socket, tls=settings.tls_cert is not None)
        addresses = Addresses(data, url_of(admin_socket), tokens.made, tokens.kept_in)
        log = start_log(settings)
        stack.callback(log.close)
        redis_url = await start_redis(settings, stack, log)
        gateway = Gateway(settings, log, redis_url, fresh=inherited.fresh if inherited else fresh)
        await gateway.start(stack)
        await gateway.start_admin(stack, admin_socket, tokens)
        await gateway.start_data(stack, data_socket)
        if settings.policy is not None:
            on_hangup(stack, gateway.control.reload)
        settle_memory(stack)
        log.event("started", data=addresses.data, admin=addresses.admin, redis=settings.redis_mode, compiled=in_use())
        on_ready(addresses)
        await stop.wait()
        await gateway.drain()
        if inherited is not None:
            inherited.at_end(gateway.exposition())
        log.event("stopped")
    return 0


class Gateway:
    """Everything that runs, and how the parts hear of each other."""

    def __init__(self, settings: Settings, log: Log, redis_url: str | None, *, fresh: bool = False) -> None:
        self._settings = settings
        self._log = log
        self._clock = time.monotonic
        self._connections = start_connections(settings)
        self._edge = start_edge(settings)
        self._began = time.monotonic()
        self.link = None
        if redis_url is not None:
            self.link = RedisLink(
                redis_url, clock=self._clock, on_change=self._redis_changed, on_error=self._redis_failed
            )
        self.metrics = Metrics()
        self.control = Control(settings, log, self.link, self.metrics, self._adopted)
        self.policy = self.control.policy
        self.keys = start_keys(settings)
        self.shared_keys = SharedKeys(self.link, settings.fleet, self.keys) if self.link is not None else None
        policy = self.policy.current().policy
        self.metrics.adopt(policy)
        self.recent = Recent()
        self.learning = Learning()
        told = self.control.watch(self.recent)
        self.replica = Replica(settings, redis_url, clock=self._clock, log=log, on_error=self._redis_failed, then=told)
        self.dispatcher = Dispatcher(
            Scheduler(policy, random.Random()),
            clock=self._clock,
            timers=asyncio.get_running_loop(),
            on_change=self._worker_changed,
            on_error=self._unexpected,
            watch=self.replica.watch,
        )
        self.fleet = FleetSync(
            settings.workers,
            settings.fleet,
            dispatcher=self.dispatcher,
            make_pool=self._make_pool,
            link=self.link,
            metrics=self.metrics,
            log=log,
            tls=self._edge.worker_tls,
        )
        self.control.know(self.dispatcher, self.fleet)
        self.replica.join(
            self.dispatcher,
            lambda: self.policy.current().policy.redis_loss,
            fresh=fresh or settings.redis_mode == "embedded",
        )
        warning, blocked = self._warning, self.replica.blocked
        self.ready = Readiness(self.dispatcher, self.link, self._clock, self.policy, warning, blocked)
        self.admission = Admission(
            self.policy,
            self.keys,
            self.learning.calibration,
            self.learning.outputs,
            self._fleet_models,
            self._clock,
            self.ready.probe,
            self.control.trials,
        )
        self.poison = PoisonGuard(self.fleet.pools, self._clock, self._quarantined)
        self.replica.adopt(policy)
        self.learned = LearnedState(
            self.learning,
            self.link,
            settings.fleet,
            None if settings.ephemeral else settings.state_dir,
            log,
            self.replica.gateways,
        )
        gate = GuardedGate(
            self.admission,
            self.metrics,
            self.replica.quota,
            self.poison,
            self.replica.pressure,
            self.control.traffic,
            clock=self._clock,
        )
        self.server = DataServer(
            gate=CorsGate(gate, settings.cors_origins) if settings.cors_origins else gate,
            dispatcher=self.dispatcher,
            upstreams=self.fleet.pools,
            telemetry=Telemetry(self.metrics, log, self.recent, self.learning, self.replica.quota, self.control),
            limits=http_limits(policy, self._connections),
            on_error=self._unexpected,
            on_crowd=self._crowded,
            on_reset=self.poison.on_reset,
            longest_context=lambda model: self._fleet_models().get(model),
        )

    # -- start -----------------------------------------------------------------------------------------------------

    async def start(self, stack: AsyncExitStack) -> None:
        """The parts without a listener."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_error)
        stack.callback(loop.set_exception_handler, None)
        stack.callback(self.dispatcher.stop)
        if self.link is not None:
            stack.push_async_callback(self.link.close)
        stack.push_async_callback(self.fleet.stop)
        stack.push_async_callback(self.poison.close)
        await check_keys(self._settings, self.keys, self.shared_keys)
        await self.control.start(stack)
        await self.learned.load()
        stack.push_async_callback(self.learned.save)
        background(stack, self.learned.run(), "save-learned")
        await self.fleet.start()
        await self.replica.start(stack, self.link, self.ready, self.learned.gateways)
        if self.link is not None:
            poison = PoisonSync(self._settings.fleet, self.link, self.poison, self._clock, self._log)
            background(stack, keep_doing(poison.run, "poison"), "poison")
        background(stack, sample_lag(self.metrics, self._clock, self.replica.pressure.late), "sample-lag")
        background(stack, watch_keys(self.keys, self.shared_keys, self._log), "watch-keys")

    async def start_admin(self, stack: AsyncExitStack, sock: Any, tokens: Tokens) -> None:
        """The admin listener."""
        loopback = self._settings.admin.is_loopback
        ports = AdminPorts(
            self.dispatcher,
            self.fleet,
            self.control,
            self.metrics,
            self.recent,
            self.keys,
            self._settings.keys_file,
            self.shared_keys,
            self.ready,
            self._facts,
            self._fill_gauges,
            self.ready.probe,
        )
        app = build_admin(ports, tokens, loopback=loopback)
        await serve_admin(stack, app, sock, stop_s=ADMIN_STOP_S)

    async def start_data(self, stack: AsyncExitStack, sock: Any) -> None:
        """The data listener: last, when everything that a request needs is there."""
        stack.push_async_callback(self.server.drain, 0.0)
        await self.server.start(sock=sock, ssl=self._edge.tls, trust=self._edge.trust)

    # -- stop ------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Let what runs end: not ready at once; what waits gets a worker within `QUEUE_GRACE_S` or is refused; streams
        may run for `drain_s`, then they get an error event."""
        self.ready.draining = True
        # Who asks /readyz learns of it with the next probe, and sends connections until then.
        accept_s = min(ACCEPT_S, self._settings.drain_s) if self.ready.watched else 0.0
        self._log.event("draining", drain_s=self._settings.drain_s, accept_s=accept_s)
        patience = asyncio.create_task(self._close_queue(min(QUEUE_GRACE_S, self._settings.drain_s)))
        try:
            await self.server.drain(self._settings.drain_s, accept_s)
        finally:
            patience.cancel()
            self.dispatcher.close()

    async def _close_queue(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        self.dispatcher.close()

    # -- how the parts hear of each other --------------------------------------------------------------------------

    def _adopted(self, current: Current) -> None:
        policy = current.policy
        self.metrics.adopt(policy)
        self.dispatcher.adopt(policy)
        self.replica.adopt(policy)
        self.server.limits = http_limits(policy, self._connections)
        for known in self.fleet.workers().values():
            known.connections.connect_s = policy.timeouts.connect_s

    def _worker_changed(self, change: WorkerChange) -> None:
        self._log.event("worker", worker=change.worker, state=str(change.state), why=change.why)
        self.replica.worker_changed(change)
        self.control.worker_changed(change)

    def _quarantined(self, workers: Sequence[str]) -> None:
        self.metrics.count(QUARANTINED)
        self._log.event("request_quarantined", workers=list(workers), why="these workers were lost under one request")

    def _crowded(self, first: bool) -> None:
        self.metrics.count(CONNECTIONS_REFUSED)
        if first:
            cure = "clients are turned away until some leave; allow more by max_connections and ulimit -n"
            self._log.event("connections_full", limit=self._connections, why=cure)

    def _warning(self) -> str:
        return "; ".join(each for each in (self.control.warning(), self.replica.warning()) if each)

    def _redis_changed(self, up: bool, why: str) -> None:
        self._log.event("redis_up" if up else "redis_down", why=why)

    def _redis_failed(self, kind: str) -> None:
        self.metrics.count(REDIS_ERRORS, kind)

    def _make_pool(self, worker_id: str, url: str, token: str | None) -> UpstreamPool:
        return UpstreamPool(
            worker_id,
            url,
            token=token,
            connect_s=self.policy.current().policy.timeouts.connect_s,
            make_room=self.fleet.close_idle,
            ssl=self._edge.worker_tls,
        )

    def _fleet_models(self) -> dict[str, int | None]:
        """Models of the workers that may get requests now or soon, with the longest context of any."""
        found: dict[str, int | None] = {}
        for worker in self.dispatcher.snapshot().workers:
            if worker.state is WorkerState.GONE:
                continue
            for model in worker.models:
                before, length = found.get(model), worker.max_model_len
                found[model] = length if before is None else before if length is None else max(before, length)
        return found

    # -- what others read ------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        link = self.link
        return {
            "version": version("headrace"),
            "fleet": self._settings.fleet,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "redis": {
                "mode": self._settings.redis_mode,
                "up": link.up if link is not None else None,
                "why": link.why if link is not None else "not used",
            },
        }

    def exposition(self) -> bytes:
        """The metrics as they are now, in the text format."""
        self._fill_gauges()
        return self.metrics.expose("text/plain")[0]

    def _fill_gauges(self) -> None:
        current, gauges, stats = self.policy.current(), self.metrics.gauges, self.server.stats()
        gauges.fleet = self.dispatcher.snapshot()
        gauges.classes = tuple(each.name for each in current.policy.classes)
        gauges.connections = stats.connections
        gauges.exchanges = stats.busy
        gauges.ready = self.ready()[0]
        self.replica.fill(gauges)
        gauges.redis_up = self.link is None or self.link.up is not False
        gauges.revision = current.revision.number
        gauges.policy_lag_s = self.policy.lag_s()
        gauges.log_dropped = self._log.dropped
        gauges.build = (version("headrace"), platform.python_version())

    # -- what nobody expected --------------------------------------------------------------------------------------

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self._unexpected(error)
        else:
            self.metrics.count(ERRORS)
            self._log.event("internal_error", what=str(context.get("message")))

    def _unexpected(self, error: BaseException) -> None:
        """Count it and say where it was; never what the values were, they may be a request's."""
        self.metrics.count(ERRORS)
        places = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        self._log.event("internal_error", what=type(error).__name__, at=places[-8:])
