"""Agents and what becomes of their Redis: a replica, TLS, refusals, too many at once. See `test_redis_moods.py` too."""

import asyncio
import logging
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis_client
from certificates import Authority
from redis.asyncio import Redis
from redis_support import free_ports, server
from reporting_support import KEYS, changes, gone, lines, reporting, seen, set_user, until
from test_agent import ScriptedEngine

from gateway.process import Child
from workers.redis_client import make_client
from workers.report import report_key
from workers.report_link import ReportLink


async def test_a_primary_that_became_a_replica_is_left_for_the_new_one(tmp_path, caplog):
    """One name before two servers: what answers `READONLY` is asked no longer, although its connections still live."""
    caplog.set_level(logging.INFO, "headrace.agent")
    old, new, name = free_ports(3)
    async with server(old, tmp_path / "old") as first, server(new, tmp_path / "new") as second:
        ports, taken = [old], list[bool]()
        async with a_name(name, ports), reporting(f"redis://127.0.0.1:{name}/0", taken) as engine:
            engine.values["running"] = 3
            await seen(first.url, 3)
            await replicate(first, new)
            await until(lambda: any("ReadOnlyError" in line for line in lines(caplog)), caplog.text)
            ports[0] = new  # for new connections
            engine.values["running"] = 5
            await seen(second.url, 5)
            await until(lambda: lines(caplog)[-1:] == ["reporting w1 to Redis works again"], caplog.text)
    assert len(lines(caplog)) <= changes(taken) + 2, "a line a change, not one a failure"


@asynccontextmanager
async def a_name(port: int, ports: list[int], tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """What a name or a load balancer is: each new connection goes to the server of the day; it may end TLS."""

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one side has left, and so does the other
        finally:
            writer.close()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", ports[0])
        await asyncio.gather(copied(reader, back), copied(there, writer))
        await asyncio.gather(back.wait_closed(), writer.wait_closed(), return_exceptions=True)

    pairs: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pairs.add(asyncio.create_task(joined(reader, writer)))

    async with await asyncio.start_server(accepted, "127.0.0.1", port, ssl=tls):
        yield
    await asyncio.wait_for(asyncio.gather(*pairs), 30)


async def test_tls_is_spoken_and_the_certificate_checked(tmp_path):
    """The bundled server has no TLS, which is why something in front of it speaks it."""
    authority = Authority(tmp_path)
    pair = authority.sign("redis")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)
    port, name = free_ports(2)
    url = f"rediss://127.0.0.1:{name}/0"
    async with server(port, tmp_path / "redis") as child, a_name(name, [port], tls):
        async with reporting(url) as engine:
            await until(lambda: len(engine.asked) >= 6, engine.asked)  # it goes on looking meanwhile
            assert await gone(child.url), "nobody vouches for this certificate"
        async with reporting(f"{url}?ssl_ca_certs={authority.ca}") as engine:
            engine.values["running"] = 3
            await seen(child.url, 3)


async def replicate(child: Child, port: int) -> None:
    client = redis_client.Redis.from_url(child.url)
    await client.execute_command("REPLICAOF", "127.0.0.1", port)
    await client.aclose()


async def test_the_agents_user_may_report_and_nothing_else(tmp_path):
    (port,) = free_ports(1)
    async with server(port, tmp_path / "redis") as child:
        admin = redis_client.Redis.from_url(child.url)
        await set_user(admin)
        url = f"redis://agent:secret@127.0.0.1:{port}/0"
        await attached(url, tmp_path, child.url)
        assert await admin.exists(*KEYS) == 0
        assert await admin.execute_command("ACL", "LOG") == [], "it asked for nothing else"
        stranger = redis_client.Redis.from_url(url)
        refused = (["GET", KEYS[0]], ["SMEMBERS", KEYS[1]], ["SET", "headrace:{east}:policy", "x"], ["KEYS", "*"])
        for command in (*refused, ["SET", report_key("west", "w1"), "x"], ["EVAL", "return 1", "0"], ["FLUSHALL"]):
            with pytest.raises(redis_client.ResponseError):
                await stranger.execute_command(*command)
        await stranger.aclose()
        await admin.aclose()


async def attached(url: str, directory: Path, reader: str) -> None:
    """`headrace worker attach` as one starts it, its Redis in a file, until its report is there; ended by SIGTERM."""
    secret = directory / "redis.url"
    secret.write_text(f"{url}\n")
    async with ScriptedEngine() as engine:
        engine.values["running"] = 3
        argv = [sys.executable, "-m", "headrace", "worker", "attach", "--engine", "vllm", "--url", engine.url]
        argv += ["--pool", "short-chat", "--id", "w1", "--fleet", "east", "--redis", f"file:{secret}"]
        child = await asyncio.create_subprocess_exec(*argv)
        try:
            await seen(reader, 3)
            child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(child.wait(), 30) == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def test_many_agents_take_turns_and_each_waits_a_second_at_most():
    """The bounds of the way to Redis: four operations at once, and none is waited for longer than its time."""
    link = ReportLink(make_client("redis://127.0.0.1:1/0"))
    at_once: list[int] = [0, 0]

    async def endless(_: Redis) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        try:
            await asyncio.Event().wait()
        finally:
            at_once[0] -= 1

    ends = await asyncio.gather(*(link.run(endless) for _ in range(9)), return_exceptions=True)
    assert [type(end) for end in ends] == [TimeoutError] * 9
    assert at_once == [0, 4]
    waiting = asyncio.create_task(link.run(endless))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await link.close()
