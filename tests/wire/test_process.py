"""Children: ready lines, stopping a whole group, and the certainty that none outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.ports import free_port
from gateway.process import (
    Child,
    ChildError,
    describe_exit,
    has_ended,
    start_valkey,
    valkey_argv,
    valkey_ready,
)

READY = """echo '{"event": "ready", "url": "http://127.0.0.1:1"}'"""


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie that its new parent has not reaped yet does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def wait_gone(pid: int, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while alive(pid):
        assert time.monotonic() < deadline, f"pid {pid} still runs"
        await asyncio.sleep(0.01)


async def test_the_ready_line_is_returned_and_other_lines_are_kept() -> None:
    child = await Child.start(
        "c", sh(f"echo hello; echo '{{not json'; echo '{{}}'; {READY}; echo later >&2; exec sleep 60")
    )
    try:
        assert await child.wait_ready(30) == {"event": "ready", "url": "http://127.0.0.1:1"}
        assert child.tail[:3] == ("hello", "{not json", "{}")
        assert child.returncode is None
        assert "running" in repr(child)
        deadline = time.monotonic() + 20
        while child.tail[-1] != "later":
            assert time.monotonic() < deadline, child.tail
            await asyncio.sleep(0.01)
    finally:
        assert await child.stop() == -signal.SIGTERM
    assert "exit -15" in repr(child)


async def test_stopping_twice_is_harmless() -> None:
    child = await Child.start("c", sh(f"{READY}; exec sleep 60"))
    await child.wait_ready(30)
    assert await asyncio.gather(child.stop(), child.stop()) == [-15, -15]
    assert await child.stop() == -15
    child.terminate()  # its id may be somebody else's by now: nothing is sent


async def test_one_that_ends_early_is_an_error_with_its_last_words() -> None:
    child = await Child.start("engine", sh("echo starting; echo 'no device' >&2; exit 3"))
    with pytest.raises(ChildError, match=r"^engine: ended with status 3 before it was ready: no device$") as caught:
        await child.wait_ready(30)
    assert caught.value.tail == ("starting", "no device")
    assert await child.stop() == 3


async def test_one_that_was_ready_and_ended_was_ready() -> None:
    child = await Child.start("c", sh(READY))
    assert await child.wait() == 0
    assert (await child.wait_ready(30))["event"] == "ready"


async def test_a_silent_one_is_an_error_at_the_deadline() -> None:
    child = await Child.start("c", sh("exec sleep 60"))
    with pytest.raises(ChildError, match=r"c: not ready within 0.05 s$"):
        await child.wait_ready(0.05)
    await child.stop()


async def test_a_program_that_does_not_exist_is_named() -> None:
    child = await Child.start("c", ["/does/not/exist"])
    with pytest.raises(ChildError, match="/does/not/exist: No such file or directory"):
        await child.wait_ready(30)
    assert await child.stop() == 127


async def test_the_group_is_killed_when_it_does_not_listen() -> None:
    child = await Child.start(
        "deaf",
        sh(f"trap '' TERM; (trap '' TERM; echo $$; exec sleep 60) & echo $!; {READY}; while :; do sleep 1; done"),
    )
    await child.wait_ready(30)
    grandchild = int(child.tail[0])
    assert alive(grandchild)
    assert await child.stop(grace_s=0.05) == -signal.SIGKILL
    await wait_gone(grandchild)


async def test_what_its_leader_leaves_behind_is_killed_with_it() -> None:
    child = await Child.start("c", sh(f"sleep 60 & echo $!; {READY}"))
    await child.wait()
    await wait_gone(int(child.tail[0]))


async def test_a_second_stop_without_patience_ends_the_wait_of_the_first() -> None:
    child = await Child.start("deaf", sh(f"trap '' TERM; {READY}; while :; do sleep 1; done"))
    await child.wait_ready(30)
    patient = asyncio.create_task(child.stop(grace_s=60))
    await asyncio.sleep(0)
    assert await child.stop(grace_s=0.0) == -signal.SIGKILL
    assert await patient == -signal.SIGKILL


async def test_much_output_does_not_stop_it_and_is_not_kept() -> None:
    flood = "import sys; sys.stdout.write('x' * 300_000 + chr(10)); sys.stdout.write(('y' * 99 + chr(10)) * 5000)"
    child = await Child.start("c", [sys.executable, "-c", f"{flood}; print('end')"])
    assert await child.wait() == 0
    assert child.tail[-1] == "end"
    assert sum(map(len, child.tail)) < 300_000


async def test_its_output_goes_to_a_file_when_one_is_given(tmp_path: Path) -> None:
    log = tmp_path / "c.log"
    log.write_text("before\n")
    child = await Child.start("c", sh("echo one; echo two >&2"), log=log)
    await child.wait()
    await child.stop()
    assert log.read_text() == "before\none\ntwo\n"


async def test_without_pidfd_the_exit_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = await Child.start("c", sh("exit 4"))
    assert await child.wait() == 4


def test_without_waitid_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    running = subprocess.Popen(["sleep", "60"])
    try:
        assert not has_ended(running.pid)
        running.kill()
        deadline = time.monotonic() + 5
        while not has_ended(running.pid):
            assert time.monotonic() < deadline
    finally:
        running.wait()


def test_exits_are_told_in_words() -> None:
    assert describe_exit(2) == "status 2"
    assert describe_exit(-9) == "SIGKILL"
    assert describe_exit(-63) == "signal 63"


PARENT = """
import asyncio, sys
from gateway.process import Child, start_valkey

