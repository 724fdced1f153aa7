"""One instance changed under load: new beside old, its share moved by the policy's weights, and back: nothing fails."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass

import aiohttp
import pytest
from admin_support import Api, settings
from running_gateway import running, until
from supervisor_support import FLEET, adopted, simulated, supervising

from gateway.process import start_valkey
from policies.canaries import place_of
from workers import settings as worker_settings
from workers.redis_client import make_client

CLIENTS = 6
SESSIONS = [f"s{number}" for number in range(24)]
USUAL = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "stream": True}


@pytest.fixture
async def valkey():
    server = await start_valkey()
    yield server.url
    await server.stop(grace_s=0.0)


def policy(weight):
    canary = f"canary: [{{pool: canary, weight: {weight}}}]" if weight else ""
    return (
        "pools: {short-chat: {}, canary: {}}\nretries: {continue_streams: true}\nhealth: {slow_start_s: 0}\n"
        f"models: {{tiny: {{pools: [short-chat], {canary}}}}}\n"
    )


@dataclass
class Answer:
    session: str
    worker: str
    reason: str
    fault: str  # empty: none
    id: str


class Load:
    """Streams without end from a few clients; every answer is kept."""

    def __init__(self, url):
        self.url = url
        self.answers = []
        self._ended = False

    async def client(self, session, first):
        number = first
        while not self._ended:
            self.answers.append(await self._ask(session, SESSIONS[number % len(SESSIONS)]))
            number += CLIENTS

    async def _ask(self, session, name):
        body = USUAL | {"ignore_eos": True}
        async with session.post(f"{self.url}/v1/chat/completions", json=body, headers={"X-Session-Id": name}) as answer:
            text = (await answer.read()).decode()
            whole = answer.status == 200 and text.endswith("data: [DONE]\n\n") and '"error"' not in text
            head = answer.headers
            return Answer(
                name,
                head.get("X-Headrace-Worker", ""),
                head.get("X-Headrace-Reason", ""),
                "" if whole else f"{answer.status} {text[-300:]}",
                head["X-Request-Id"],
            )

    async def more(self, count=24):
        """So many answers from now on; those that were begun before are left out."""
        since = len(self.answers) + CLIENTS
        await until(lambda: len(self.answers) >= since + count, within_s=60)
        return self.answers[since:]

    @contextlib.asynccontextmanager
    async def running(self):
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for first in range(CLIENTS):
                group.create_task(self.client(session, first))
            yield
            self._ended = True


@contextlib.asynccontextmanager
async def one_under_load(tmp_path, valkey):
    """Supervisor with one instance `a`, gateway, and load through it."""
    one = simulated("a", speed=10)
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text(policy(0))
    setup = settings(tmp_path, [], redis=valkey, fleet=FLEET, policy=str(policy_file))
    async with supervising(tmp_path, valkey, [one]) as (supervisor, _), running(setup, fresh=True) as gateway:
        api = Api(gateway)
        await until(lambda: supervisor.all_ready, within_s=30)
        await served_by(api, "a", "short-chat")
        load = Load(gateway.data)
        async with load.running():
            yield one, supervisor, api, load


async def weigh(api, weight):
    async with asyncio.timeout(30):
        while True:
            status, answer = await api.put(policy(weight), query="?force=1")
            if status == 200:
                return
            # On a busy machine Redis may miss its quarter of a second; a person would try again, too.
            assert answer["error"]["code"] == "policy_store_down", answer


async def canary_of(supervisor, one, **more):
    """Begin the change; the task that adopts it, when its canary serves."""
    change = one | {"max_num_seqs": 7, "canary_pool": "canary", "canary_s": 600, **more}
    rolling = asyncio.create_task(supervisor.adopt(adopted([change])))
    await until(lambda: len(supervisor.runners) == 2, within_s=30)
    await supervisor.runners[1].wait_state({"ready"})
    return change, rolling


async def served_by(api, worker, pool):
    """Wait until the gateway has the worker in that pool."""
    deadline = time.monotonic() + 30
    while (worker, pool, "ready") not in (
        seen := [(one["id"], one["pool"], one["state"]) for one in (await api.gateway.fleet())["workers"]]
    ):
        assert time.monotonic() < deadline, seen


def tried(weight):
    return {name for name in SESSIONS if place_of("canary", f"default\0{name}") < weight}


async def test_a_change_under_load_costs_no_request(tmp_path, valkey):
    """Taken back, killed, moved over by weights, and returned from: whole sessions move, and every stream is whole."""
    async with one_under_load(tmp_path, valkey) as (one, supervisor, api, load):
        _, rolling = await canary_of(supervisor, one)
        await served_by(api, "a:2", "canary")
        assert {answer.worker for answer in await load.more()} == {"a"}, "no weight, no traffic"
        for weight in (0.25, 0.75):
            await weigh(api, weight)
            answers = await load.more(36)
            told = {answer.session for answer in answers if answer.reason.startswith(f"canary, weight {weight:g}")}
            assert told == tried(weight)
            assert {answer.worker for answer in answers if answer.session in tried(weight)} == {"a:2"}
            assert {answer.worker for answer in answers if answer.session not in tried(weight)} == {"a"}
        story = await api.get(f"requests/{next(one.id for one in answers if one.session in tried(0.75))}")
        assert "canary, weight 0.75" in json.dumps(story)

        assert await supervisor.adopt(adopted([one])) == []
        assert await rolling == ["a: stays as it was; the change was taken back"]
        await load.more()  # what was on its way
        assert {answer.worker for answer in await load.more()} == {"a"}

        _, rolling = await canary_of(supervisor, one)
        await served_by(api, "a:2", "canary")
        await load.more()
        supervisor.runners[1].process.kill()
        assert (await rolling)[0].startswith("a: stays as it was; the new one failed: ")

        change, rolling = await canary_of(supervisor, one)
        await served_by(api, "a:2", "canary")
        assert await supervisor.adopt(adopted([change | {"canary_s": 0}])) == []
        assert await rolling == []
        await served_by(api, "a:2", "short-chat")
        await load.more()
        assert {answer.worker for answer in await load.more()} == {"a:2"}, "the weight is left over and harms nobody"

        assert await supervisor.adopt(adopted([one])) == []
        await load.more()
        assert {answer.worker for answer in await load.more()} == {"a"}, "back to the old form"
    assert [answer.fault for answer in load.answers if answer.fault] == []


async def test_agents_find_the_redis_that_the_gateway_of_their_host_started(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_REDIS", raising=False)
    setup = settings(tmp_path, [], redis="embedded", state_dir=str(tmp_path / "headrace"))
    async with running(setup):
        redis = make_client(worker_settings.redis_url())
        assert await redis.ping()
        await redis.aclose()
    assert worker_settings.redis_url() == worker_settings.DEFAULT_REDIS
