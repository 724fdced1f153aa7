"""A worker that ends is no place for new requests as soon as its agent knows, not once it counts as silent.

Whole gateways over a real Valkey; `headrace worker attach` is in `test_worker_attach.py`.
"""

import asyncio
import contextlib
import os
import signal
import sys

import orjson
import pytest
from running_gateway import running as gateway_running
from running_gateway import settings_for
from supervisor_support import FLEET, alive, running, simulated, supervising, until

from gateway.process import start_valkey
from workers.agent import FAREWELL_S
from workers.lifecycle import RestartPolicy


@pytest.fixture
async def valkey():
    server = await start_valkey()
    yield server.url
    await server.stop(grace_s=0.0)


@contextlib.asynccontextmanager
async def a_gateway(tmp_path, valkey):
    settings = settings_for(tmp_path, [], redis=valkey, fleet=FLEET)
    async with gateway_running(settings, fresh=True) as gateway:
        yield gateway


async def shown(gateway, worker="a"):
    """The state in which the gateway has a worker; None: it has none of that name."""
    workers = (await gateway.fleet())["workers"]
    return next((each["state"] for each in workers if each["id"] == worker), None)


async def becomes(gateway, *states, within_s=30.0):
    """Wait for a state. A worker whose report is only missing is never one that drains: it goes from ready to none."""
    seen = None
    try:
        async with asyncio.timeout(within_s):
            while (seen := await shown(gateway)) not in states:  # noqa: ASYNC110 - nothing to subscribe to
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{seen} instead of {states} after {within_s} s") from None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_simulated_engine_says_that_it_leaves(tmp_path, valkey, number):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "workers.engines.simulator_cli", "--json", "--id", "a", "--pool", "short-chat"),
        *("--redis", valkey, "--fleet", FLEET, "--max-model-len", "2048"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with a_gateway(tmp_path, valkey) as gateway:
            await becomes(gateway, "ready")
            process.send_signal(number)
            async with asyncio.timeout(20):
                assert orjson.loads((await process.stdout.read()).splitlines()[-1])["event"] == "stopped"
                assert await process.wait() == 0
            assert await shown(gateway) == "draining", "told before the engine ended"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_supervisor_that_ends_has_said_so_of_its_workers(tmp_path, valkey):
    async with running(tmp_path, valkey, [simulated("a")]) as run, a_gateway(tmp_path, valkey) as gateway:
        await becomes(gateway, "ready")
        engine = (await run.event("instance", state="ready"))["engine_pid"]
        run.process.send_signal(signal.SIGTERM)
        await becomes(gateway, "draining")
        await run.event("instance", state="stopped")
        assert not alive(engine)
        assert await shown(gateway) == "draining"


async def test_a_second_signal_leaves_nobody_in_the_belief_that_it_serves(tmp_path, valkey):
    async with running(tmp_path, valkey, [simulated("a")]) as run, a_gateway(tmp_path, valkey) as gateway:
        await becomes(gateway, "ready")
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        assert await run.process.wait() == 0
        assert await shown(gateway) == "draining"


async def test_an_engine_that_died_serves_nobody_while_it_waits_for_its_next_start(tmp_path, valkey):
    """Given up at once: nothing that starts anew under its name tells the gateway in its place."""
    async with (
        supervising(
            tmp_path, valkey, [simulated("a")], restarts=RestartPolicy(give_up_after=1), farewell_s=FAREWELL_S
        ) as (supervisor, seen),
        a_gateway(tmp_path, valkey) as gateway,
    ):
        await becomes(gateway, "ready")
        os.kill(supervisor.runners[0].process.engine_pid, signal.SIGKILL)
        await becomes(gateway, "draining")
        await until(lambda: seen[-1][1] == "failed", "it has failed")


async def test_an_engine_that_hangs_serves_nobody_while_it_is_ended(tmp_path, valkey):
    one = simulated("a", hang_timeout_s=0.5, stop_grace_s=30)
    async with (
        supervising(tmp_path, valkey, [one], farewell_s=FAREWELL_S) as (supervisor, _),
        a_gateway(tmp_path, valkey) as gateway,
    ):
        await becomes(gateway, "ready")
        process = supervisor.runners[0].process
        os.kill(process.engine_pid, signal.SIGSTOP)
        try:
            await becomes(gateway, "draining")
        finally:
            process.kill()


@pytest.mark.parametrize("drain", [False, True])
async def test_one_that_is_ended_without_draining_says_so_too(tmp_path, valkey, drain):
    async with (
        supervising(tmp_path, valkey, [simulated("a", stop_grace_s=30)], farewell_s=FAREWELL_S) as (supervisor, _),
        a_gateway(tmp_path, valkey) as gateway,
    ):
        await becomes(gateway, "ready")
        runner = supervisor.runners[0]
        ending = asyncio.create_task(runner.stop(drain=drain))
        await becomes(gateway, "draining")
        await ending
        assert await shown(gateway) == "draining"
