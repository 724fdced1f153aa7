"""An agent that reports to any kind of Redis, who looks for its reports there, and the user that it may be."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from redis.asyncio import Redis
from test_agent import ScriptedEngine

from workers.agent import AgentTarget, run_agent
from workers.engines.vllm import VLLM
from workers.redis_client import close_client, make_client
from workers.report import decode, report_key, workers_key
from workers.report_link import connect

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


def changes(taken: list[bool]) -> int:
    """How often Redis began or ceased to take reports, after it took the first ones."""
    return sum(one is not other for one, other in pairwise(taken))


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


async def set_sentinel_user(sentinel: Redis) -> None:
    """The user for Sentinels themselves, as the documentation has it."""
    match = re.search(r"Sentinels with users of their own need\s`([^`]+)`", DOCS.read_text())
    assert match is not None
    await sentinel.execute_command("ACL", "SETUSER", "asks", "on", ">asked", "-@all", *match[1].split())
