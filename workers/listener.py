"""A small HTTP listener beside one instance: its own `/metrics`, its report, and whether it lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import orjson
from aiohttp import web

from workers.exposition import CONTENT_TYPE, exposition
from workers.lifecycle import Life
from workers.report import WorkerReport

Now = Callable[[], tuple[WorkerReport, Life | None]]


async def listen(host: str, port: int, now: Now) -> web.AppRunner:
    """Serve until `cleanup()` of what is returned. Raises OSError for an address that cannot be had."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(*now()).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def report(_: web.Request) -> web.Response:
        seen, life = now()
        body = orjson.dumps({"report": seen, "life": None if life is None else asdict(life)})
        return web.Response(body=body, content_type="application/json")

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/report", report), web.get("/livez", alive)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, keepalive_timeout=30)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner
