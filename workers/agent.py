"""The agent beside an engine: looks at it once a second and tells the gateways through Redis what it saw.

It outlives both neighbours. An engine that hangs or dies is reported as such; while Redis is away the agent keeps
looking and keeps trying, and says so in one log line per change. What it concludes is decided in `observation.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Literal

import aiohttp
from redis.asyncio import Redis

from workers.device_load import device_load
from workers.engines.base import Adapter, Card, Reading, UnreadableAnswer
from workers.observation import AgentTarget, Observer
from workers.probe import connector_to
from workers.redis_client import FAILURES, SILENT, kind_of
from workers.report import (
    REPORT_INTERVAL_S,
    REPORT_TTL_S,
    BadReport,
    WorkerReport,
    encode,
    http_base,
    report_key,
    workers_key,
)
from workers.report_link import ReportLink, connect
from workers.scrape import MAX_SCRAPE_BYTES

__all__ = ["AgentTarget", "Control", "connect", "run_agent"]

LOOK_TIMEOUT_S = 2.0  # health, metrics and card together: an engine busy tokenizing answers late
CONNECT_TIMEOUT_S = 1.0
CARD_INTERVAL_S = 10.0  # models come and go (LoRA), but not every second
FAREWELL_S = 1.5  # gateways read reports twice a second; a key that is only deleted looks to them like an emptied Redis
DEVICE_INTERVAL_S = 5.0  # drivers are asked in a thread: some take a second to answer
MAX_HEADER_BYTES = 16 * 1024

log = logging.getLogger("headrace.agent")
_Stopped = asyncio.Task[Literal[True]]


class Control:
    """What a supervisor says of an engine while the agent reports on it; reported at once, not at the next look."""

    def __init__(self, told: str | None, pool: str) -> None:
        self.told = told  # `starting`, `draining`, or None: as it looks
        self.pool = pool
        self.changed = asyncio.Event()

    def tell(self, told: str | None, pool: str | None = None) -> None:
        """From now on."""
        self.told = told
        self.pool = pool or self.pool
        self.changed.set()


async def run_agent(
    adapter: Adapter,
    target: AgentTarget,
    redis: ReportLink,
    stop: asyncio.Event,
    interval_s: float = REPORT_INTERVAL_S,
    *,
    look_timeout_s: float = LOOK_TIMEOUT_S,
    on_published: Callable[[WorkerReport], None] | None = None,
    on_report: Callable[[WorkerReport, bool], None] | None = None,
    control: Control | None = None,
    farewell_s: float = 0.0,
) -> None:
    """Report on one engine until `stop` is set, then take the worker out of Redis.

    `farewell_s` (`FAREWELL_S`): so long at least a worker that was ready is reported as one that is not before it is
    taken out, and gateways send it nothing new at once instead of after the ten seconds of a silent one.

    `redis` (see `connect`) stays the caller's to close. `on_published` is called once, when Redis has taken the first
    report; `on_report` with every report, and whether Redis took it. Raises `BadReport` at once for a target that
    could never be reported; nothing that engine or Redis do ends it. Cancelling it leaves the report to expire.
    """
    observer = Observer(
        target,
        adapter.name,
        continues=adapter.supports_continuation,
        # An agent started anew must not fall behind the numbers of the one before it.
        sequence=time.time_ns() // 1_000_000,
        fresh=lambda: secrets.token_hex(8),
    )
    encode(observer.report)
    control = control or Control(None, target.pool)
    observer.tell(control.told, control.pool)
    stopped = asyncio.create_task(stop.wait())
    devices = asyncio.create_task(_watch_devices(target, observer)) if target.devices else None
    publisher = _Publisher(redis, target, on_published, on_report)
    try:
        async with _Engine(adapter, target, look_timeout_s) as engine:
            await _report_until(stopped, engine, observer, publisher, control, interval_s)
        if farewell_s:
            ready = observer.report.state == "ready"
            await publisher.say_farewell(observer.tell("draining", control.pool) if ready else None, farewell_s)
        await publisher.withdraw()
    finally:
        stopped.cancel()
        if devices is not None:
            devices.cancel()


async def _watch_devices(target: AgentTarget, observer: Observer) -> None:
    while True:
        observer.observe_devices(await asyncio.to_thread(device_load, target.devices, target.device_kind))
        await asyncio.sleep(DEVICE_INTERVAL_S)


async def _report_until(
    stopped: _Stopped,
    engine: _Engine,
    observer: Observer,
    publisher: _Publisher,
    control: Control,
    interval_s: float,
) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()

    async def wait_told(until: asyncio.Task[None]) -> None:
        """Wait for `until` or `stopped`; what is told meanwhile goes out at once."""
        while not (until.done() or stopped.done()):
            told = asyncio.create_task(control.changed.wait())
            try:
                await asyncio.wait((stopped, until, told), return_when=asyncio.FIRST_COMPLETED)
            finally:
                told.cancel()
            if control.changed.is_set():
                control.changed.clear()
                await publisher.publish(observer.tell(control.told, control.pool))

    while not stopped.done():
        engine.changes.expected = control.told == "starting"
        look = asyncio.create_task(_look(engine, observer))
        try:
            await wait_told(look)
        finally:
            look.cancel()
        if not look.done():  # told to stop while the engine keeps us waiting
            await asyncio.wait({look})
            return
        look.result()
        await publisher.publish(observer.report)
        # A look that took longer than the interval is not made up for.
        due = max(due + interval_s, loop.time())
        pause = asyncio.create_task(asyncio.sleep(due - loop.time()))
        try:
            await wait_told(pause)
        finally:
            pause.cancel()


async def _look(engine: _Engine, observer: Observer) -> None:
    """One look and what follows from it. Every way it can fail is an observation too."""
    changes = engine.changes
    try:
        async with asyncio.timeout(engine.timeout_s):
            reading = await engine.read_metrics()
            card = await engine.read_card(renew=observer.is_new_start(reading))
        observer.observe(reading, card)
    except aiohttp.ClientConnectorError as error:
        observer.observe_miss(refused=error.os_error.errno == errno.ECONNREFUSED)
        changes.note(f"cannot be reached: {error.os_error.strerror or error}")
    except TimeoutError:
        observer.observe_miss(refused=False)
        changes.note(f"does not answer within {engine.timeout_s:g} s")
    except (aiohttp.ClientError, UnreadableAnswer) as error:
        observer.observe_miss(refused=False)
        changes.note(f"answers what cannot be used: {type(error).__name__}: {error}")
    except BadReport as error:
        observer.observe_miss(refused=False)
        changes.note(f"says of itself what cannot be reported: {error}")
    else:
        changes.note(None)


class _Changes:
    """Logs that something broke, or broke in another way, or works again: one line per change.

    `expected`: it is only coming up, so that trouble is no reason to worry anybody.
    """

    def __init__(self, what: str) -> None:
        self.expected = False
        self._what = what
        self._kind: str | None = None

    def note(self, trouble: str | None, kind: str | None = None) -> None:
        """What is wrong now, None: nothing. Trouble of one `kind` is one trouble, however it is worded."""
        kind = kind or trouble
        if kind == self._kind:
            return
        if trouble is not None:
            log.log(logging.INFO if self.expected else logging.WARNING, "%s %s", self._what, trouble)
        else:
            log.info("%s works again" if not self.expected else "%s works", self._what)
        self._kind = kind


class _Engine:
    """Asks one engine over HTTP. A connection for each question: no answer can be taken for another question's."""

    def __init__(self, adapter: Adapter, target: AgentTarget, timeout_s: float) -> None:
        self.timeout_s = timeout_s  # of a whole look
        self.changes = _Changes(f"engine {target.id} at {target.url}")
        self._adapter = adapter
        self._url = http_base(target.url)
        self._metrics_url = http_base(target.metrics_url or target.url)
        headers = {"Accept-Encoding": "identity"}
        if target.token is not None:
            headers["Authorization"] = f"Bearer {target.token}"
        self._session = aiohttp.ClientSession(
            connector=connector_to(target.url, limit=4),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,  # nobody was asked to compress, and a few bytes could become gigabytes
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._card: Card | None = None
        self._card_read = 0.0

    async def __aenter__(self) -> _Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def read_metrics(self) -> Reading:
        """What the engine does now. It must be healthy, too: some answer /metrics long after their core is dead."""
        await self._needed(self._adapter.health_path)
        text, headers = await self._needed(self._adapter.metrics_path, self._metrics_url)
        return self._adapter.read_metrics(text, headers)

    async def read_card(self, *, renew: bool) -> Card:
        """What the engine is; asked again when `renew` says so or the last answer has become old."""
        now = asyncio.get_running_loop().time()
        if self._card is None or renew or now - self._card_read >= CARD_INTERVAL_S:
            documents = {path: (await self._needed(path))[0] for path in self._adapter.card_paths}
            for path in self._adapter.hint_paths:
                status, body, _ = await self._get(path)
                if status == 200:
                    documents[path] = body
            self._card = self._adapter.read_card(documents)
            self._card_read = now
        return self._card

    async def _needed(self, path: str, url: str | None = None) -> tuple[bytes, Mapping[str, str]]:
        status, body, headers = await self._get(path, url)
        if status != 200:
            raise UnreadableAnswer(path, f"status {status}")
        return body, headers

    async def _get(self, path: str, url: str | None = None) -> tuple[int, bytes, Mapping[str, str]]:
        async with self._session.get((url or self._url) + path, allow_redirects=False) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_SCRAPE_BYTES:
                    raise UnreadableAnswer(path, f"more than {MAX_SCRAPE_BYTES} bytes")
            return response.status, bytes(body), {name.lower(): value for name, value in response.headers.items()}


class _Publisher:
    """Writes reports of one worker to Redis; failures are counted as trouble, never raised."""

    def __init__(
        self,
        redis: ReportLink,
        target: AgentTarget,
        on_published: Callable[[WorkerReport], None] | None,
        on_report: Callable[[WorkerReport, bool], None] | None,
    ) -> None:
        self._redis = redis
        self._id = target.id
        self._key = report_key(target.fleet, target.id)
        self._set = workers_key(target.fleet)
        self._on_published = on_published
        self._on_report = on_report
        self._changes = _Changes(f"reporting {target.id} to Redis")
        self._ready = False  # as Redis has it
        self._left_at: float | None = None  # when Redis was told that it is ready no more

    async def publish(self, report: WorkerReport) -> bool:
        """Whether Redis took it."""
        raw = encode(report)

        async def write(redis: Redis) -> None:
            pipe = redis.pipeline(transaction=False)
            pipe.set(self._key, raw, px=int(REPORT_TTL_S * 1000))
            pipe.sadd(self._set, self._id)
            await pipe.execute()

        try:
            await self._redis.run(write)
        except FAILURES as error:
            kind = kind_of(error)
            # A failover is refused connections, closed ones and silence by turns.
            told = str(error) or "no answer in time"
            self._changes.note(f"fails: {type(error).__name__}: {told}", "silent" if kind in SILENT else kind)
            taken = False
        else:
            self._changes.note(None)
            taken = True
            if self._ready and report.state != "ready":
                self._left_at = asyncio.get_running_loop().time()
            self._ready = report.state == "ready"
        if self._on_report is not None:
            self._on_report(report, taken)
        if taken and self._on_published is not None:
            self._on_published(report)
            self._on_published = None
        return taken

    async def say_farewell(self, last: WorkerReport | None, for_s: float) -> None:
        """Have gateways read that it is ready no more, for which they need `for_s`; not waited for where Redis does not
        take `last`, which says so if nothing did."""
        if (last is None or await self.publish(last)) and self._left_at is not None:
            await asyncio.sleep(max(0.0, self._left_at + for_s - asyncio.get_running_loop().time()))

    async def withdraw(self) -> None:
        async def gone(redis: Redis) -> None:
            pipe = redis.pipeline(transaction=False)
            pipe.delete(self._key)
            pipe.srem(self._set, self._id)
            await pipe.execute()

        try:
            await self._redis.run(gone)
        except FAILURES as error:
            log.warning("could not take %s out of Redis, its report will expire: %s", self._id, error)
