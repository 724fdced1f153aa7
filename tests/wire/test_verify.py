"""`headrace verify`: the whole suite, small; what it says of checks that cannot be made; and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_support import command, said

from loadtest.settings import environment_of_children
from loadtest.verify import CHECKS, Check, run_verify
from loadtest.verify_figures import Figure
from loadtest.verify_fleet import Layout, VerifyError
from loadtest.verify_stage import Stage
from workers.processes import processes

PATIENCE_S = 120.0
SMALL = Layout(short=1, long=0, redis=False)


async def made(checks: dict[str, Check] = CHECKS, scale: float = 0.3, **more: float) -> list[tuple[str, Figure]]:
    found: list[tuple[str, Figure]] = []
    kept = await run_verify(lambda name, figure: found.append((name, figure)), scale=scale, checks=checks, **more)
    assert kept is all(figure.ok for _, figure in found)
    return found


def with_files_in(directory: Path) -> list[str]:
    """Command lines of processes that have a file in this directory: guardians and gateways."""
    told = []
    for one in processes():
        with suppress(OSError):  # it ended meanwhile
            told.append(Path(f"/proc/{one.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in told if str(directory) in line]


@pytest.mark.parametrize("alone", [False, True], ids=["on one fleet", "on fleets of their own"])
async def test_this_installation_keeps_its_promises(alone: bool) -> None:
    checks = {name: check for name, check in CHECKS.items() if check.alone is alone}
    found = await made(checks)
    assert list(dict.fromkeys(name for name, _ in found)) == list(checks)
    assert [(name, figure) for name, figure in found if not figure.ok] == []
    assert len({(name, figure.name) for name, figure in found}) == len(found), "each figure has a name of its own"


async def test_a_check_that_cannot_be_made_falls_short_and_the_next_one_is_made() -> None:
    async def fails(stage: Stage) -> list[Figure]:
        raise VerifyError("the engine was not there")

    async def breaks(stage: Stage) -> list[Figure]:
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.fleet.fault("nobody", "stall"))
        return []

    async def hangs(stage: Stage) -> list[Figure]:
        await asyncio.Event().wait()
        return []

    async def works(stage: Stage) -> list[Figure]:
        told = await stage.caller.ask(stage.writer.chat(output_tokens=3))
        return [Figure("tokens", told.body.count(b'"content"'), "some", told.status == 200)]

    async def lacks(stage: Stage) -> list[Figure]:
        return [Figure("places", 0, "1", False)]

    checks = {
        name: Check(name, run, SMALL)
        for name, run in (("fails", fails), ("breaks", breaks), ("hangs", hangs), ("lacks", lacks), ("works", works))
    }
    found = await made(checks, check_s=2.0)
    assert [(name, figure.target, figure.ok) for name, figure in found] == [
        ("fails", "1; it could not: the engine was not there", False),
        ("breaks", "1; it could not: KeyError 'nobody'", False),
        ("hangs", "1; it could not: it was not done within 2 s", False),
        ("lacks", "1", False),
        ("works", "some", True),
    ]


async def test_a_check_that_falls_short_while_the_machine_stands_still_is_made_again_once() -> None:
    calls = {"paused": 0, "always": 0, "awake": 0}

    def falls_short(name: str, *, paused: bool, until: int) -> Check:
        async def run(_: Stage) -> list[Figure]:
            calls[name] += 1
            await asyncio.sleep(0)
            if paused:
                time.sleep(0.5)  # noqa: ASYNC251 - as a paused machine does
            await asyncio.sleep(0.05)
            return [Figure("places", calls[name], "some", calls[name] >= until)]

        return Check(name, run, SMALL)

    checks = {
        "paused": falls_short("paused", paused=True, until=2),
        "always": falls_short("always", paused=True, until=9),
        "awake": falls_short("awake", paused=False, until=9),
    }
    found = await made(checks, stood_s=0.4)
    assert [(name, figure.ok) for name, figure in found] == [("paused", True), ("always", False), ("awake", False)]
    assert (calls["paused"], calls["always"]) == (2, 2)
    assert calls["awake"] <= 2  # once, unless this machine really stood still


async def test_an_installation_whose_gateway_does_not_start_is_told_so() -> None:
    async def never(stage: Stage) -> list[Figure]:
        raise AssertionError("there is no fleet")

    (found,) = await made({"x": Check("x", never, Layout(short=1, long=0, redis=False, settings={"nosuch": 1}))})
    assert not found[1].ok
    assert "gateway did not start" in found[1].target
    assert "nosuch" in found[1].target


async def test_the_command_prints_figures_and_hears_nothing_of_the_installation_here(tmp_path: Path) -> None:
    theirs = {"HEADRACE_LISTEN": "127.0.0.1:1", "HEADRACE_REDIS": "redis://127.0.0.1:1", "HEADRACE_STATE_DIR": "/dev"}
    only = ("--only", "pools", "--only", "closed-doors")
    status, out, err = await said(await command("verify", *only, "--json", TMPDIR=str(tmp_path), **theirs), PATIENCE_S)
    assert (status, err) == (0, "")
    figures = list(map(json.loads, out.splitlines()))
    assert [set(figure) for figure in figures] == [{"figure", "value", "target", "ok"}] * len(figures)
    assert {figure["figure"].partition(": ")[0] for figure in figures} == {"pools", "closed-doors"}
    assert os.listdir(tmp_path) == []
    assert with_files_in(tmp_path) == []


async def test_an_unknown_check_is_refused_with_the_names_there_are() -> None:
    status, out, err = await said(await command("verify", "--only", "limits", "--only", "nosuch"), PATIENCE_S)
    assert (status, out) == (2, "")
    assert "no check 'nosuch'; there are outcomes, limits, " in " ".join(err.split())
    status, out, _ = await said(await command("verify", "--list"), PATIENCE_S)
    assert status == 0
    assert all(name in out for name in CHECKS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_all_that_it_started(tmp_path: Path, number: signal.Signals) -> None:
    process = await command("verify", "--json", TMPDIR=str(tmp_path))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not with_files_in(tmp_path):  # noqa: ASYNC110 - other processes do not tell us
                await asyncio.sleep(0.01)
        process.send_signal(number)
        status, _, err = await said(process, PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert status == 128 + number, err
    assert "interrupted" in err
    assert os.listdir(tmp_path) == []
    assert with_files_in(tmp_path) == []


async def test_whatever_kills_it_what_it_started_ends_too(tmp_path: Path) -> None:
    process = await command("verify", "--only", "departures", TMPDIR=str(tmp_path))
    async with asyncio.timeout(PATIENCE_S):
        while len(with_files_in(tmp_path)) < 4:  # noqa: ASYNC110 - other processes do not tell us
            await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
        while with_files_in(tmp_path):  # noqa: ASYNC110 - nor do their guardians
            await asyncio.sleep(0.01)


def test_children_do_not_hear_what_is_said_to_an_installation_here() -> None:
    given = {"PATH": "/bin", "HEADRACE_LISTEN": "0.0.0.0:80", "headrace_redis": "x", "LANG": "C"}
    assert environment_of_children(given) == {"PATH": "/bin", "LANG": "C"}
