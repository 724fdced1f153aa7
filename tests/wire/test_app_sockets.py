"""An engine behind a unix socket: named by the settings and asked for the rest, or reported by an agent beside it."""

import asyncio
import contextlib
import time

from aiohttp import web
from running_gateway import running, settings_for

from gateway.process import start_valkey
from gateway.settings import StaticWorker
from workers.agent import AgentTarget, connect, run_agent
from workers.engines.vllm import VLLM
from workers.probe import Probe

METRICS = (
    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    'vllm:cache_config_info{num_gpu_blocks="257",block_size="16"} 1\n'
)


@contextlib.asynccontextmanager
async def engine(path):
    """A little of vLLM on a socket."""

    async def answer(request):
        if request.method == "POST":
            return web.json_response({"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})
        if request.path == "/metrics":
            return web.Response(text=METRICS)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})
        return web.Response(status=200 if request.path == "/health" else 404)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    try:
        yield f"unix://{path}"
    finally:
        await runner.cleanup()


async def usable(gateway):
    """The one worker, once it is known; then a request through it."""
    deadline = time.monotonic() + 20
    while not (workers := (await gateway.fleet())["workers"]) or workers[0]["state"] != "ready":
        assert time.monotonic() < deadline, workers
        await asyncio.sleep(0.02)
    async with gateway.post({}) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["X-Headrace-Worker"] == "w1"
    return workers[0]


async def test_a_worker_of_the_settings_is_asked_over_its_socket(tmp_path):
    async with engine(tmp_path / "engine.sock") as url:
        base = settings_for(tmp_path, [])
        worker = StaticWorker.model_validate({"id": "w1", "url": url, "pool": "short-chat"})
        setup = base.model_copy(update={"workers": (worker,)})
        async with running(setup) as gateway:
            seen = await usable(gateway)
            assert (seen["url"], seen["max_model_len"]) == (url, 4096)


async def test_an_agent_reports_an_engine_behind_a_socket(tmp_path):
    valkey = await start_valkey()
    redis = connect(valkey.url)
    stop = asyncio.Event()
    async with engine(tmp_path / "engine.sock") as url:
        async with Probe(VLLM, url, "tiny", None, None) as probe:
            await probe.ask("hi")
            assert (await probe.read()).kv_tokens == 256 * 16
        target = AgentTarget("w1", url, "short-chat", fleet="socket")
        agent = asyncio.create_task(run_agent(VLLM, target, redis, stop, 0.05))
        try:
            async with running(settings_for(tmp_path, [], redis=valkey.url, fleet="socket"), fresh=True) as gateway:
                assert (await usable(gateway))["url"] == url
        finally:
            stop.set()
            await agent
    await redis.close()
    await valkey.stop(grace_s=0.0)
