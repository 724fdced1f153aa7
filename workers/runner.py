"""One instance from start to end: process, agent, readiness, warm-up, drain. It tells its life to the supervisor.

A worker is registered as ready only after it has answered a real request and run its warm-up prompts; it leaves the
other way round: no new requests, then none running, then SIGTERM, then SIGKILL for all of its family.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from workers.agent import FAREWELL_S, AgentTarget, Control, run_agent
from workers.engines.adapters import ADAPTERS
from workers.instances import Instance, WorkersFile
from workers.launch import Start, device_kind, start_of
from workers.ledger import NOTHING_PLANNED, MemoryLedger
from workers.leftovers import StateDir
from workers.lifecycle import Event, Life, State
from workers.listener import listen
from workers.portplan import claims_of
from workers.probe import NotAnsweredError, Probe
from workers.process import EngineProcess, ProcessError, describe_exit
from workers.report import WorkerReport
from workers.report_link import ReportLink
from workers.settings import child_environment
from workers.watchdog import Watchdog
from workers.weights import fingerprint

READY_PROMPT = "Hi"
ASK_FIRST_S = 0.1
ASK_MOST_S = 2.0
PUBLISH_S = 2.0  # for Redis to take the word "draining"
SETTLE_S = 1.5  # gateways look at reports twice a second; what they sent before that is on its way
IDLE_LOOKS = 2
IDLE_POLL_S = 0.25
SILENT_LOOKS = 5  # an engine that does not even show its metrics will not finish anything

log = logging.getLogger("headrace.supervisor")


class NotReadyError(RuntimeError):
    """An instance did not become ready in time; one line."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all instances of a supervisor share."""

    file: WorkersFile
    fleet: str
    state: StateDir
    redis: ReportLink
    token: str | None
    interval_s: float
    settle_s: float = SETTLE_S
    farewell_s: float = FAREWELL_S
    memory: MemoryLedger = NOTHING_PLANNED


