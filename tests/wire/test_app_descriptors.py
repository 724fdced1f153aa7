"""BR-12-03, rows 52 and 73: more clients than there are descriptors for."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from plain_worker import plain_worker
from replica_support import Gateway

from gateway.process import Child

DESCRIPTORS = 128
CAP = 32
CLIENTS = 200
QUESTION = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: 62\r\n\r\n"
    b'{"model":"tiny","messages":[{"role":"user","content":"hey!"}]}'
)


async def test_clients_beyond_the_cap_are_turned_away_and_nobody_else_notices(tmp_path: Path) -> None:
    async with plain_worker() as worker, AsyncExitStack() as stack:
        log = tmp_path / "events.log"
        file = tmp_path / "headrace.yaml"
        described = {"id": "w1", "url": worker.url, "pool": "short-chat", "models": ["tiny"], "max_model_len": 4096}
        settings = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "redis": "none",
            "workers": [{**described, "max_num_seqs": 64, "kv_tokens": 1_000_000}],
            "state_dir": str(tmp_path / "state"),
            "access_log": "none",
            "event_log": str(log),
            "drain_s": 5,
        }
        file.write_text(json.dumps(settings))
        serve = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -P -m headrace serve -c {file} --json"
        child = await Child.start("gateway", ["/bin/bash", "-c", serve])
        stack.push_async_callback(child.stop, grace_s=10)
        ready = await child.wait_ready(30)
        gateway = Gateway(child, str(ready["data"]), str(ready["admin"]))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        host, port = gateway.data.removeprefix("http://").split(":")

        clients = [await asyncio.open_connection(host, int(port)) for _ in range(CLIENTS)]
        for _, writer in clients:
            stack.callback(writer.close)
        ends = [asyncio.ensure_future(reader.read(1)) for reader, _ in clients[CAP:]]
        async with asyncio.timeout(20):
            assert set(await asyncio.gather(*ends, return_exceptions=True)) <= {b"", *_resets(ends)}
        assert await gateway.sample(session, "headrace_connections_refused_total") == CLIENTS - CAP
        assert await gateway.sample(session, "headrace_connections") == CAP

        # Those that are in are served, all at once, over connections to the worker that have descriptors left.
        for _, writer in clients[:CAP]:
            writer.write(QUESTION)
        async with asyncio.timeout(20):
            heads = await asyncio.gather(*(reader.readuntil(b"\r\n") for reader, _ in clients[:CAP]))
        assert set(heads) == {b"HTTP/1.1 200 OK\r\n"}
        async with session.get(f"{gateway.admin}/livez") as answer:
            assert answer.status == 200
        (full,) = await said(log, "connections_full")
        assert full["limit"] == CAP
        assert "ulimit -n" in full["why"]

        for _, writer in clients:
            writer.close()
        await until_free(gateway, session)
        assert await gateway.chat(session) == 200
        assert {each["state"] for each in (await gateway.workers(session)).values()} == {"ready"}
        events = [line["event"] for line in lines(log)]
        assert "internal_error" not in events
        assert events.count("connections_full") == 1


async def said(log: Path, event: str) -> list[dict[str, object]]:
    """The lines about an event, once there are any: the log is written behind the requests."""
    async with asyncio.timeout(20):
        while not (found := [line for line in lines(log) if line["event"] == event]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _resets(ends: list["asyncio.Future[bytes]"]) -> set[object]:
    return {one.exception() for one in ends if one.done() and isinstance(one.exception(), ConnectionError)}


async def until_free(gateway: Gateway, session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(10):
        while await gateway.sample(session, "headrace_connections"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_too_few_descriptors_are_said_at_start(tmp_path: Path) -> None:
    serve = f"ulimit -n 80; exec {sys.executable} -P -m headrace serve --listen 127.0.0.1:0 --admin 127.0.0.1:0"
    process = await asyncio.create_subprocess_exec(
        "/bin/bash", "-c", serve, stderr=asyncio.subprocess.PIPE, env={"HEADRACE_STATE_DIR": str(tmp_path)}
    )
    async with asyncio.timeout(30):
        _, told = await process.communicate()
    assert process.returncode == 2
    assert b"only 80 open files are allowed, 96 are needed" in told
