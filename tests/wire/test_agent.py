"""The agent between a scripted engine and a real Valkey: what it survives and what it says meanwhile."""

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from gateway.process import start_valkey
from workers.agent import AgentTarget, Control, run_agent
from workers.engines.vllm import VLLM
from workers.observation import DeviceLoad
from workers.redis_client import make_client
from workers.report import BadReport, decode, report_key, workers_key
from workers.report_link import ReportLink

METRICS = (
    'vllm:num_requests_running{{engine="0"}} {running}\nvllm:kv_cache_usage_perc{{engine="0"}} {usage}\n'
    'vllm:cache_config_info{{block_size="32",num_gpu_blocks="65"}} 1.0\n'
    "vllm:generation_tokens_total {tokens}\nprocess_start_time_seconds {started}\n"
)
INTERVAL_S = 0.02


@dataclass
class ScriptedEngine:
    """A server with vLLM's paths. Its answers can be changed at any time; `gate` cleared makes it hang."""

    values: dict = field(default_factory=lambda: {"running": 1, "usage": 0.5, "tokens": 100, "started": 7.5})
    models: list = field(default_factory=lambda: ["tiny"])
    overrides: dict = field(default_factory=dict)  # path -> response maker
    asked: list = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    port: int = 0

    async def __aenter__(self):
        self.gate.set()
        await self.listen()
        return self

    async def __aexit__(self, *_):
        self.gate.set()
        await self.close()

    async def listen(self):
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def close(self):
        await self.runner.cleanup()

    async def answer(self, request):
        self.asked.append((request.path, request.headers.get("Authorization")))
        await self.gate.wait()
        if request.path in self.overrides:
            return self.overrides[request.path](request)
        if request.path == "/health":
            return web.Response()
        if request.path == "/metrics":
            return web.Response(text=METRICS.format(**self.values))
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": name, "max_model_len": 2048} for name in self.models]})
        return web.Response(status=404)


@pytest.fixture
async def valkey():
    child = await start_valkey()
    yield child
    child.kill() if child.returncode is None else None
    await child.stop(grace_s=0.0)


@pytest.fixture
async def redis(valkey):
    client = make_client(valkey.url)
    yield client
    await client.aclose()


@pytest.fixture
async def engine():
    async with ScriptedEngine() as scripted:
        yield scripted


def target_of(engine, **more):
    return AgentTarget(id="w1", url=engine.url, pool="short-chat", fleet="test", **more)


@contextlib.asynccontextmanager
async def running(engine, redis, look_timeout_s=2.0, interval_s=INTERVAL_S, control=None, **more):
    """An agent; at the end it is told to stop and must."""
    stop = asyncio.Event()
    task = asyncio.create_task(
        run_agent(
            *(VLLM, target_of(engine, **more), ReportLink(redis), stop, interval_s),
            look_timeout_s=look_timeout_s,
            control=control,
        )
    )
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


async def report_of(redis):
    raw = await redis.get(report_key("test", "w1"))
    return None if raw is None else decode(raw, "w1")


async def holds(condition, timeout_s=10.0):
    """Wait for something that another process or the agent's loop brings about."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing to subscribe to
            await asyncio.sleep(INTERVAL_S)


async def until(redis, matches, timeout_s=10.0):
    """The first report that matches."""
    async with asyncio.timeout(timeout_s):
        while True:
            report = await report_of(redis)
            if report is not None and matches(report):
                return report
            await asyncio.sleep(INTERVAL_S / 2)


def ready(report):
    return report.state == "ready"


async def test_reports_what_the_engine_says_with_a_time_to_live(engine, redis):
    async with running(engine, redis, max_num_seqs=4):
        report = await until(redis, ready)
        assert (report.running, report.kv_usage, report.kv_tokens, report.generation_tokens) == (1, 0.5, 2048, 100)
        assert (report.models, report.max_model_len, report.max_num_seqs) == (("tiny",), 2048, 4)
        assert (report.pool, report.url, report.engine) == ("short-chat", engine.url, "vllm")
        assert await redis.smembers(workers_key("test")) == {b"w1"}
        assert 0 < await redis.pttl(report_key("test", "w1")) <= 10_000
        engine.values |= {"running": 7, "usage": 0.75}
        later = await until(redis, lambda r: r.running == 7)
        assert later.sequence > report.sequence
        assert later.incarnation == report.incarnation


async def test_stopping_takes_the_worker_out(engine, redis):
    async with running(engine, redis):
        await until(redis, ready)
    assert await report_of(redis) is None
    assert await redis.exists(workers_key("test")) == 0


async def test_stopping_does_not_wait_for_a_hanging_engine(engine, redis):
    async with running(engine, redis, look_timeout_s=60.0):
        await until(redis, ready)
        engine.gate.clear()
        seen = len(engine.asked)
        await holds(lambda: len(engine.asked) > seen)
    assert await report_of(redis) is None


async def test_a_hanging_engine_is_reported_and_comes_back(engine, redis, caplog):
    caplog.set_level(logging.INFO, "headrace.agent")
    async with running(engine, redis, look_timeout_s=0.1):
        before = await until(redis, ready)
        engine.gate.clear()
        gone = await until(redis, lambda r: r.state == "unreachable")
        assert gone.kv_usage is None
        again = await until(redis, lambda r: r.sequence > gone.sequence)
        assert again.state == "unreachable"
        engine.gate.set()
        back = await until(redis, ready)
        assert back.incarnation == before.incarnation
    assert [record.getMessage() for record in caplog.records] == [
        f"engine w1 at {engine.url} does not answer within 0.1 s",
        f"engine w1 at {engine.url} works again",
    ]


async def test_an_engine_started_anew_gets_a_new_incarnation_and_its_models_are_read_again(engine, redis):
    async with running(engine, redis):
        before = await until(redis, ready)
        await engine.close()
        await until(redis, lambda r: r.state == "unreachable")
        engine.values |= {"started": 99.5, "tokens": 0}
        engine.models = ["other"]
        await engine.listen()
        after = await until(redis, ready)
        assert after.incarnation != before.incarnation
        assert after.models == ("other",)


async def test_an_agent_started_anew_keeps_the_incarnation_and_goes_on_counting(engine, redis):
    async with running(engine, redis):
        before = await until(redis, ready)
    async with running(engine, redis):
        after = await until(redis, ready)
    assert after.incarnation == before.incarnation
    assert after.sequence > before.sequence


async def test_an_engine_that_is_not_up_yet_is_starting(engine, redis):
    await engine.close()
    async with running(engine, redis):
        assert (await until(redis, lambda r: True)).state == "starting"
        await engine.listen()
        assert (await until(redis, ready)).models == ("tiny",)


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("/health", lambda _: web.Response(status=503)),
        ("/health", lambda _: web.Response(status=302, headers={"Location": "/metrics"})),
        ("/metrics", lambda _: web.Response(status=404)),
        ("/metrics", lambda _: web.Response(text="up 1\n")),
        ("/metrics", lambda _: web.Response(body=b"\n" * (5 << 20))),
        ("/metrics", lambda _: web.Response(body=b"\x1f\x8b\x08", headers={"Content-Encoding": "gzip"})),
        ("/v1/models", lambda _: web.Response(text="{")),
        ("/v1/models", lambda _: web.json_response({"data": [{"id": "a\nb"}]})),
    ],
)
async def test_unusable_answers_make_it_unreachable_once_known(engine, redis, path, make):
    async with running(engine, redis):
        await until(redis, ready)
        engine.overrides[path] = make
        engine.values["started"] = 8.5  # so that the card is read again
        await until(redis, lambda r: r.state == "unreachable")
        del engine.overrides[path]
        await until(redis, ready)


async def test_garbage_instead_of_http_is_survived(redis):
    async def talk(reader, writer):
        writer.write(b"HTTP/9.9 \xff\x00\r\n" + b"a" * 70000)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    engine = ScriptedEngine(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, running(engine, redis):
        first = await until(redis, lambda r: True)
        assert (await until(redis, lambda r: r.sequence > first.sequence)).state == "starting"


async def test_the_engines_token_is_sent(engine, redis):
    async with running(engine, redis, token="sesame"):
        await until(redis, ready)
    assert {authorization for _, authorization in engine.asked} == {"Bearer sesame"}


async def test_redis_may_hang_and_come_back(engine, redis, valkey, caplog):
    caplog.set_level(logging.INFO, "headrace.agent")
    async with running(engine, redis) as task:
        await until(redis, ready)
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            await holds(lambda: caplog.records)
            looks = len(engine.asked)
            await holds(lambda: len(engine.asked) >= looks + 8)  # it goes on looking
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
        engine.values["running"] = 9
        await until(redis, lambda r: r.running == 9)
        assert not task.done()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("reporting w1 to Redis fails: TimeoutError")
    assert messages[-1] == "reporting w1 to Redis works again"
    assert len(messages) <= 4


async def test_redis_may_be_away_from_the_start_to_the_end(engine, redis, valkey, caplog):
    await valkey.stop(grace_s=0.0)
    async with running(engine, redis):
        await holds(lambda: len(engine.asked) >= 12)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("reporting w1 to Redis fails: ConnectionError")
    assert messages[-1].startswith("could not take w1 out of Redis, its report will expire")
    assert len(messages) == 2


async def test_the_first_report_is_announced_once(engine, redis):
    published = []
    stop = asyncio.Event()
    task = asyncio.create_task(
        run_agent(VLLM, target_of(engine), ReportLink(redis), stop, INTERVAL_S, on_published=published.append)
    )
    first = await until(redis, ready)
    await until(redis, lambda r: r.sequence > first.sequence)
    stop.set()
    await task
    assert [report.id for report in published] == ["w1"]


async def test_a_target_that_cannot_be_reported_is_refused_at_once(redis):
    with pytest.raises(BadReport, match="pool"):
        await run_agent(VLLM, AgentTarget("w1", "http://h", "no such name"), ReportLink(redis), asyncio.Event())


async def test_cancelling_leaves_the_report_to_expire(engine, redis):
    task = asyncio.create_task(run_agent(VLLM, target_of(engine), ReportLink(redis), asyncio.Event(), INTERVAL_S))
    await until(redis, ready)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await report_of(redis) is not None


async def test_what_a_supervisor_tells_goes_out_before_the_next_look(engine, redis):
    control = Control("starting", "short-chat")
    async with running(engine, redis, interval_s=30.0, control=control):
        # The first look was reported; the next one is half a minute away.
        assert (await until(redis, lambda report: report.models)).state == "starting"
        control.tell(None)
        assert (await until(redis, ready)).pool == "short-chat"
        control.tell("draining", "canary")
        told = await until(redis, lambda report: report.state == "draining")
        assert told.pool == "canary"


async def test_what_a_supervisor_tells_goes_out_while_the_engine_hangs(engine, redis):
    control = Control(None, "short-chat")
    async with running(engine, redis, look_timeout_s=30.0, control=control):
        await until(redis, ready)
        engine.gate.clear()
        engine.asked.clear()
        await holds(lambda: engine.asked)
        control.tell("draining")
        assert await until(redis, lambda report: report.state == "draining")


async def test_metrics_may_have_a_port_of_their_own(engine, redis):
    engine.overrides["/metrics"] = lambda _: web.Response(status=404)
    async with ScriptedEngine(values={"running": 9, "usage": 0.1, "tokens": 1, "started": 1}) as other:
        async with running(engine, redis, metrics_url=other.url):
            assert (await until(redis, ready)).running == 9
        assert {path for path, _ in other.asked} == {"/metrics"}


async def test_the_load_of_its_devices_is_reported(engine, redis, monkeypatch):
    load = DeviceLoad(0.5, 10, 20, "550.1")
    monkeypatch.setattr("workers.agent.device_load", lambda *asked: load if asked == (("0",), "") else DeviceLoad())
    async with running(engine, redis, devices=("0",)):
        report = await until(redis, lambda report: report.device_bytes)
        assert (report.device_utilization, report.device_used_bytes, report.driver) == (0.5, 10, "550.1")