async def main():
    valkey = await start_valkey()
    child = await Child.start("c", ["sleep", "60"])
    print(valkey.pid, child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


async def test_children_die_with_a_killed_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    try:
        pids = [int(word) for word in (await parent.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
    finally:
        parent.kill()
        await parent.communicate()
    for pid in pids:
        await wait_gone(pid)


def test_a_launcher_whose_parent_is_gone_does_not_start_the_program() -> None:
    launcher = Path(__file__).parents[2] / "gateway" / "process_launcher.py"
    command = [sys.executable, "-I", "-S", launcher, str(2**22 + 1), "echo", "ran"]  # no process has that number
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (125, b"")


async def test_valkey_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    child = await start_valkey(tmp_path)
    try:
        assert child.url.startswith("redis://127.0.0.1:")
        client = Redis.from_url(child.url)
        try:
            assert await client.set("a", "1")
            assert (await client.config_get("bind", "save", "appendonly"))["save"] == ""
        finally:
            await client.aclose()
    finally:
        assert await child.stop() == 0
    assert os.listdir(tmp_path) == []


async def test_valkey_loads_nothing_that_somebody_has_put_where_it_starts(tmp_path: Path) -> None:
    """It begins in a directory that everybody may write to: a file of the usual name there is not its own."""
    port = free_port()
    argv = [*valkey_argv(tmp_path, port), "--dbfilename", "dump.rdb"]
    child = await Child.start("planter", argv, ready=valkey_ready)
    await child.wait_ready(30)
    client = Redis(port=port)
    await client.set("planted", "1")
    await client.save()
    await client.aclose()
    await child.stop()
    assert os.listdir(tmp_path) == ["dump.rdb"]
    child = await start_valkey(tmp_path)
    client = Redis.from_url(child.url)
    assert await client.dbsize() == 0
    await client.aclose()
    await child.stop()


async def test_valkey_on_a_taken_port_says_so(tmp_path: Path) -> None:
    first = await start_valkey(tmp_path)
    try:
        port = int(first.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ChildError, match="valkey: ended with status 1"):
            await start_valkey(tmp_path, port)
    finally:
        await first.stop()


async def test_valkey_takes_another_port_when_somebody_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start_valkey(tmp_path)
    taken = int(first.url.rpartition(":")[2].partition("/")[0])
    offered = [taken, free_port()]
    monkeypatch.setattr("gateway.process.free_port", lambda: offered.pop(0))
    try:
        second = await start_valkey(tmp_path)
        assert second.url != first.url
        assert offered == []
        await second.stop()
    finally:
        await first.stop()
