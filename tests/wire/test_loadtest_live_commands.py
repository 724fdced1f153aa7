"""`headrace loadtest replay` and `ramp` as commands, against a gateway in this process."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from command_support import command, said
from fault_server import closed_port
from plain_worker import plain_worker
from running_gateway import running, settings_for, until

from loadtest.live_target import MAX_IN_FLIGHT

PATIENCE_S = 60.0


SLOW = ("--ttft-slo", "1000", "--tpot-slo", "1000")


async def test_the_replay_command(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        words = ("--url", f"{gateway.data}/v1", "--rate", "20", "--limit", "6", "--goodput", "0.5", *SLOW)
        status, out, err = await said(
            await command("loadtest", "replay", "servegen_m-mid_sampled", *words, "--json", "--out", str(file)),
            PATIENCE_S,
        )
        assert status == 0, err
        told, *figures = map(json.loads, out.splitlines())
        assert (told["model"], told["requests"], told["outcomes"]["answered"]) == ("chat", 6, 6)
        assert figures == [
            {"figure": "requests that ended in exactly one outcome", "value": 6, "target": "6", "ok": True},
            {"figure": "goodput", "value": 1.0, "target": "at least 0.5", "ok": True},
        ]
        records = list(map(json.loads, file.read_text().splitlines()))
        assert sorted(one["index"] for one in records) == list(range(6))
        assert {one["outcome"] for one in records} == {"answered"}
        assert {one["worker"] for one in records} == {"w1"}

        status, out, _ = await said(await command("loadtest", "replay", *words, "--priority", "nosuch"), PATIENCE_S)
        assert status == 1
        assert "invalid_priority" in out


async def test_the_ramp_command(tmp_path: Path) -> None:
    """Whether a rate is kept is the machine's business; that the answer fits what is printed is ours."""
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        words = ("--url", gateway.data, "--from", "4", "--to", "8", "--step-seconds", "1", "--bisections", "0", *SLOW)
        status, out, err = await said(await command("loadtest", "ramp", *words, "--json"), PATIENCE_S)
        *steps, result, figure = map(json.loads, out.splitlines())
        assert steps, err
        assert result["steps"] == len(steps)
        assert all(sum(one["step"]["outcomes"].values()) == one["step"]["requests"] for one in steps)
        assert figure["ok"] == (status == 0)
        assert figure["value"] == (result["greatest_per_s"] or 0.0)
        status, out, _ = await said(await command("loadtest", "ramp", *words, "--at-least", "1000"), PATIENCE_S)
        assert status == 1
        assert "MISS" in out


async def test_ctrl_c_ends_it_with_what_there_is(tmp_path: Path) -> None:
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()
        process = await command("loadtest", "replay", "--url", gateway.data, "--rate", "50", "--limit", "500", "--json")
        await until(lambda: worker.bodies, PATIENCE_S)
        process.send_signal(signal.SIGINT)
        status, out, err = await said(process, PATIENCE_S)
        assert status == 1, err  # nothing was answered
        told = json.loads(out.splitlines()[0])
        assert told["interrupted"]
        assert told["outcomes"]["cancelled"] == told["requests"] == 500
        assert "Traceback" not in err
        worker.gate.set()


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("replay", "--url", "http://127.0.0.1:PORT"), 1, "nobody answers (Connection refused)"),
        (("ramp", "--url", "http://127.0.0.1:PORT"), 1, "nobody answers (Connection refused)"),
        (("replay", "nosuch"), 2, "'nosuch' is no file and no trace"),
        (("ramp", "--to", "100000"), 2, "more than 200000 requests"),
    ],
)
async def test_what_cannot_be_done_says_why(words: tuple[str, ...], status: int, told: str) -> None:
    found = await said(
        await command("loadtest", *(word.replace("PORT", str(closed_port())) for word in words)), PATIENCE_S
    )
    assert found[:2] == (status, "")
    assert told in found[2]


def test_the_default_bound_is_the_documented_one() -> None:
    from loadtest.cli_live import replay

    options = {option.name: option.default for option in replay.params}
    assert options["max_in_flight"] == MAX_IN_FLIGHT
