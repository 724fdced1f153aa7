"""`headrace up` as a whole: what it prints works, and whatever ends it, nothing is left."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from up_support import PATIENCE_S, Up, descendants, files_below, is_free, parents, wait_until

from gateway.admin_client import get

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
async def up(home: Path) -> AsyncIterator[Up]:
    """A fleet that is ready; killed afterwards if the test did not end it."""
    up = await Up.start(home, "--json", "--speed", "20")
    try:
        yield await up.ready()
    finally:
        if up.process.returncode is None:
            up.process.kill()
        await up.process.communicate()


def worker_pids(up: Up) -> dict[str, int]:
    found = {}
    for pid in up.family:
        argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--id" in argv:
            found[argv[argv.index("--id") + 1]] = pid
    return found


def request(path: str, body: bytes, connection: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}")
    return "\r\n".join((*lines, f"connection: {connection}", "", "")).encode() + body


async def post(url: str, body: bytes) -> bytes:
    """One request on a connection of its own; the whole answer."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(request(where.path, body, "close"))
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


CHAT = b'{"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}'


async def test_every_worker_is_a_process_that_reports(up: Up) -> None:
    assert worker_pids(up).keys() == {"short-1", "short-2", "long-1"}
    assert len(up.family) == 4  # and Valkey
    fleet = await asyncio.to_thread(get, up.urls["admin"], "/admin/v1/fleet")
    assert {worker["id"]: worker["pool"] for worker in fleet["workers"]} == {
        "short-1": "short-chat",
        "short-2": "short-chat",
        "long-1": "long-context",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_all_of_it(up: Up, number: signal.Signals) -> None:
    assert b" 200 " in (await post(f"{up.urls['data']}/v1/chat/completions", CHAT)).partition(b"\r\n")[0]
    up.process.send_signal(number)
    status, out, _ = await up.ended()
    assert (status, out) == (0, '{"event":"stopped"}\n')
    await up.nothing_left()


async def test_a_second_ctrl_c_in_the_middle_leaves_nothing_either(up: Up) -> None:
    for pid in worker_pids(up).values():
        os.kill(pid, signal.SIGSTOP)  # so that the first one has something to wait for
    up.process.send_signal(signal.SIGINT)
    await wait_until("it is stopping", lambda: is_free(up.urls["data"]))
    for _ in range(3):
        up.process.send_signal(signal.SIGINT)
    status, out, err = await up.ended()
    assert (status, out) == (0, '{"event":"stopped"}\n')
    assert "Traceback" not in err
    await up.nothing_left()


async def test_killing_it_ends_all_of_it(up: Up) -> None:
    up.process.kill()
    status, _, _ = await up.ended()
    assert status == -signal.SIGKILL
    await up.nothing_left()


async def test_streams_in_the_middle_do_not_keep_it(up: Up) -> None:
    where = urlsplit(up.urls["data"])
    body = CHAT.replace(b'"max_tokens": 4', b'"max_tokens": 3000, "stream": true')
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(request("/v1/chat/completions", body, "keep-alive"))
        assert b" 200 " in await reader.readline()
        up.process.terminate()
        status, _, _ = await up.ended()
    finally:
        writer.close()
    assert status == 0
    await up.nothing_left()


async def test_an_admin_listener_beyond_this_host_needs_a_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = await Up.start(home, "--json", "--admin", ":0")
    status, out, err = await up.ended()
    assert (status, out) == (2, "")
    assert "is reachable from other hosts: give --state-dir or HEADRACE_ADMIN_TOKEN" in err
    monkeypatch.setenv("HEADRACE_ADMIN_TOKEN", "secret")
    up = await Up.start(home, "--json", "--short", "1", "--long", "0", "--admin", ":0")
    try:
        await up.ready()
    finally:
        up.process.terminate()
        status, _, _ = await up.ended()
    assert status == 0
    await up.nothing_left()


async def test_a_signal_while_it_starts_ends_what_there_is(home: Path) -> None:
    up = await Up.start(home, "--json")
    await wait_until("the first child runs", lambda: descendants(up.process.pid))
    up.family = descendants(up.process.pid)
    up.process.terminate()
    status, out, err = await up.ended()
    assert (status, out) == (0, '{"event":"stopped"}\n')
    assert "Traceback" not in err
    await wait_until("every process has ended", lambda: not up.family & parents().keys())
    assert files_below(home) == []


async def test_a_worker_that_dies_is_told_and_the_rest_serves(up: Up) -> None:
    victim = worker_pids(up)["short-1"]
    os.kill(victim, signal.SIGKILL)
    assert up.process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await up.process.stderr.readline()).decode():
            if line.startswith("headrace: "):
                break
    assert line == f"headrace: short-1 (pid {victim}) ended with SIGKILL\n"
    for _ in range(4):
        assert b" 200 " in (await post(f"{up.urls['data']}/v1/chat/completions", CHAT)).partition(b"\r\n")[0]
    up.process.terminate()
    assert (await up.ended())[0] == 0
    await up.nothing_left()


async def run_example(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(*argv, stdout=-1, stderr=-1)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_what_it_prints_for_people_works_as_pasted(home: Path) -> None:
    up = await Up.start(home, "--short", "1", "--long", "1", "--speed", "20")
    try:
        printed = ""
        while "Ctrl-C" not in printed:
            printed += await self_or_fail(up)
        assert re.search(r"short-1 .* short-chat ", printed)
        assert re.search(r"long-1 .* long-context ", printed)
        commands = [line.strip() for line in printed.splitlines() if line.lstrip().startswith("curl ")]
        assert len(commands) == 1
        answer = json.loads(await run_example("/bin/sh", "-c", commands[0]))
        assert answer["choices"][0]["message"]["content"]
        admin = printed.partition("\nadmin ")[2].partition("/admin/v1")[0].strip()
        workers = next(line.split() for line in printed.splitlines() if line.startswith("  headrace workers "))
        seen = await run_example(sys.executable, "-P", "-m", *workers, "--json")
        assert {json.loads(line)["id"] for line in seen.splitlines()} == {"short-1", "long-1"}
        redis = re.search(r"^redis +(redis://\S+)$", printed, re.MULTILINE)
        assert redis is not None
        words = ("worker", "sim", "--id", "late", "--redis", redis[1], "--speed", "20")
        late = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", "headrace", *words, stdout=-3)
        try:
            await wait_until("it reports", lambda: "late" in worker_ids(admin))
        finally:
            late.terminate()
            await late.wait()
        for url in re.findall(r"http://\S+/(?:metrics|fleet|dashboard)", printed):
            assert await run_example("/bin/sh", "-c", f"curl -sf {url}")
    finally:
        up.process.terminate()
        status, out, err = await up.ended()
    assert (status, out) == (0, "\nStopped.\n")
    assert f"shown this once, kept in {home}/headrace:" in err


def worker_ids(admin: str) -> set[str]:
    return {worker["id"] for worker in get(admin, "/admin/v1/fleet")["workers"]}


async def self_or_fail(up: Up) -> str:
    line = await up.line()
    assert line, (await up.ended())[2]
    return line


async def test_the_readmes_examples_work(up: Up) -> None:
    readme = (ROOT / "README.md").read_text().replace("http://127.0.0.1:8080", up.urls["data"])
    curl = re.search(r"^curl .*?[^\\]$", readme, re.MULTILINE | re.DOTALL)
    python = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert curl is not None
    assert python is not None
    assert json.loads(await run_example("/bin/sh", "-c", curl[0]))["object"] == "chat.completion"
    assert await run_example(sys.executable, "-c", python[1])
