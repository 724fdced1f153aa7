"""`headrace worker run` with simulated engines: start, watch, restart, drain, and nothing left behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import aiohttp
import pytest
import yaml
from click.testing import CliRunner
from supervisor_support import (
    CARD,
    alive,
    document,
    environment_of,
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

from gateway.ports import free_port
from gateway.process import start_valkey
from workers.cli import worker
from workers.lifecycle import RestartPolicy
from workers.process import GUARDIAN
from workers.processes import read_process
from workers.redis_client import make_client


@pytest.fixture
async def valkey():
    server = await start_valkey()
    yield server.url
    await server.stop(grace_s=0.0)


@pytest.fixture
async def redis(valkey):
    client = make_client(valkey)
    yield client
    await client.aclose()


async def test_start_report_drain_and_end(tmp_path, valkey, redis):
    port = free_port()
    one = simulated("a", agent_port=port, warmup_prompts=["You are a helpful assistant."], env={"WORD": "x y"})
    async with running(tmp_path, valkey, [one, simulated("b", pool="long-context")]) as run:
        ready = await run.event("ready")
        assert {each["id"]: each["pool"] for each in ready["instances"]} == {"a": "short-chat", "b": "long-context"}
        engine = await run.event("instance", id="a", state="warming")
        assert environment_of(engine["engine_pid"])[b"WORD"] == b"x y"
        seen = await reported(redis, "a", "ready")
        assert (seen.pool, seen.models, seen.max_model_len) == ("short-chat", ("tiny",), 4096)
        async with asyncio.timeout(30):  # readiness and warm-up were real inferences
            while seen.prompt_tokens <= 5:
                seen = await report(redis, "a")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                page = await answer.text()
            async with session.get(f"http://127.0.0.1:{port}/report") as answer:
                assert (await answer.json())["life"]["state"] == "ready"
        assert 'headrace_worker_waiting{worker="a",pool="short-chat",engine="simulator"} 0' in page
        assert 'headrace_instance_state{worker="a",pool="short-chat",engine="simulator",state="ready"} 1' in page
        assert await run.end() == 0
        states = [event["state"] for event in run.events if event["event"] == "instance" and event["id"] == "a"]
        assert states == ["starting", "warming", "ready", "draining", "stopping", "stopped"]
        assert run.events[-1] == {"event": "stopped"}
        assert await report(redis, "a") is None
        assert not any(alive(pid) for pid in run.pids())
    assert list((tmp_path / "state" / "running").iterdir()) == []
    assert "serves tiny" in (tmp_path / "state" / "logs" / "a.log").read_text()


async def test_a_killed_engine_is_started_again_as_another_incarnation(tmp_path, valkey, redis):
    async with running(tmp_path, valkey, [simulated("a")]) as run:
        await run.event("ready")
        before = await reported(redis, "a", "ready")
        told = len(run.events)
        os.kill((await run.event("instance", state="ready"))["engine_pid"], signal.SIGKILL)
        failed = await run.event("instance", after=told, state="failed")
        assert failed["why"].startswith("ended with SIGKILL")
        assert failed["failures"] == 1
        await run.event("instance", after=told, state="ready")
        after = await reported(redis, "a", "ready")
        assert after.incarnation != before.incarnation


async def test_a_killed_supervisor_leaves_nothing(tmp_path, valkey):
    async with running(tmp_path, valkey, [simulated("a"), simulated("b")]) as run:
        await run.event("ready")
        pids = run.pids()
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
        await run.end(signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids), "nothing is left")
    # The next one finds records of what has ended, and starts.
    async with running(tmp_path, valkey, [simulated("a")]) as run:
        await run.event("ready")


async def test_draining_loses_no_stream(tmp_path, valkey, redis):
    one = simulated("a", speed=4)
    async with running(tmp_path, valkey, [one]) as run, aiohttp.ClientSession() as session:
        await run.event("ready")
        started = asyncio.Event()
        text = asyncio.create_task(stream(f"http://127.0.0.1:{one['port']}", 800, session, started))
        await started.wait()
        run.process.send_signal(signal.SIGTERM)
        await reported(redis, "a", "draining")
        assert not text.done()
        assert finished(await text)
        assert await run.process.wait() == 0


async def test_a_second_signal_ends_the_patience(tmp_path, valkey):
    one = simulated("a", speed=0.01)
    async with running(tmp_path, valkey, [one]) as run, aiohttp.ClientSession() as session:
        await run.event("ready", within_s=60)
        started = asyncio.Event()
        text = asyncio.create_task(stream(f"http://127.0.0.1:{one['port']}", 900, session, started))
        await started.wait()
        run.process.send_signal(signal.SIGTERM)
        await run.event("instance", state="draining")
        assert await run.end() == 0
        with pytest.raises(aiohttp.ClientError):
            await text


async def test_what_an_earlier_run_left_is_shown_and_ended_on_request(tmp_path, valkey):
    async with running(tmp_path, valkey, [simulated("a")]) as run:
        engine = await run.event("instance", state="warming")
        # Both of those that would have cleaned up are killed; one that had left the engine's session stays.
        record = next((tmp_path / "state" / "running").iterdir())
        stray = await asyncio.create_subprocess_exec(
            *("/bin/sleep", "600"), env={"HEADRACE_INSTANCE_MARK": yaml.safe_load(record.read_text())["mark"]}
        )
        try:
            run.process.kill()
            await run.process.wait()
            with contextlib.suppress(ProcessLookupError):  # it may have seen that its supervisor is gone
                os.kill(engine["pid"], signal.SIGKILL)
            again = [simulated("a")]
            async with running(tmp_path, valkey, again) as refused:
                left = await refused.event("leftover")
                assert (left["instance"], left["pids"]) == ("a", [stray.pid])
                assert await refused.process.wait() == 1
            assert "worker run --clean" in (tmp_path / "stderr").read_text()
            assert alive(stray.pid)
            async with running(tmp_path, valkey, again, "--clean") as cleaned:
                await cleaned.event("ready")
                assert await stray.wait() == -signal.SIGKILL
        finally:
            if stray.returncode is None:
                stray.kill()
                await stray.wait()


def headrace(*arguments):
    return CliRunner().invoke(worker, ["run", *arguments])


def written(tmp_path, instances, **shared):
    path = tmp_path / "workers.yaml"
    path.write_text(yaml.safe_dump(document(instances, **shared)))
    return str(path)


def test_a_dry_run_prints_ledgers_and_command_lines(tmp_path):
    path = written(tmp_path, [on_card("a", 8), on_card("b", 8)], devices=CARD)
    done = headrace("-c", path, "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "workers.engines.simulator_cli --id a" in done.stdout
    assert "8.00 GiB" in done.stdout
    as_json = yaml.safe_load(headrace("-c", path, "--dry-run", "--json").stdout)
    assert as_json["ok"] is True
    assert as_json["instances"]["a"]["argv"][-1] == "0"
    assert as_json["memory"]["devices"][0]["device"] == "card"
    assert {"a", "b"} == {row["instance"] for row in as_json["ports"] if row["purpose"] == "port"}
    assert all(str(row["first"]) in done.stdout for row in as_json["ports"])
    assert as_json["port_clashes"] == []


def test_a_dry_run_refuses_a_colliding_debug_port(tmp_path):
    one, other = simulated("a"), simulated("b")
    other["debug_port"] = one["port"]
    done = headrace("-c", written(tmp_path, [one, other]), "--dry-run")
    assert done.exit_code == 2
    assert f"port {one['port']} is wanted by a (port) and by b (debug_port)" in done.stdout + done.stderr
    assert "also b: debug_port" in done.stdout  # the ledger is shown all the same
    as_json = yaml.safe_load(headrace("-c", tmp_path / "workers.yaml", "--dry-run", "--json").stdout)
    assert as_json["port_clashes"] == [f"port {one['port']} is wanted by a (port) and by b (debug_port)"]
    assert [row["purpose"] for row in as_json["ports"] if row["first"] == one["port"]] == ["port", "debug_port"]


def test_faults_of_the_file_and_of_the_ledgers_are_told_together(tmp_path):
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    shape |= {"num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    one = on_card("a", 14)
    two = on_card("b", 14) | {"debug_port": one["port"], "model_path": str(tmp_path), "max_model_len": 9_000_000}
    path = written(tmp_path, [one, two], devices=CARD)
    for options in (["--dry-run"], ["--state-dir", str(tmp_path / "s")]):
        done = headrace("-c", path, *options)
        assert done.exit_code == 2
        assert done.stderr.count("is wanted by a (port) and by b (debug_port)") == 1
        assert "instances[1].max_model_len: a request of 9000000 tokens needs" in done.stderr
        assert "the largest that fits is " in done.stderr
        assert "instances[1].kv_bytes: device card is over-committed" in done.stderr


def test_a_port_that_somebody_has_is_refused_with_the_owner(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], stdout=subprocess.PIPE
    ) as server:
        try:
            port = int(server.stdout.readline().split()[5])
            one = simulated("a") | {"port": port}
            done = headrace("-c", written(tmp_path, [one]), "--state-dir", str(tmp_path / "s"))
        finally:
            server.kill()
    assert done.exit_code == 2
    assert "nothing was started" in done.stderr
    assert f"by pid {server.pid} (" in done.stderr
    assert "http.server" in done.stderr


def test_over_committed_memory_is_refused(tmp_path):
    path = written(tmp_path, [on_card("a", 14), on_card("b", 14)], devices=CARD)
    done = headrace("-c", path, "--dry-run")
    assert done.exit_code == 2
    assert "device card is over-committed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-c", "/nowhere.yaml"], "/nowhere.yaml: No such file or directory"),
        (["-c", "FILE", "--set", "x"], "'x' must be NAME=VALUE"),
        (["-c", "FILE", "--redis", "none"], "redis: must be a URL that begins with redis://"),
    ],
)
def test_wrong_usage(tmp_path, arguments, says):
    path = written(tmp_path, [simulated("a")])
    done = headrace(*[path if word == "FILE" else word for word in arguments], "--state-dir", str(tmp_path / "s"))
    assert done.exit_code == 2
    assert says in done.stderr


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    one = simulated("a") | {"max_model_len": 0, "no_such_key": 1}
    done = headrace("-c", written(tmp_path, [one]))
    assert done.exit_code == 2
    assert "max_model_len" in done.stderr
    assert "no_such_key" in done.stderr


# === the supervisor as an object ===


async def test_starts_on_one_device_happen_one_after_another(tmp_path, valkey):
    specs = [on_card("a", 4), on_card("b", 4), simulated("c")]
    async with supervising(tmp_path, valkey, specs, devices=CARD) as (supervisor, seen):
        await until(lambda: supervisor.all_ready, "all are ready")
        order = [(who, state) for who, state, _ in seen]
        assert order.index(("a", "ready")) < order.index(("b", "starting"))
        assert order.index(("c", "starting")) < order.index(("a", "ready"))


async def test_one_that_never_answers_is_ended_tried_again_and_given_up(tmp_path, valkey):
    deaf = simulated("a", start_timeout_s=1, stop_grace_s=0.1) | {"program": ["/bin/sh", "-c", "sleep 600", "sh"]}
    async with supervising(tmp_path, valkey, [deaf], RestartPolicy(base_s=0.01, give_up_after=2)) as (supervisor, seen):
        (runner,) = supervisor.runners
        await until(lambda: runner.life.given_up, "it is given up")
        assert [state for _, state, _ in seen] == ["starting", "failed", "pending", "starting", "failed"]
        assert seen[-1][2].startswith("not ready within 1 s: ")
        assert not [process for process in guardians() if str(tmp_path) in process]


async def test_one_that_ends_at_once_fails_with_its_last_words(tmp_path, valkey):
    loud = simulated("a") | {"program": ["/bin/sh", "-c", "echo no device >&2; exit 3"]}
    async with supervising(tmp_path, valkey, [loud], RestartPolicy(give_up_after=1)) as (supervisor, seen):
        (runner,) = supervisor.runners
        await until(lambda: runner.life.given_up, "it is given up")
        assert seen[-1][2] == "ended with status 3: no device"
        assert runner.life.why == seen[-1][2]


async def test_an_engine_that_hangs_is_started_anew(tmp_path, valkey):
    one = simulated("a", hang_timeout_s=0.5, stop_grace_s=0.1)
    async with supervising(tmp_path, valkey, [one]) as (supervisor, seen):
        await until(lambda: supervisor.all_ready, "it is ready")
        before = supervisor.runners[0].process.engine_pid
        os.kill(before, signal.SIGSTOP)
        failed = await until(lambda: [why for _, state, why in seen if state == "failed"], "it has failed")
        assert failed[0].startswith("does not answer for ")
        await until(lambda: supervisor.all_ready, "it is ready again")
        assert supervisor.runners[0].process.engine_pid != before


async def test_an_engine_that_hangs_while_it_drains_is_not_waited_for(tmp_path, valkey, monkeypatch):
    monkeypatch.setattr("workers.runner.SILENT_LOOKS", 1)
    one = simulated("a", stop_grace_s=0.1, drain_timeout_s=60)
    async with supervising(tmp_path, valkey, [one]) as (supervisor, seen):
        await until(lambda: supervisor.all_ready, "it is ready")
        os.kill(supervisor.runners[0].process.engine_pid, signal.SIGSTOP)
        async with asyncio.timeout(40):
            await supervisor.close()
        assert seen[-1][1] == "stopped"


def guardians():
    """Command lines of all guardians that run."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and read_process(int(name)) is not None:
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read().decode(errors="replace")
            except OSError:
                continue
            if str(GUARDIAN) in line:
                found.append(line)
    return found
