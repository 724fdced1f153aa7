"""A changed file while the supervisor runs: only what differs is touched, and a bad change changes nothing."""

import asyncio
import signal

import aiohttp
import pytest
import yaml
from supervisor_support import (
    CARD,
    adopted,
    document,
    finished,
    on_card,
    report,
    reported,
    running,
    simulated,
    stream,
    supervising,
    until,
)

from gateway.process import start_valkey
from workers.redis_client import make_client


@pytest.fixture
async def valkey():
    server = await start_valkey()
    yield server.url
    await server.stop(grace_s=0.0)


def who(supervisor):
    return {runner.id: runner.process.engine_pid for runner in supervisor.runners if runner.process is not None}


async def ready(supervisor):
    await until(lambda: supervisor.all_ready, "all are ready")
    return who(supervisor)


async def test_the_same_file_changes_nothing(tmp_path, valkey):
    specs = [simulated("a"), simulated("b")]
    async with supervising(tmp_path, valkey, specs) as (supervisor, seen):
        before = await ready(supervisor)
        told = len(seen)
        assert await supervisor.adopt(adopted(specs)) == []
        assert who(supervisor) == before
        assert len(seen) == told


async def test_one_comes_one_goes_and_the_rest_stays(tmp_path, valkey):
    stays, goes, comes = simulated("stays"), simulated("goes", drain_timeout_s=5), simulated("comes")
    async with supervising(tmp_path, valkey, [stays, goes]) as (supervisor, _):
        before = await ready(supervisor)
        assert await supervisor.adopt(adopted([stays, comes])) == []
        after = await ready(supervisor)
        assert set(after) == {"stays", "comes"}
        assert after["stays"] == before["stays"]


async def test_timing_alone_needs_no_new_process(tmp_path, valkey):
    one = simulated("a")
    async with supervising(tmp_path, valkey, [one]) as (supervisor, _):
        before = await ready(supervisor)
        assert await supervisor.adopt(adopted([one | {"drain_timeout_s": 7, "stop_grace_s": 3}])) == []
        assert who(supervisor) == before
        assert supervisor.runners[0].spec.drain_timeout_s == 7


async def test_a_changed_instance_stands_beside_the_old_one_until_it_serves(tmp_path, valkey):
    one = simulated("a", speed=4)
    redis = make_client(valkey)
    async with supervising(tmp_path, valkey, [one]) as (supervisor, seen), aiohttp.ClientSession() as session:
        before = await ready(supervisor)
        started = asyncio.Event()
        text = asyncio.create_task(stream(f"http://127.0.0.1:{one['port']}", 600, session, started))
        await started.wait()
        assert await supervisor.adopt(adopted([one | {"max_num_seqs": 7}])) == []
        assert finished(await text)
        order = [(worker, state) for worker, state, _ in seen]
        assert order.index(("a:2", "ready")) < order.index(("a", "draining"))
        assert set(after := who(supervisor)) == {"a:2"}
        assert after["a:2"] != before["a"]
        (runner,) = supervisor.runners
        assert runner.spec.port != one["port"]
        assert (await report(redis, "a:2")).max_num_seqs == 7
        assert await report(redis, "a") is None
        # And back again, under the first name.
        assert await supervisor.adopt(adopted([one])) == []
        assert set(who(supervisor)) == {"a"}
    await redis.aclose()


async def test_a_change_that_does_not_come_up_leaves_the_old_one_alone(tmp_path, valkey):
    one = simulated("a")
    async with supervising(tmp_path, valkey, [one]) as (supervisor, seen):
        before = await ready(supervisor)
        bad = one | {"extra_flags": [*one["extra_flags"], "--no-such-flag"]}
        (fault,) = await supervisor.adopt(adopted([bad]))
        assert fault.startswith("a: stays as it was; the new one failed: ended with status 2: ")
        assert who(supervisor) == before
        assert ("a", "draining") not in [(worker, state) for worker, state, _ in seen]


async def test_without_room_beside_the_old_one_goes_first(tmp_path, valkey):
    one = on_card("a", 14)
    async with supervising(tmp_path, valkey, [one], devices=CARD) as (supervisor, seen):
        await ready(supervisor)
        assert await supervisor.adopt(adopted([one | {"max_num_seqs": 7}], devices=CARD)) == []
        order = [(worker, state) for worker, state, _ in seen]
        assert order.index(("a", "stopped")) < len(order) - 1 - order[::-1].index(("a", "ready"))
        assert set(who(supervisor)) == {"a"}
        assert supervisor.runners[0].spec.max_num_seqs == 7
        assert supervisor.runners[0].spec.port == one["port"]