class Runner:
    """One worker: an instance under one id. `tell` carries events to whoever keeps the lives."""

    def __init__(
        self, worker_id: str, spec: Instance, around: Surroundings, tell: Callable[[Runner, Event, str], None]
    ) -> None:
        self.id = worker_id
        self.spec = spec
        self.life = Life(worker_id, spec.device)
        self.process: EngineProcess | None = None
        self.report: WorkerReport | None = None
        self.control = Control("starting", spec.pool)
        self.planned = around.memory.planned(spec.name)
        self._around = around
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()  # the process is there, or could not be started
        self._changed = asyncio.Event()
        self._published: str | None = None  # the state that Redis has
        self._report_seen = asyncio.Event()
        self._watchdog = Watchdog(spec.hang_timeout_s)
        self._hung: asyncio.Future[str] | None = None  # why it hangs, of this start

    def __repr__(self) -> str:
        return f"<Runner {self.id} {self.life.state} {self.process}>"

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port it may bind."""
        return tuple(port for claim in claims_of(self.spec) for port in range(claim.first, claim.last + 1))

    def set_life(self, life: Life) -> None:
        """The supervisor's word on where it is now."""
        self.life = life
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_state(self, states: Iterable[State]) -> State:
        """Wait until it is in one of `states`."""
        wanted = frozenset(states)
        while self.life.state not in wanted:
            await self._changed.wait()
        return self.life.state

    def start(self) -> None:
        """Begin; the supervisor has told START."""
        self._begun = asyncio.Event()
        self.control = Control("starting", self.control.pool)
        self._task = asyncio.create_task(self._live(), name=f"instance {self.id}")
        self._task.add_done_callback(self._over)

    async def stop(self, *, drain: bool = True) -> None:
        """End it, in order; returns when nothing of it runs. For one that does not run it only says so."""
        if drain and self.life.state is State.READY:
            self._tell(self, Event.DRAIN, "")
            await self._drain()
        if self.life.state in {State.PENDING, State.FAILED}:
            self._tell(self, Event.STOP, "")
        elif self.life.running:
            self._serve_no_more()
            if not self._is(State.STOPPING):  # else somebody began and did not see the end of it
                self._tell(self, Event.STOP, "")
            await self._begun.wait()
            if self.process is not None:
                await self.process.stop(self.spec.stop_grace_s)
        if self._task is not None:
            await asyncio.wait({self._task})

    def kill(self) -> None:
        """No patience any more: SIGKILL for all of its family."""
        if self.process is not None:
            self.process.kill()

    # -- from start to end -----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            process, start = await self._begin()
        except (ProcessError, OSError) as error:
            self._begun.set()
            self._tell(self, Event.EXIT, str(error))
            return
        self.process = process
        self._begun.set()
        self._watchdog = Watchdog(self.spec.hang_timeout_s)
        self._hung = asyncio.get_running_loop().create_future()
        stop_agent = asyncio.Event()
        agent = asyncio.create_task(self._report(start, stop_agent), name=f"agent {self.id}")
        up = asyncio.create_task(self._come_up(start), name=f"readiness {self.id}")
        ended = asyncio.create_task(process.wait())
        why = ""
        try:
            await asyncio.wait({up, ended}, return_when=asyncio.FIRST_COMPLETED)
            failed = None if ended.done() else up.exception()
            if failed is not None:
                why = str(failed) if isinstance(failed, NotReadyError) else f"{type(failed).__name__}: {failed}"
            else:
                either: set[asyncio.Future[Any]] = {ended, self._hung}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                why = self._hung.result() if self._hung.done() else ""
            if why:
                self._serve_no_more()
                await process.stop(self.spec.stop_grace_s)
            code = await ended
        finally:
            up.cancel()
            stop_agent.set()
            await asyncio.wait({agent, up})
        last = next((line.strip() for line in reversed(process.tail()) if line.strip()), "")
        self.process = None
        self._tell(self, Event.EXIT, why or f"ended with {describe_exit(code)}" + (f": {last[:200]}" if last else ""))

    def _over(self, task: asyncio.Task[None]) -> None:
        """A fault of ours must not leave an instance that nobody looks after."""
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": f"instance {self.id} failed", "exception": error}
            task.get_loop().call_exception_handler(context)
            self.kill()
            self._begun.set()
            if self.life.running:
                self._tell(self, Event.EXIT, f"{type(error).__name__}: {error}")

    async def _begin(self) -> tuple[EngineProcess, Start]:
        directory = self._around.state.path / "instances" / self.id
        start = start_of(self.spec, self._around.file, str(directory), self.planned)
        await asyncio.to_thread(_write_files, directory, start)
        process = await EngineProcess.start(
            self.id,
            start.argv,
            env=child_environment(start.environment),
            state=self._around.state,
            ports=self.ports,
        )
        return process, start

    async def _come_up(self, start: Start) -> None:
        """Wait for a real answer, then warm up. Raises `NotReadyError`."""
        loop = asyncio.get_running_loop()
        last, pause = "nothing answered", ASK_FIRST_S
        try:
            async with asyncio.timeout(self.spec.start_timeout_s), self._probe(start) as probe:
                while True:
                    try:
                        await probe.ask(READY_PROMPT)
                        break
                    except NotAnsweredError as error:
                        last = str(error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, ASK_MOST_S)
                if not self._is(State.STARTING):
                    return  # told to stop meanwhile
                self._tell(self, Event.ANSWER, "")
                began = loop.time()
                for prompt in self.spec.warmup_prompts:
                    try:
                        await probe.ask(prompt)
                    except NotAnsweredError as error:
                        log.warning("%s: a warm-up prompt of %d characters: %s", self.id, len(prompt), error)
        except TimeoutError as error:
            raise NotReadyError(f"not ready within {self.spec.start_timeout_s:g} s: {last}") from error
        if self._is(State.WARMING):
            self.control.tell(None)
            self._tell(self, Event.WARM, f"warmed in {loop.time() - began:.1f} s")

    def _probe(self, start: Start) -> Probe:
        spec = self.spec
        return Probe(ADAPTERS[spec.engine], spec.url, spec.served_name, start.metrics_url, self._around.token)

    async def _drain(self) -> None:
        """No new requests; return when none is left, or when that is not to be waited for any longer."""
        self.control.tell("draining")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.spec.drain_timeout_s
        told = loop.time() + PUBLISH_S
        while self._published != "draining" and self._is(State.DRAINING) and loop.time() < told:
            await self._next_report(told - loop.time())
        await asyncio.sleep(min(self._around.settle_s, max(0.0, deadline - loop.time())))
        idle = silent = 0
        start = start_of(self.spec, self._around.file, "")
        async with self._probe(start) as probe:
            while idle < IDLE_LOOKS and silent < SILENT_LOOKS and self._is(State.DRAINING):
                if loop.time() > deadline:
                    log.warning("%s: requests still run after %g s of draining", self.id, self.spec.drain_timeout_s)
                    return
                try:
                    reading = await probe.read()
                    idle = idle + 1 if reading.running + reading.waiting == 0 else 0
                    silent = 0
                except NotAnsweredError:
                    silent += 1
                await asyncio.sleep(IDLE_POLL_S)

    # -- what the gateways are told --------------------------------------------------------------------------------

    def _serve_no_more(self) -> None:
        """It will be ended, and there is no time to drain: at least nothing new comes to it."""
        if self._is(State.READY):
            self.control.tell("draining")

    async def _report(self, start: Start, stop: asyncio.Event) -> None:
        spec, around = self.spec, self._around
        target = AgentTarget(
            id=self.id,
            url=spec.url if around.file.shared.advertise is None else _advertised(spec, around.file.shared.advertise),
            pool=self.control.pool,
            fleet=around.fleet,
            max_model_len=spec.max_model_len,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            supports_priority=spec.priority_scheduling and ADAPTERS[spec.engine].supports_priority,
            token=around.token,
            metrics_url=start.metrics_url,
            devices=spec.device,
            device_kind=device_kind(spec, around.file) if spec.device else "",
            weights=await asyncio.to_thread(fingerprint, spec.model_path),
        )
        listener = await self._listen()
        try:
            await run_agent(
                ADAPTERS[spec.engine],
                target,
                around.redis,
                stop,
                around.interval_s,
                on_report=self._reported,
                control=self.control,
                farewell_s=around.farewell_s,
            )
        except Exception as error:
            # Without its agent the engine serves nobody; the loop's handler tells, and the engine is started anew.
            context = {"message": f"the agent of {self.id} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self.kill()
        finally:
            self._published = None
            if listener is not None:
                await listener.cleanup()

    def _reported(self, report: WorkerReport, taken: bool) -> None:
        self.report = report
        if taken:
            self._published = report.state
        self._report_seen.set()
        if self._is(State.READY):
            hangs = self._watchdog.observe(report, asyncio.get_running_loop().time())
            if hangs is not None and self._hung is not None and not self._hung.done():
                log.warning("%s: %s; it is ended", self.id, hangs)
                self._hung.set_result(hangs)

    async def _next_report(self, within_s: float) -> None:
        self._report_seen.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._report_seen.wait()
        except TimeoutError:
            log.info("%s: Redis does not take its reports", self.id)

    def _is(self, state: State) -> bool:
        return self.life.state is state

    async def _listen(self) -> web.AppRunner | None:
        port = self.spec.agent_port
        if port is None:
            return None
        try:
            return await listen(self.spec.host, port, self._shown)
        except OSError as error:
            log.warning("%s: no metrics of its own: %s:%d: %s", self.id, self.spec.host, port, error.strerror)
            return None

    def _shown(self) -> tuple[WorkerReport, Life]:
        blank = WorkerReport(self.id, "none", 0, self.spec.url, self.spec.engine, self.spec.pool, (), "starting")
        return self.report or blank, self.life


def _advertised(spec: Instance, host: str) -> str:
    return spec.model_copy(update={"host": host}).url


def _write_files(directory: Path, start: Start) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, body in start.files.items():
        fresh = directory / f"{name}.new"
        fresh.write_bytes(body)
        fresh.replace(directory / name)
