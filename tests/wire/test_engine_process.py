"""Engines under their guardians: nobody of an engine's family outlives anything it should not."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.leftovers import Record, StateDir, StateInUse, clean, record_of
from workers.process import EngineProcess, ProcessError, describe_exit
from workers.processes import boot, processes, read_process

ENV = {"PATH": os.environ["PATH"]}
FAMILY = [sys.executable, "-S", str(Path(__file__).with_name("engine_family.py"))]


def alive(pid):
    process = read_process(pid)
    return process is not None and not process.zombie


async def until(condition, what, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
    return value


async def family_of(process):
    """Process ids of the engine, its deaf child and its stray grandchild."""
    said = await until(lambda: [line for line in process.tail() if line.startswith("family")], "the family is there")
    return [int(word) for word in said[0].split()[1:]]


@pytest.fixture
def state(tmp_path):
    directory = StateDir(tmp_path / "state")
    directory.open()
    yield directory
    directory.close()


async def start(state, argv, name="a", **more):
    return await EngineProcess.start(name, argv, env=ENV, state=state, **more)


def python(script):
    return [sys.executable, "-c", script]


async def test_it_ends_as_the_engine_ends_and_is_forgotten(state):
    process = await start(state, ["/bin/sh", "-c", "echo one; echo two >&2; exit 3"])
    assert [record.instance for record in state.records()] == ["a"]
    assert await process.wait() == 3
    assert process.tail() == ("one", "two")
    assert state.records() == []
    assert "status 3" in repr(process)
    process.terminate()  # its id may be somebody else's by now: nothing is sent
    assert await process.stop(0.0) == 3


async def test_an_engine_killed_by_a_signal_is_told_as_that(state):
    process = await start(state, ["/bin/sh", "-c", "kill -SEGV $$"])
    assert await process.wait() == -signal.SIGSEGV
    killed = await start(state, ["sleep", "600"])
    assert "running" in repr(killed)
    os.kill(killed.engine_pid, signal.SIGKILL)
    assert await killed.wait() == -signal.SIGKILL


async def test_a_program_that_does_not_exist_is_named_in_the_log(state):
    process = await start(state, ["/does/not/exist"])
    assert await process.wait() == 127
    assert process.tail() == ("/does/not/exist: No such file or directory",)


async def test_sigterm_goes_to_the_first_process_only(state):
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(600)"
    )
    process = await start(state, python(script))
    await until(lambda: "up" in process.tail(), "it is up")
    assert await process.stop(20.0) == 7


async def test_a_sigterm_right_after_the_start_is_not_lost(state):
    for _ in range(3):
        process = await start(state, ["sleep", "60"])
        process.terminate()
        async with asyncio.timeout(20):
            assert await process.wait() == -signal.SIGTERM


async def test_the_whole_family_ends_with_the_engine(state):
    process = await start(state, FAMILY)
    family = await family_of(process)
    assert all(alive(pid) for pid in family)
    os.kill(process.engine_pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert not any(alive(pid) for pid in family)


async def test_after_the_grace_everyone_is_killed(state):
    process = await start(state, [*FAMILY, "deaf"])
    family = await family_of(process)
    assert await process.stop(0.05) == -signal.SIGKILL
    assert not any(alive(pid) for pid in family)


async def test_a_killed_guardian_takes_the_session_with_it(state):
    process = await start(state, FAMILY)
    engine, deaf, stray = await family_of(process)
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not alive(engine) and not alive(deaf), "engine and child are gone")
    # It has left the session and thrown its mark away: nothing is left to know it by.
    os.kill(stray, signal.SIGKILL)


async def test_a_killed_supervisor_leaves_nobody(tmp_path):
    script = f"""