async def test_room_is_reckoned_with_what_runs_as_it_runs(tmp_path, valkey):
    """Old and new have one name: 20 GiB and 6 GiB are more than 24, and twice 6 are not."""
    one = on_card("a", 20)
    async with supervising(tmp_path, valkey, [one], devices=CARD) as (supervisor, seen):
        await ready(supervisor)
        assert await supervisor.adopt(adopted([on_card("a", 6) | {"port": one["port"]}], devices=CARD)) == []
        order = [(worker, state) for worker, state, _ in seen]
        assert order.index(("a", "stopped")) < len(order) - 1 - order[::-1].index(("a", "ready"))
        assert set(who(supervisor)) == {"a"}, "the old one went first"


async def test_without_room_a_bad_change_returns_to_the_old_one(tmp_path, valkey):
    one = on_card("a", 14)
    async with supervising(tmp_path, valkey, [one], devices=CARD) as (supervisor, _):
        await ready(supervisor)
        bad = one | {"extra_flags": [*one["extra_flags"], "--no-such-flag"]}
        (fault,) = await supervisor.adopt(adopted([bad], devices=CARD))
        assert fault.startswith("a: is as it was again; the new one failed: ended with status 2: ")
        await ready(supervisor)
        assert supervisor.runners[0].spec.extra_flags == tuple(one["extra_flags"])


async def test_a_canary_serves_its_own_pool_first(tmp_path, valkey):
    one = simulated("a")
    redis = make_client(valkey)
    async with supervising(tmp_path, valkey, [one]) as (supervisor, seen):
        await ready(supervisor)
        change = one | {"max_num_seqs": 7, "canary_pool": "canary", "canary_s": 1}
        rolling = asyncio.create_task(supervisor.adopt(adopted([change])))
        told = await reported(redis, "a:2", "ready")
        assert told.pool == "canary"
        assert (await report(redis, "a")).state == "ready"
        assert await rolling == []
        assert (await report(redis, "a:2")).pool == "short-chat"
        assert ("a", "stopped") in [(worker, state) for worker, state, _ in seen]
    await redis.aclose()


async def test_a_canary_is_taken_back_by_the_next_file_unless_that_has_faults(tmp_path, valkey):
    """What `canary_s: 0` does then, and both under load, is in test_app_rolling.py."""
    one = simulated("a")
    async with supervising(tmp_path, valkey, [one]) as (supervisor, _):
        before = await ready(supervisor)
        change = one | {"max_num_seqs": 7, "canary_pool": "canary", "canary_s": 600}
        rolling = asyncio.create_task(supervisor.adopt(adopted([change])))
        await until(lambda: "a:2" in who(supervisor), "the canary runs")
        await next(runner for runner in supervisor.runners if runner.id == "a:2").wait_state({"ready"})
        broken = adopted([on_card("a", 99)], devices=CARD)
        assert len(await supervisor.adopt(broken)) == 1
        assert set(who(supervisor)) == {"a", "a:2"}
        assert await supervisor.adopt(adopted([one])) == []
        assert await rolling == ["a: stays as it was; the change was taken back"]
        assert who(supervisor) == before


async def test_a_change_that_is_slow_to_come_up_is_taken_back(tmp_path, valkey):
    one = simulated("a")
    async with supervising(tmp_path, valkey, [one]) as (supervisor, _):
        before = await ready(supervisor)
        slow = one | {"program": ["/bin/sh", "-c", "sleep 600", "sh"], "stop_grace_s": 0.1}
        rolling = asyncio.create_task(supervisor.adopt(adopted([slow])))
        await until(lambda: "a:2" in who(supervisor), "the new one is starting")
        assert await supervisor.adopt(adopted([one])) == []
        assert await rolling == ["a: stays as it was; the change was taken back"]
        assert who(supervisor) == before


async def test_a_file_that_does_not_fit_changes_nothing(tmp_path, valkey):
    one = on_card("a", 14)
    async with supervising(tmp_path, valkey, [one], devices=CARD) as (supervisor, _):
        before = await ready(supervisor)
        (fault,) = await supervisor.adopt(adopted([one, on_card("b", 14)], devices=CARD))
        assert "over-committed" in fault
        assert who(supervisor) == before


async def test_sighup_reads_the_file_again(tmp_path, valkey):
    one = simulated("a")
    async with running(tmp_path, valkey, [one]) as run:
        await run.event("ready")
        path = tmp_path / "workers.yaml"
        path.write_text("instances: [")
        run.process.send_signal(signal.SIGHUP)
        assert (await run.event("reloaded"))["faults"] >= 1
        told = len(run.events)
        path.write_text(yaml.safe_dump(document([one, simulated("b")])))
        run.process.send_signal(signal.SIGHUP)
        assert (await run.event("reloaded", after=told))["faults"] == 0
        await run.event("instance", id="b", state="ready")
        told = len(run.events)
        path.write_text(yaml.safe_dump(document([one | {"max_num_seqs": 3}])))
        run.process.send_signal(signal.SIGHUP)
        await run.event("instance", after=told, id="a:2", state="starting")
        assert await run.end() == 0  # in the middle of a change
