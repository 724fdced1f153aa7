"""Which workers the gateway knows: from the settings, from engines that are asked, from reports in a real Valkey."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import redis.asyncio as redis_client
from aiohttp import web
from plain_worker import plain_worker

from gateway.dispatcher import Dispatcher
from gateway.fleet_sync import FleetSync
from gateway.http.upstream import UpstreamPool
from gateway.log import Log
from gateway.metrics import Metrics
from gateway.ports import free_port
from gateway.process import Child, start_valkey
from gateway.redis_link import RedisLink
from gateway.scheduling.model import Signal, WorkerSpec
from gateway.settings import StaticWorker
from workers.report import WorkerReport, encode, report_key, workers_key

REPORT = WorkerReport(
    "w1", "i1", 1, "http://127.0.0.1:1", "vllm", "short-chat", ("tiny",), max_model_len=4096, max_num_seqs=8,
    kv_tokens=1000, kv_usage=0.25, running=3, waiting=1, preemptions=2,
)  # fmt: skip


class Recorder:
    """The dispatcher's port, keeping what it is told."""

    def __init__(self) -> None:
        self.specs: dict[str, WorkerSpec] = {}
        self.signals: dict[str, Signal | None] = {}
        self.drained: dict[str, bool] = {}
        self.forgotten: list[str] = []
        self.offset = 0.0

    def now(self) -> float:
        return time.monotonic() + self.offset

    def observe(self, spec: WorkerSpec, signal: Signal | None) -> None:
        self.specs[spec.id] = spec
        self.signals[spec.id] = signal

    def drain(self, worker_id: str, *, on: bool = True) -> None:
        self.drained[worker_id] = on

    def forget(self, worker_id: str) -> None:
        self.forgotten.append(worker_id)
        del self.specs[worker_id]


class Lines:
    """A log writer that keeps what it is given."""

    dropped = 0

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, line: bytes) -> None:
        self.lines.append(json.loads(line))

    def close(self) -> None:
        """Nothing to close."""

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


class Synced:
    """A fleet sync with everything around it."""

    def __init__(self, static: list[StaticWorker], redis_url: str | None) -> None:
        self.recorder = Recorder()
        self.lines = Lines()
        self.metrics = Metrics()
        self.link = redis_url and RedisLink(
            redis_url, clock=time.monotonic, on_change=lambda up, why: None, on_error=lambda kind: None
        )
        self.sync = FleetSync(
            static,
            "f",
            dispatcher=cast(Dispatcher, self.recorder),
            make_pool=lambda worker_id, url, token: UpstreamPool(worker_id, url, token=token),
            link=self.link or None,
            metrics=self.metrics,
            log=Log(None, cast(Any, self.lines)),
        )


@asynccontextmanager
async def synced(*static: dict[str, Any], redis_url: str | None = None) -> AsyncIterator[Synced]:
    bench = Synced([StaticWorker.model_validate(each) for each in static], redis_url)
    await bench.sync.start()
    try:
        yield bench
    finally:
        await bench.sync.stop()
        if bench.link:
            await bench.link.close()


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not become true in time"
        await asyncio.sleep(0.02)


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    os.kill(child.pid, signal.SIGCONT)
    await child.stop(grace_s=1.0)


async def publish(url: str, *reports: WorkerReport) -> None:
    redis = redis_client.Redis.from_url(url)
    for report in reports:
        await redis.sadd(workers_key("f"), report.id)
        await redis.set(report_key("f", report.id), encode(report), ex=10)
    await redis.aclose()


async def test_a_worker_of_the_settings_needs_nobodys_answer():
    full = {"id": "a", "url": "http://127.0.0.1:1", "pool": "p", "models": ["tiny"], "max_model_len": 9, "kv_tokens": 9}
    async with synced(full | {"max_num_seqs": 4, "token": "t"}) as bench:
        spec = bench.recorder.specs["a"]
        assert (spec.pool, spec.models, spec.max_model_len, spec.max_num_seqs) == ("p", frozenset({"tiny"}), 9, 4)
        pool = bench.sync.pools.get("a")
        assert pool is not None
        assert pool.authorization == b"Bearer t"
        assert bench.sync.pools.get("b") is None
        assert bench.sync.workers()["a"].source == "settings"


async def test_an_engine_that_answers_only_post_is_usable_and_asked_once():
    async with plain_worker() as worker, synced({"id": "a", "url": worker.url, "pool": "p", "models": ["m"]}) as bench:
        assert bench.recorder.specs["a"].max_model_len is None
        await until(lambda: worker.gets == 2)
        assert bench.recorder.specs["a"].models == frozenset({"m"})
        assert bench.lines.named("worker_silent") == []


