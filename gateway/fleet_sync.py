"""Which workers there are: those the settings name and those that report through Redis, told to the scheduler.

One registry of known workers feeds the dispatcher and owns one pool of upstream connections a worker. Redis and the
engines are asked by background tasks; nothing here is on a request's path. A worker of the settings needs nobody's
answer when the settings say what it serves. Where both know a worker, the settings win over its report.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import aiohttp

from gateway.advice import Advice
from gateway.engine_facts import EngineFacts, NoAnswer, ask
from gateway.fleet_reports import read_reports
from gateway.metrics import BAD_REPORTS, PROBES
from gateway.reports import ReportBook
from gateway.scheduling.model import Signal, WorkerSpec
from gateway.upkeep import keep_doing
from workers.report import socket_of

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.http.upstream import UpstreamPool
    from gateway.log import Log
    from gateway.metrics import Metrics
    from gateway.redis_link import RedisLink
    from gateway.settings import StaticWorker
    from workers.report import WorkerReport

POLL_S = 0.5
ASK_TIMEOUT_S = 2.0
FIRST_ASK_S = 2.0  # how long the start waits for engines that have to say what they serve, all asked at once
ASK_MIN_S = 0.25
ASK_MAX_S = 10.0
ASK_AGAIN_S = 10.0  # models come and go on a running engine
DEFAULT_BATCHED_TOKENS = 2048

MakePool = Callable[[str, str, str | None], "UpstreamPool"]
"""Makes the connections to one worker from its id, its URL and its token."""


@dataclass(slots=True)
class Known:
    """One worker as the gateway knows it. `facts` is what the settings and the engine say, `report` what it reports."""

    id: str
    url: str
    connections: UpstreamPool
    static: StaticWorker | None = None
    facts: EngineFacts | None = None
    report: WorkerReport | None = None
    drained: bool = False  # because its report says so

    @property
    def source(self) -> str:
        """Who told us of it."""
        if self.static is None:
            return "redis"
        return "settings" if self.report is None else "settings+redis"

    def spec(self) -> WorkerSpec:
        """Settings first, then the report, then what the engine said when asked."""
        static, facts, report = self.static, self.facts, self.report
        said = report.models if report is not None else ()
        models = (static.models if static else ()) or said or (facts.models if facts else ())

        def first(name: str) -> int | None:
            for source in (static, report, facts):
                value: int | None = getattr(source, name, None)
                if value is not None:
                    return value
            return None

        batched = static.max_num_batched_tokens if static else None
        return WorkerSpec(
            id=self.id,
            pool=static.pool if static else report.pool if report else "",
            models=frozenset(models),
            max_model_len=first("max_model_len"),
            max_num_seqs=first("max_num_seqs"),
            kv_tokens=first("kv_tokens"),
            max_num_batched_tokens=batched or (report and report.max_num_batched_tokens) or DEFAULT_BATCHED_TOKENS,
            incarnation=report.incarnation if report else facts.started if facts else "",
            preset=(static.preset if static else None) or (report.preset if report else None),
        )


class FleetSync:
    """The registry of workers and the tasks that keep it."""

    def __init__(
        self,
        static: Sequence[StaticWorker],
        fleet: str,
        *,
        dispatcher: Dispatcher,
        make_pool: MakePool,
        link: RedisLink | None,
        metrics: Metrics,
        log: Log,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._static = static
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._make_pool = make_pool
        self._link = link
        self._metrics = metrics
        self._log = log
        self._book = ReportBook()
        self._known: dict[str, Known] = {}
        self.pools: dict[str, UpstreamPool] = {}
        """The connections to each known worker, by its id; asked for every attempt."""
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions: dict[str | None, aiohttp.ClientSession] = {}  # by unix socket; None: over TCP

    # -- reading ---------------------------------------------------------------------------------------------------

    def workers(self) -> Mapping[str, Known]:
        """Every known worker by id."""
        return self._known

    def report_age_s(self, worker_id: str) -> float | None:
        """Seconds since something new came from this worker, while Redis answered; None: it does not report."""
        return self._book.silent_s(worker_id)

    def advice(self) -> list[Advice]:
        """What stands out in the reports of the last minutes."""
        return self._book.history.advice()

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Know the workers of the settings that need no question, ask the rest, and read the reports once.

        A gateway that starts beside running workers so is ready at once. One that does not answer is not waited for
        longer than `FIRST_ASK_S`; it is asked again in the background.
        """
        first: list[asyncio.Task[bool]] = []
        for worker in self._static:
            if worker.models:
                self._static_found(worker, EngineFacts())
            if not worker.models or worker.max_model_len is None or worker.kv_tokens is None:
                asked = asyncio.Event()
                self._begin(partial(self._ask_static, worker, asked), f"ask-{worker.id}")
                if not worker.models:
                    first.append(asyncio.ensure_future(asked.wait()))
        try:
            if self._link is not None:
                await self._poll_once(self._link)
                self._begin(partial(self._poll_reports, self._link), "poll-reports")
            if first:
                await asyncio.wait(first, timeout=FIRST_ASK_S)
        finally:
            for each in first:
                each.cancel()

    def close_idle(self) -> int:
        """Close the connections to all workers that nobody uses; returns how many there were."""
        return sum(known.connections.close_idle() for known in self._known.values())

    async def stop(self) -> None:
        """End the tasks and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()
        for known in self._known.values():
            known.connections.close()

    def _begin(self, work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(keep_doing(work, name), name=name))

    # -- workers of the settings -----------------------------------------------------------------------------------

    async def _ask_static(self, worker: StaticWorker, asked: asyncio.Event) -> None:
        """Ask until it answers, with growing pauses; then, where the models are its to say, again and again.

        `asked` is set after the first time, whatever came of it.
        """
        path = socket_of(worker.url)
        session = self._sessions.get(path)
        if session is None:
            tls = self._tls if self._tls is not None else True
            session = self._sessions[path] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls) if path is None else aiohttp.UnixConnector(path),
                timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
                trust_env=False,
                auto_decompress=False,
            )
        pause, said = ASK_MIN_S, ""
        while True:
            try:
                facts = await ask(session, worker)
            except NoAnswer as error:
                self._metrics.count(PROBES, "no_answer")
                if str(error) != said:
                    said = str(error)
                    self._log.event("worker_silent", worker=worker.id, url=worker.url, why=said)
                asked.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, ASK_MAX_S)
                continue
            self._metrics.count(PROBES, "ok")
            self._static_found(worker, facts)
            asked.set()
            if worker.models:
                return
            pause, said = ASK_MIN_S, ""
            await asyncio.sleep(ASK_AGAIN_S)

    def _static_found(self, worker: StaticWorker, facts: EngineFacts) -> None:
        token = worker.token.get_secret_value() if worker.token is not None else None
        known = self._known.get(worker.id)
        if known is None or known.url != worker.url:
            known = self._connect(worker.id, worker.url, token, known)
        known.static, known.facts = worker, facts
        self._observe(known, None)

    # -- workers that report ---------------------------------------------------------------------------------------

    async def _poll_reports(self, link: RedisLink) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._poll_once(link)

    async def _poll_once(self, link: RedisLink) -> None:
        raw = await link.run(lambda redis: read_reports(redis, self._fleet))
        if raw is None:
            return  # what was known stays known: Redis being gone says nothing about a worker
        changes = self._book.poll(raw, self._dispatcher.now())
        if changes.invalid:
            self._metrics.count(BAD_REPORTS, amount=len(changes.invalid))
        for worker_id, error in changes.newly_invalid:
            self._log.event("bad_report", worker=worker_id, why=str(error))
        for report in changes.fresh:
            self._reported(report)
        for worker_id in changes.gone:
            self._fell_silent(worker_id)

    def _reported(self, report: WorkerReport) -> None:
        known = self._known.get(report.id)
        usable = report.state in {"ready", "draining"}
        if known is None:
            if not usable:
                return
            known = self._connect(report.id, report.url, None, None)
        elif known.static is None and known.url != report.url:
            known = self._connect(report.id, report.url, None, known)
        known.report = report
        self._observe(known, self._signal(known.spec(), report))
        drained = report.state != "ready"
        if drained or known.drained:
            self._dispatcher.drain(report.id, on=drained)
            known.drained = drained

    def _signal(self, spec: WorkerSpec, report: WorkerReport) -> Signal:
        return Signal(
            at=self._dispatcher.now(),
            running=report.running,
            waiting=report.waiting,
            kv_used_tokens=round((report.kv_usage or 0.0) * (spec.kv_tokens or 0)),
            preemptions=report.preemptions,
            tokens_total=report.prompt_tokens + report.generation_tokens,
            prefix_hits=report.prefix_hits,
        )

    def _fell_silent(self, worker_id: str) -> None:
        known = self._known.get(worker_id)
        if known is None:
            return
        if known.static is not None:
            # The settings vouch for it; only its report is gone.
            known.report = None
            self._observe(known, None)
            if known.drained:
                known.drained = False
                self._dispatcher.drain(worker_id, on=False)
            return
        del self._known[worker_id], self.pools[worker_id]
        self._dispatcher.forget(worker_id)
        known.connections.close()
        self._metrics.forget_worker(worker_id)
        self._log.event("worker_gone", worker=worker_id, why="no report")

    # -- both ------------------------------------------------------------------------------------------------------

    def _connect(self, worker_id: str, url: str, token: str | None, before: Known | None) -> Known:
        """A worker at this URL; connections to where it was before are closed."""
        if before is not None:
            before.connections.close()
        known = Known(worker_id, url, self._make_pool(worker_id, url, token))
        if before is not None:
            known.static, known.facts, known.drained = before.static, before.facts, before.drained
        else:
            self._log.event("worker_found", worker=worker_id, url=url)
        self._known[worker_id] = known
        self.pools[worker_id] = known.connections
        self._metrics.know_worker(worker_id)
        return known

    def _observe(self, known: Known, signal: Signal | None) -> None:
        self._dispatcher.observe(known.spec(), signal)
