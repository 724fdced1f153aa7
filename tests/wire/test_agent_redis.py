"""Agents through every kind of Redis that gateways take: Sentinel and a failover, a cluster, a replica; their user."""

import asyncio
import logging
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis_client
from redis.asyncio import Redis
from redis_support import a_cluster, behind_sentinels, free_ports, server
from test_agent import ScriptedEngine

from gateway.process import Child
from workers.agent import AgentTarget, run_agent
from workers.engines.vllm import VLLM
from workers.redis_client import close_client, make_client
from workers.report import decode, report_key, workers_key
from workers.report_link import ReportLink, connect

DOCS = Path(__file__).parents[2] / "docs" / "redis.md"
KEYS = (report_key("east", "w1"), workers_key("east"))


@asynccontextmanager
async def reporting(url: str, taken: list[bool] | None = None) -> AsyncIterator[ScriptedEngine]:
    """An agent beside an engine; it takes its worker out in the end."""
    stop, link = asyncio.Event(), connect(url)
    heard = [] if taken is None else taken
    async with ScriptedEngine() as engine:
        target = AgentTarget("w1", engine.url, "short-chat", fleet="east")
        agent = asyncio.create_task(
            run_agent(VLLM, target, link, stop, 0.05, on_report=lambda _, was_taken: heard.append(was_taken))
        )
        try:
            yield engine
            assert not agent.done(), "an agent survives all of it"
        finally:
            stop.set()
            await agent
            await link.close()


async def until(true: Callable[[], bool], what: object, within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def seen(url: str, running: int, within_s: float = 40.0) -> None:
    """Until a reader through the same kind of URL finds the report that says so."""
    deadline = time.monotonic() + within_s
    client = make_client(url)
    told: object = None
    while True:
        try:
            raw = await client.get(KEYS[0])
            told = raw and decode(raw, "w1").running
        except Exception as error:  # whatever a failover does to the reader, the test goes on looking
            told = error
        if told == running:
            break
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.05)
    assert await client.smembers(KEYS[1]) == {b"w1"}
    await close_client(client)


async def gone(url: str) -> bool:
    client = make_client(url)
    try:
        return not await client.exists(KEYS[0])
    finally:
        await close_client(client)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the agent said of Redis."""
    return [text for each in caplog.records if "to Redis" in (text := each.getMessage())]


async def test_reports_reach_the_primary_that_sentinels_name_and_the_next_one(tmp_path, caplog):
    caplog.set_level(logging.INFO, "headrace.agent")
    async with behind_sentinels(tmp_path) as (first, nodes):
        url = f"redis+sentinel://{nodes}/mymaster/0"
        async with reporting(url) as engine:
            engine.values["running"] = 3
            await seen(url, 3)
            first.kill()
            await first.wait()
            engine.values["running"] = 5
            await seen(url, 5)
            await until(lambda: lines(caplog)[-1:] == ["reporting w1 to Redis works again"], caplog.text)
        assert await gone(url)
    told = lines(caplog)
    assert told[0].startswith("reporting w1 to Redis fails: ")
    assert len(told) <= 4, "one line a change, not one a failure"


async def test_reports_reach_a_cluster_by_the_agents_own_user(tmp_path):
    async with a_cluster(tmp_path) as nodes:
        admins = [redis_client.Redis.from_url(f"redis://{node}") for node in nodes.split(",")]
        for admin in admins:
            await set_user(admin, "+cluster|slots", "+cluster|shards", "+cluster|nodes", "+command")
        async with reporting(f"redis+cluster://agent:secret@{nodes}") as engine:
            engine.values["running"] = 3
            await seen(f"redis+cluster://{nodes}", 3)
        assert await gone(f"redis+cluster://{nodes}"), "taken out again by the same user"
        for admin in admins:
            assert await admin.execute_command("ACL", "LOG") == []
            await admin.aclose()


async def test_a_primary_that_became_a_replica_is_left_for_the_new_one(tmp_path, caplog):
    """One name before two servers: what answers `READONLY` is asked no longer, although its connections still live."""
    caplog.set_level(logging.INFO, "headrace.agent")
    old, new, name = free_ports(3)
    async with server(old, tmp_path / "old") as first, server(new, tmp_path / "new") as second:
        ports = [old]
        async with a_name(name, ports), reporting(f"redis://127.0.0.1:{name}/0") as engine:
            engine.values["running"] = 3
            await seen(first.url, 3)
            ports[0] = new  # for new connections
            await replicate(first, new)
            engine.values["running"] = 5
            await seen(second.url, 5)
            await until(lambda: lines(caplog)[-1:] == ["reporting w1 to Redis works again"], caplog.text)
    assert "ReadOnlyError" in lines(caplog)[0]
    assert len(lines(caplog)) == 2


@asynccontextmanager
async def a_name(port: int, ports: list[int]) -> AsyncIterator[None]:
    """What a name or a load balancer is: each new connection goes to the server of the day."""

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

    async with await asyncio.start_server(joined, "127.0.0.1", port):
        yield


async def replicate(child: Child, port: int) -> None:
    client = redis_client.Redis.from_url(child.url)
    await client.execute_command("REPLICAOF", "127.0.0.1", port)
    await client.aclose()


def agent_rules() -> list[str]:
    """The agents' user as the documentation has it."""
    match = re.search(r"^ACL SETUSER headrace-agent (.+)$", DOCS.read_text(), re.MULTILINE)
    assert match is not None
    return [rule.replace("FLEET", "east").replace("PASSWORD", "secret") for rule in match[1].split()]


async def set_user(admin: Redis, *more: str) -> None:
    rules = [*agent_rules(), *more]
    if (await admin.info("server"))["redis_version"].startswith("7.0."):
        rules.remove("+client|setinfo")  # as the documentation says
    await admin.execute_command("ACL", "SETUSER", "agent", *rules)
    await admin.execute_command("ACL", "LOG", "RESET")


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
