"""The first request after the ready line: engines that have to say what they serve were asked by then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from plain_worker import ANSWER
from running_gateway import running, settings_for

from gateway.fleet_sync import FIRST_ASK_S
from gateway.settings import Settings, StaticWorker


@asynccontextmanager
async def engine(*, silent: bool = False) -> AsyncIterator[str]:
    """The URL of an engine that takes a moment to say which models it has, or never does."""

    async def models(_: web.Request) -> web.Response:
        await asyncio.sleep(60.0 if silent else 0.05)  # what a busy engine takes
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 2048}]})

    async def chat(_: web.Request) -> web.Response:
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def asking(tmp_path, *urls: str) -> Settings:
    """Settings that leave to the engines what they serve."""
    workers = [{"id": f"w{number}", "url": url, "pool": "short-chat"} for number, url in enumerate(urls, 1)]
    static = tuple(StaticWorker.model_validate(each) for each in workers)
    return settings_for(tmp_path, []).model_copy(update={"workers": static})


async def test_the_first_request_after_ready_is_served(tmp_path):
    async with engine() as url:
        for _ in range(10):
            async with running(asking(tmp_path, url)) as gateway, gateway.post({}) as answer:
                assert answer.status == 200, await answer.text()


async def test_a_silent_engine_keeps_nobody_waiting(tmp_path):
    """It delays the start by a bounded time, and those beside it not at all beyond that."""
    assert FIRST_ASK_S <= 2.0
    async with (
        asyncio.timeout(30),
        engine(silent=True) as silent,
        engine() as url,
        running(asking(tmp_path, silent, url)) as gateway,
    ):
        async with gateway.post({}) as answer:
            assert answer.status == 200
        assert [worker["id"] for worker in (await gateway.fleet())["workers"]] == ["w2"]