async def test_what_the_settings_leave_out_is_asked_of_the_engine():
    ready = asyncio.Event()

    async def models(_: web.Request) -> web.Response:
        if not ready.is_set():
            raise web.HTTPServiceUnavailable
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 2048}]})

    async def metrics(_: web.Request) -> web.Response:
        labels = 'num_gpu_blocks="101",block_size="16"'
        return web.Response(text=f"vllm:cache_config_info{{{labels}}} 1.0\nprocess_start_time_seconds 1.5e+09\n")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with synced({"id": "a", "url": f"http://{host}:{port}", "pool": "p"}) as bench:
        await until(lambda: bench.lines.named("worker_silent"))
        assert bench.recorder.specs == {}, "nobody knows yet what it serves"
        ready.set()
        await until(lambda: bench.recorder.specs)
        spec = bench.recorder.specs["a"]
        assert (spec.models, spec.max_model_len, spec.kv_tokens) == (frozenset({"tiny"}), 2048, 1600)
        assert spec.incarnation == "1.5e+09"
        assert len(bench.lines.named("worker_silent")) == 1, "said once, not with each try"
    await runner.cleanup()


async def test_a_worker_that_refuses_is_told_of_in_plain_words(tmp_path):
    port, path = free_port(), tmp_path / "engine.sock"
    workers = ({"id": "a", "url": f"http://127.0.0.1:{port}"}, {"id": "b", "url": f"unix://{path}"})
    async with synced(*(worker | {"pool": "p"} for worker in workers)) as bench:
        await until(lambda: len(bench.lines.named("worker_silent")) == 2)
        why = {line["worker"]: line["why"] for line in bench.lines.named("worker_silent")}
        assert why["a"] == f"/v1/models: connection refused by 127.0.0.1:{port}"
        assert why["b"] == f"/v1/models: cannot connect to unix://{path}: No such file or directory"


async def test_reports_make_update_drain_and_end_a_worker(valkey):
    await publish(valkey.url, REPORT)
    async with synced(redis_url=valkey.url) as bench:
        seen = bench.recorder
        assert seen.specs["w1"].incarnation == "i1", "known as soon as started: the first poll is part of the start"
        signal_ = seen.signals["w1"]
        assert signal_ is not None
        assert (signal_.running, signal_.waiting, signal_.kv_used_tokens, signal_.preemptions) == (3, 1, 250, 2)
        assert signal_.at == pytest.approx(seen.now(), abs=5)

        await publish(valkey.url, replace(REPORT, sequence=2, state="draining"))
        await until(lambda: seen.drained.get("w1") is True)
        await publish(valkey.url, replace(REPORT, sequence=1, incarnation="i2", url="http://127.0.0.1:2"))
        await until(lambda: seen.drained.get("w1") is False)
        assert seen.specs["w1"].incarnation == "i2"
        pool = bench.sync.pools.get("w1")
        assert pool is not None
        assert pool.url == "http://127.0.0.1:2"

        await publish(valkey.url, replace(REPORT, id="new", state="starting"))
        await until(lambda: bench.sync.report_age_s("new") is not None)
        assert "new" not in seen.specs, "not usable before it says so"

        redis = redis_client.Redis.from_url(valkey.url)
        await redis.delete(report_key("f", "w1"))
        await redis.aclose()
        seen.offset = 3.0  # two polls further on, each may add two seconds
        await until(lambda: (bench.sync.report_age_s("w1") or 0) > 1)
        for _ in range(6):
            seen.offset += 2.0
            await asyncio.sleep(0.55)
        await until(lambda: "w1" in seen.forgotten)
        assert bench.sync.pools.get("w1") is None
        assert len(bench.lines.named("worker_gone")) >= 1


async def test_redis_away_takes_no_worker_away(valkey):
    """Rows 56 and 57: what was known stays known, and comes up to date afterwards."""
    await publish(valkey.url, REPORT)
    async with synced(redis_url=valkey.url) as bench:
        os.kill(valkey.pid, signal.SIGSTOP)
        bench.recorder.offset += 3600
        await until(lambda: bench.link and bench.link.up is False)
        assert bench.recorder.forgotten == []
        assert bench.sync.pools.get("w1") is not None
        os.kill(valkey.pid, signal.SIGCONT)
        await publish(valkey.url, replace(REPORT, sequence=2, running=0))
        await until(lambda: (found := bench.recorder.signals["w1"]) is not None and found.running == 0)
        assert bench.recorder.forgotten == []


async def test_a_report_completes_a_worker_of_the_settings(valkey):
    await publish(valkey.url, replace(REPORT, pool="other", url="http://127.0.0.1:2"))
    static = {"id": "w1", "url": "http://127.0.0.1:1", "pool": "p", "models": ["m"], "max_model_len": 5, "kv_tokens": 7}
    async with synced(static, redis_url=valkey.url) as bench:
        spec = bench.recorder.specs["w1"]
        assert (spec.pool, spec.models, spec.max_model_len) == ("p", frozenset({"m"}), 5)
        assert (spec.max_num_seqs, spec.incarnation) == (8, "i1")
        known = bench.sync.workers()["w1"]
        assert (known.url, known.source) == ("http://127.0.0.1:1", "settings+redis")


async def test_bad_reports_are_counted_and_said_once(valkey):
    redis = redis_client.Redis.from_url(valkey.url)
    await redis.sadd(workers_key("f"), "w1")
    await redis.set(report_key("f", "w1"), b'{"id":"w1","kv_usage":1e308}')
    await redis.aclose()
    async with synced(redis_url=valkey.url) as bench:
        await until(lambda: b"headrace_reports_invalid_total 3.0" in bench.metrics.expose("text/plain")[0])
        assert len(bench.lines.named("bad_report")) == 1
        assert bench.recorder.specs == {}
