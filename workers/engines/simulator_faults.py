"""Faults of a simulated engine, switched on over its admin port while it serves.

`POST /fault {"mode": …}` with `count` (requests it applies to, then it is over; absent: until switched off):

| mode | what clients see |
|---|---|
| none | nothing; ends the fault before |
| refuse | connections are refused, idle ones closed; what is in flight goes on |
| hang | no byte is answered to anything, running streams stand still |
| stall | HTTP works, the engine makes no more tokens |
| slow | every step takes `factor` times as long |
| error500, busy503 | generation is answered so; `retry_after` adds the header |
| status | generation is answered with `status` |
| error_event | a stream fails with an error event after `after_tokens` tokens, others with 503 |
| cut | the connection is reset after `after_tokens` tokens |

`GET /state` tells what the engine is doing and has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from workers.engines.simulator_http import Connection, Exchange
from workers.engines.simulator_requests import ApiError, busy, dead

if TYPE_CHECKING:
    from workers.engines.simulator import Simulator
    from workers.engines.simulator_jobs import Job

MODES: Final = (*("none", "refuse", "hang", "stall", "slow", "error500", "busy503", "status", "error_event", "cut"),)
IDLE_S: Final = 60.0  # an admin connection may rest that long
_PER_REQUEST: Final = ("error500", "busy503", "status", "error_event", "cut")
_ANSWERED: Final = ("error500", "busy503", "status")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    mode: str = "none"
    count: int | None = None
    retry_after: float | None = None
    after_tokens: int = 0
    factor: float = 10.0
    status: int = 500

    @staticmethod
    def parse(data: Mapping[str, Any]) -> Fault:
        """A fault from its JSON form. Raises ValueError naming what is wrong."""
        unknown = set(data) - set(Fault.__dataclass_fields__)
        if unknown:
            raise ValueError(
                f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(Fault.__dataclass_fields__)}"
            )
        fault = Fault(**data)
        if fault.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {fault.mode!r}")
        for name, least in (("count", 1), ("retry_after", 0), ("after_tokens", 0), ("factor", 0.001), ("status", 400)):
            value = getattr(fault, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < least):
                raise ValueError(f"{name} must be a number of at least {least}, got {value!r}")
        if fault.count is not None and fault.mode not in _PER_REQUEST:
            raise ValueError(f"count means nothing for {fault.mode}")
        return fault


class Faults:
    """The fault that is on."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.fault = Fault()
        self._left: int | None = None
        self._held: list[Exchange] = []

    async def switch(self, fault: Fault) -> None:
        """Replace the fault that is on."""
        simulator = self._simulator
        self.fault = fault
        self._left = fault.count
        simulator.core.slowdown = fault.factor if fault.mode == "slow" else 1.0
        simulator.engine.pause(fault.mode in ("hang", "stall"))
        if fault.mode == "refuse":
            simulator.stop_listening()
            for connection in list(simulator.connections):
                connection.close_idle()
        else:
            await simulator.listen()
        if fault.mode != "hang":
            held, self._held = self._held, []
            for exchange in held:
                if not exchange.ended and not self.intercept(exchange):
                    simulator.answer(exchange)

    def intercept(self, exchange: Exchange) -> bool:
        """Answer, or hold, a request in the engine's stead. False: there is nothing wrong with it."""
        fault = self.fault
        if fault.mode == "hang":
            self._held = [held for held in self._held if not held.ended]
            self._held.append(exchange)
            return True
        if fault.mode not in _ANSWERED or exchange.method != "POST" or not exchange.path.startswith("/v1/"):
            return False
        self._spend()
        status = fault.status if fault.mode == "status" else 0
        error = {"busy503": busy(), "error500": dead()}.get(fault.mode) or ApiError(
            status, f"simulated status {status}", "SimulatedError"
        )
        retry = () if fault.retry_after is None else ((b"retry-after", f"{fault.retry_after:g}".encode()),)
        exchange.respond(error.status, error.body(), headers=retry)
        self._simulator.metrics.count_http(exchange.path, exchange.method, error.status)
        return True

    def arm(self, job: Job) -> None:
        """Let a request that is taken up meet its fault later."""
        fault = self.fault
        if fault.mode == "cut":
            job.cut_after = fault.after_tokens
        elif fault.mode == "error_event":
            job.error_after = (fault.after_tokens, busy() if fault.after_tokens == 0 else dead())
        else:
            return
        self._spend()

    def _spend(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.fault = Fault()


def state(simulator: Simulator) -> dict[str, Any]:
    """What an engine is doing and has seen."""
    core = simulator.core
    return {
        "running": len(core.running),
        "waiting": core.waiting,
        "requests": len(simulator.jobs),
        "kv_usage": core.pool.usage,
        "kv_used_tokens": core.pool.used * core.config.block_size,
        "kv_tokens": core.pool.capacity * core.config.block_size,
        "max_kv_used_tokens_seen": simulator.max_kv_blocks * core.config.block_size,
        "aborted": simulator.aborted,
        "max_concurrent_seen": simulator.max_concurrent,
        "max_running_seen": simulator.max_running,
        "requests_total": simulator.requests_total,
        "generations_total": simulator.generations_total,
        "preemptions": core.preemptions,
        "prompt_tokens": core.prompt_tokens,
        "generated_tokens": core.generated_tokens,
        "prefix_queries": core.prefix_queries,
        "prefix_hits": core.prefix_hits,
        "connections": len(simulator.connections),
        "fault": asdict(simulator.faults.fault),
        "url": simulator.url,
    }


class AdminServer:
    """The admin port of one simulated engine."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._switching: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address is taken."""
        factory = partial(Connection, self._handle, self._connections, self._simulator.date, IDLE_S)
        self._server = await asyncio.get_running_loop().create_server(factory, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close the port and its connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cut(reset=False)

    def _handle(self, exchange: Exchange) -> None:
        if (exchange.method, exchange.path) == ("GET", "/state"):
            exchange.respond(200, orjson.dumps(state(self._simulator)))
        elif (exchange.method, exchange.path) == ("POST", "/fault"):
            self._fault(exchange)
        else:
            exchange.respond(404, b'{"error":"there are GET /state and POST /fault"}')

    def _fault(self, exchange: Exchange) -> None:
        try:
            data = orjson.loads(exchange.body)
            if not isinstance(data, dict):
                raise ValueError("a fault is a JSON object")
            fault = Fault.parse(data)
        except ValueError as error:
            exchange.respond(400, orjson.dumps({"error": str(error)}))
            return
        task = asyncio.get_running_loop().create_task(self._switch(exchange, fault))
        self._switching.add(task)
        task.add_done_callback(self._switching.discard)

    async def _switch(self, exchange: Exchange, fault: Fault) -> None:
        try:
            await self._simulator.faults.switch(fault)
        except OSError as error:
            exchange.respond(500, orjson.dumps({"error": f"cannot listen again: {error}"}))
        else:
            exchange.respond(200, orjson.dumps(asdict(fault)))