import asyncio, sys
from pathlib import Path
from workers.leftovers import StateDir
from workers.process import EngineProcess
async def main():
    state = StateDir(Path({str(tmp_path / "other")!r})); state.open()
    process = await EngineProcess.start("a", {FAMILY!r}, env={ENV!r}, state=state)
    while not (said := [line for line in process.tail() if line.startswith("family")]):
        await asyncio.sleep(0.01)
    print(process.pid, *said[0].split()[1:], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(*python(script), stdout=asyncio.subprocess.PIPE)
    try:
        family = [int(word) for word in (await supervisor.stdout.readline()).split()]
        assert len(family) == 4
        assert all(alive(pid) for pid in family)
    finally:
        supervisor.kill()
        await supervisor.communicate()
    await until(lambda: not any(alive(pid) for pid in family), "everybody is gone")


async def test_logs_are_rotated_and_bounded(state):
    script = "import sys; [sys.stdout.write('x' * 99 + chr(10)) for _ in range(20_000)]; print('end')"
    process = await start(state, python(script), log_bytes=100_000, log_keep=2)
    assert await process.wait() == 0
    assert process.tail()[-1] == "end"
    sizes = {path.name: path.stat().st_size for path in state.logs.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1", "a.log.2"}
    assert all(0 < size <= 100_000 for size in sizes.values())


async def test_no_old_log_is_kept_where_none_is_wanted(state):
    process = await start(state, python("print('x' * 5000)"), log_bytes=6000, log_keep=0)
    assert await process.wait() == 0
    process = await start(state, python("print('y' * 5000)"), log_bytes=6000, log_keep=0)
    assert await process.wait() == 0
    assert [path.name for path in state.logs.iterdir()] == ["a.log"]
    assert process.tail() == ("y" * 5000,)


async def test_a_log_that_cannot_be_written_does_not_stop_the_engine(state):
    (state.logs / "a.log").mkdir()
    process = await start(state, python("print('x' * 200_000)"))
    assert await process.wait() == 0
    assert process.tail() == ()


async def test_a_guardian_that_cannot_start_is_an_error(state, monkeypatch):
    monkeypatch.setattr("workers.process.GUARDIAN", Path("/does/not/exist.py"))
    with pytest.raises(ProcessError, match=r"^a: its guardian did not start"):
        await start(state, ["true"])


async def test_without_a_pidfd_the_end_is_seen_too(state, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    process = await start(state, ["sleep", "0.1"])
    assert await process.wait() == 0


# === leftovers ===


LEADER = """
import subprocess, sys
member = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(member, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


def left_over(state):
    """An engine in a session of its own whose guardian is gone; its record is still there."""
    leader = subprocess.Popen(
        python(LEADER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    member = int(leader.stdout.readline())
    record = record_of("a", leader.pid, "", (8001,), ("vllm", "serve"))
    state.remember(record)
    leader.communicate()
    return record, member


async def test_leftovers_are_found_by_identity_shown_and_ended(state):
    record, member = left_over(state)
    (leftover,) = state.leftovers()
    assert leftover.record == record
    assert [process.pid for process in leftover.found] == [member]
    assert leftover.lines[0].startswith(f"pid {member} ")
    assert "time.sleep(600)" in leftover.lines[0]
    assert await clean(leftover, state)
    await until(lambda: not alive(member), "it is gone")
    assert state.leftovers() == []
    assert state.records() == []


async def test_a_number_used_again_is_somebody_else(state):
    """The same ids from another boot, or with another start time, are not touched."""
    somebody = await asyncio.create_subprocess_exec("/bin/sleep", "600", start_new_session=True)
    try:
        ours = record_of("a", somebody.pid, "", (), ())
        state.remember(ours)
        assert [process.pid for process in state.leftovers()[0].found] == [somebody.pid]
        for other in ({"boot": "another"}, {"start": ours.start + 1}):
            state.forget(ours)
            state.remember(dataclasses.replace(ours, **other))
            assert state.leftovers() == []
        assert state.records() == []
    finally:
        somebody.kill()
        await somebody.wait()


async def test_the_session_of_nobody_is_nobodys(state):
    """Kernel threads and everybody who came into a container from outside have session 0: they are never ours."""
    state.remember(Record("a", 0, 0, boot(), "", (), ()))
    assert state.leftovers() == []
    assert state.records() == []


async def test_who_left_the_session_is_known_by_the_mark(state):
    mark = {"HEADRACE_INSTANCE_MARK": "m" * 32}
    stray = await asyncio.create_subprocess_exec("/bin/sleep", "600", start_new_session=True, env=mark)
    record = record_of("a", 2**22 + 1, "m" * 32, (), ())
    state.remember(record)
    try:
        (leftover,) = state.leftovers()
        assert [process.pid for process in leftover.found] == [stray.pid]
    finally:
        stray.kill()
        await stray.wait()
    assert state.leftovers() == []


def test_a_record_that_says_nothing_is_taken_away(state):
    bad = state.path / "running" / "x.1.json"
    for text in (b"", b"{}", b"[]", b'{"instance": 1, "session": "x"}'):
        bad.write_bytes(text)
        assert state.records() == []
        assert not bad.exists()


def test_two_supervisors_do_not_share_a_directory(state):
    other = StateDir(state.path)
    with pytest.raises(StateInUse, match=f"in use by the supervisor with pid {os.getpid()}"):
        other.open()
    state.close()
    other.open()
    other.close()


def test_identity():
    assert boot()
    assert boot(Path("/nowhere")) == ""
    assert list(processes(Path("/nowhere"))) == []
    assert read_process(0) is None
    assert describe_exit(-200) == "signal 200"
    assert describe_exit(-9) == "SIGKILL"
