"""The command line against a running gateway: policies, workers by hand, the audit log, the live view."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from admin_support import ADMIN, POOLS, Api, settings
from click.testing import CliRunner, Result
from plain_worker import PlainWorker, plain_worker
from running_gateway import Running, running

from headrace import cli

Run = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
async def worker() -> AsyncIterator[PlainWorker]:
    async with plain_worker() as found:
        yield found


@pytest.fixture
async def gateway(tmp_path: Path, worker: PlainWorker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("HEADRACE_ADMIN_TOKEN", ADMIN)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with running(settings(tmp_path, [worker], policy=str(path))) as found:
        yield found


@pytest.fixture
def run(gateway: Running) -> Run:
    async def call(*args: str) -> Result:
        # In a thread: the gateway that is asked runs on this one.
        return await asyncio.to_thread(CliRunner().invoke, cli, [*args, "--admin", gateway.admin])

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    # Not the lowest class: that one is turned away while this process, which runs everything, is late.
    path.write_text(POOLS + "default_class: interactive\n")
    return path


def write(file: Path, text: str) -> None:
    file.write_text(text)


def same(one: Path, other: Path) -> bool:
    return one.read_text() == other.read_text()


async def test_diff_apply_history_rollback(run: Run, file: Path) -> None:
    result = await run("policy", "diff", str(file))
    assert (result.exit_code, result.output.splitlines()[0]) == (
        3,
        "default_class: interactive instead of standard (Class of requests that ask for none)",
    )
    assert "+default_class: interactive" in (await run("policy", "diff", "--text", str(file))).output
    result = await run("policy", "apply", str(file), "--note", "try", "--author", "ann")
    assert result.exit_code == 0, result.output
    assert "Revision 2 is in force" in result.output
    result = await run("policy", "diff", str(file))
    assert (result.exit_code, result.output) == (0, "No difference.\n")
    assert "Nothing to do: revision 2" in (await run("policy", "apply", str(file))).output
    history = [json.loads(line) for line in (await run("policy", "history", "--json")).output.splitlines()]
    assert [(one["number"], one["author"], one["note"]) for one in history] == [(2, "ann", "try"), (1, "file", "")]
    result = await run("policy", "rollback", "--json")
    assert json.loads(result.output)["revision"]["reverts"] == 1
    assert "rollback to 1" in (await run("policy", "history")).output
    assert "default_class: interactive" in (await run("policy", "show", "--revision", "2")).output
    assert (await run("policy", "rollback", "99")).exit_code == 1


async def test_apply_to_a_revision_that_has_been_seen(run: Run, file: Path) -> None:
    assert (await run("policy", "apply", str(file), "--if-version", "1")).exit_code == 0
    result = await run("policy", "apply", str(file), "--if-version", "1")
    assert result.exit_code == 1
    assert "headrace: revision 2 is current, not what you have seen: look at it" in result.output
    assert "then apply with --if-version 2\n" in result.output
    result = await run("eject", "nosuch")
    assert (result.exit_code, "/admin/v1" in result.output, "nosuch" in result.output) == (1, False, True)


async def test_a_faulty_file_is_shown_with_a_caret(run: Run, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text("pools:\n  short-chat: {max_budget_tokens: 0}\n")
    for command in ("diff", "apply", "simulate"):
        result = await run("policy", command, str(faulty))
        assert result.exit_code == 2, result.output
        lines = result.output.splitlines()
        assert lines[0].endswith("line 2: pools.short-chat.max_budget_tokens: must be at least 1, got 0")
        assert lines[1] == "    2 |   short-chat: {max_budget_tokens: 0}"
        assert lines[2].rstrip().endswith("^")
    result = await run("policy", "apply", str(faulty), "--json")
    assert json.loads(result.output)["problems"][0]["line"] == 2
    assert (await run("policy", "apply", str(tmp_path / "none.yaml"))).exit_code == 2


async def test_guard_rails_and_force(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("pools: {elsewhere: {}}\n")
    result = await run("policy", "apply", str(other))
    assert result.exit_code == 1
    assert "guard: pool short-chat has 1 worker and would get no requests" in result.output
    result = await run("policy", "apply", str(other), "--force")
    assert (result.exit_code, "Revision 2" in result.output) == (0, True)


async def test_two_files_are_compared_without_a_gateway(tmp_path: Path, file: Path) -> None:
    (tmp_path / "old.yaml").write_text(POOLS)
    result = await asyncio.to_thread(
        CliRunner().invoke, cli, ["policy", "diff", str(tmp_path / "old.yaml"), str(file), "--json"]
    )
    assert (result.exit_code, json.loads(result.output)["different"]) == (3, True)
    (tmp_path / "bad.yaml").write_text("x: 1\n")
    arguments = ["policy", "diff", str(tmp_path / "bad.yaml"), str(file)]
    assert (await asyncio.to_thread(CliRunner().invoke, cli, arguments)).exit_code == 2


async def test_export_writes_back(run: Run, gateway: Running, file: Path, tmp_path: Path) -> None:
    await run("policy", "apply", str(file))
    assert (await run("policy", "export")).output == f"{POOLS}default_class: interactive\n"
    target = tmp_path / "out.yaml"
    assert (await run("policy", "export", str(target))).exit_code == 0
    assert same(target, file)
    assert "says something else" in (await run("policy", "state")).output
    result = await run("policy", "export", "--write-back", "--json")
    assert json.loads(result.output)["file"] == str(tmp_path / "policy.yaml")
    assert same(tmp_path / "policy.yaml", file)
    deadline = asyncio.get_running_loop().time() + 15
    while (await Api(gateway).get("policy/state"))["file"]["drift"]:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    assert (await Api(gateway).get("policy"))["revision"]["number"] == 2, "no revision for what is in force already"
    assert (await run("policy", "export", str(tmp_path / "no" / "where"))).exit_code == 1


async def test_drain_and_undrain(run: Run, gateway: Running, worker: PlainWorker) -> None:
    worker.gate.clear()
    stream = await gateway.post({"stream": True}).__aenter__()
    result = await run("drain", "w1", "--wait", "0.3")
    assert result.exit_code == 1
    assert "1 request still runs on w1" in result.output
    worker.gate.set()
    await stream.read()
    result = await run("drain", "w1", "--wait", "10")
    assert (result.exit_code, "w1: draining, 0 running, limit 4" in result.output) == (0, True)
    assert "w1: ready" in (await run("undrain", "w1")).output
    assert (await run("drain", "none")).exit_code == 1


async def test_cap_eject_readmit(run: Run) -> None:
    assert "limit 2, capped at 2" in (await run("cap", "w1", "2")).output
    assert json.loads((await run("cap", "w1", "none", "--json")).output)["limit"] == 4
    assert (await run("explain", "x")).output == "headrace: no request 'x' among the recent ones\n"
    for places in ("many", "-3"):
        result = await run("cap", "w1", places)
        assert (result.exit_code, f"or none; got '{places}'" in result.output) == (2, True), result.output
    assert (await run("cap", "w1", "-3", "--json")).exit_code == 2
    assert "ejected" in (await run("eject", "w1")).output
    assert "ready" in (await run("readmit", "w1")).output


async def test_tenants_audit_top(run: Run, gateway: Running, file: Path, tmp_path: Path) -> None:
    async with gateway.post({}) as answer:
        assert answer.status == 200
    assert "default" in (await run("tenants")).output
    await run("policy", "apply", str(file), "--author", "ann")
    arguments = ["audit", "show", "--state-dir", str(tmp_path / "state")]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert "policy.apply" in result.output
    assert "ann" in result.output
    arguments = ["audit", "verify", "--state-dir", str(tmp_path / "state")]
    assert (await asyncio.to_thread(CliRunner().invoke, cli, arguments)).exit_code == 0
    log = tmp_path / "state" / "audit.jsonl"
    log.write_text(log.read_text().replace('"ann"', '"bob"'))
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert (result.exit_code, "was changed after it was written" in result.output) == (1, True)
    result = await run("top", "--count", "2", "--interval", "0.1", "--json")
    looks = [json.loads(line) for line in result.output.splitlines()]
    assert len(looks) == 2
    assert looks[0]["workers"][0]["id"] == "w1"
    shown = (await run("top")).output
    assert "revision 2" in shown
    assert "w1" in shown


async def test_without_a_token_nothing_is_changed(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_ADMIN_TOKEN")
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "elsewhere"))
    result = await run("policy", "apply", str(file))
    assert (result.exit_code, "needs Authorization" in result.output) == (1, True)
    remedy = "set HEADRACE_ADMIN_TOKEN, or HEADRACE_STATE_DIR to the gateway's state directory"
    assert f"{remedy} (looked in {tmp_path}/elsewhere)" in result.output
    monkeypatch.setenv("HEADRACE_ADMIN_TOKEN", "wrong-token-of-somebody-else")
    result = await run("eject", "w1")
    assert "this is no token of this gateway; that is what HEADRACE_ADMIN_TOKEN holds" in result.output
    assert (await run("policy", "diff", str(file))).exit_code == 3, "comparing needs none on this host"


async def test_simulate_the_gateways_own_traffic(run: Run, gateway: Running, file: Path, tmp_path: Path) -> None:
    result = await run("policy", "simulate", str(file))
    assert (result.exit_code, "no recorded traffic" in result.output) == (1, True)
    for _ in range(20):
        async with gateway.post({"max_tokens": 8}) as answer:
            assert answer.status == 200
    other = tmp_path / "other.yaml"
    other.write_text("pools: {long-context: {}}\n")
    result = await run("policy", "simulate", str(other), "--last", "10m", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["requests"], found["before"]["all"]["rejected"], found["after"]["all"]["rejected"]) == (20, 0, 20)
    assert found["moves"] == [{"from": "short-chat", "to": "rejected: no_healthy_worker", "requests": 20}]
    shown = (await run("policy", "simulate", str(other), "--last", "10m")).output
    assert " -> -" in shown, "no latency of nothing"
    shown = (await run("policy", "simulate", str(file))).output
    assert "20 requests of" in shown
    assert "class interactive" in shown
    assert (await run("policy", "simulate", str(file), "--last", "soon")).exit_code == 2
    trace = tmp_path / "trace.jsonl"
    trace.write_text('[1.5,"acme",null,"standard","short-chat","tiny","chat",true,100,null,1,20,"",[],"ok",0.1,0.5]\n')
    result = await run("policy", "simulate", str(file), "--trace", str(trace), "--json")
    assert (result.exit_code, json.loads(result.output)["requests"]) == (0, 1), result.output
    assert (await run("policy", "simulate", str(file), "--trace", str(tmp_path / "none"))).exit_code == 1


async def test_canary_shadow_promote_withdraw(run: Run, gateway: Running, file: Path) -> None:
    assert (await run("policy", "trial")).output == "Nothing is being tried.\n"
    result = await run("policy", "canary", str(file), "--share", "100%")
    assert (result.exit_code, "canary for 100% of the requests" in result.output) == (0, True), result.output
    async with gateway.post({}) as answer:
        assert (answer.status, answer.headers.get("X-Headrace-Class")) == (200, "interactive"), await answer.text()
    assert "the rest" in (await run("policy", "trial")).output
    result = await run("policy", "promote", "--note", "it is good")
    assert (result.exit_code, "Revision 2 is in force" in result.output) == (0, True)
    assert (await run("policy", "promote")).exit_code == 1
    assert (await run("policy", "shadow", str(file))).exit_code == 1, "it says the same"
    write(file, POOLS)
    result = await run("policy", "shadow", str(file), "--json")
    assert json.loads(result.output)["trial"]["mode"] == "shadow"
    shown = (await run("policy", "withdraw")).output
    assert shown.startswith("The shadow has ended, and decides nothing any more. This is how it went.\nshadow: digest ")
    assert "any difference" in shown
    await run("policy", "shadow", str(file))
    result = await run("policy", "withdraw", "--json")
    assert [json.loads(result.output)[key] for key in ("trial", "pending")] == [None, False]
    result = await run("policy", "canary", str(file), "--share", "200%")
    assert "share must be more than 0 and at most 1 (100%), got '200%'" in result.output
    write(file, "nonsense: 1")
    assert (await run("policy", "canary", str(file))).exit_code == 2
