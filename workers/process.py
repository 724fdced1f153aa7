"""Engine processes: started under a guardian, watched, ended as a whole family, and known by more than their id.

`gateway/process.py` has children too, of another kind: our own programs, which say when they are ready and leave no
family behind. Engines say nothing that could be relied on, have grandchildren that must not outlive us, and write logs
for days; so here a guardian (`guardian.py`) stands between, and output never passes through this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workers.leftovers import MARK, Record, StateDir, record_of
from workers.processes import end_process, processes

GUARDIAN = Path(__file__).with_name("guardian.py")
LOG_BYTES = 16 * 1024 * 1024
LOG_KEEP = 4
GUARDIAN_S = 30.0  # to start Python and fork, also on a host whose disks are busy with weights
KILL_S = 30.0  # the guardian itself waits 20 s for what SIGKILL does not end at once
TAIL_BYTES = 16 * 1024
POLL_S = 0.05  # where the kernel has no pidfd


class ProcessError(RuntimeError):
    """An engine process could not be started or ended. One line."""


class EngineProcess:
    """One engine under its guardian, from start to the last of its family."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], engine_pid: int, log: Path) -> None:
        self.name = name
        self.pid = process.pid  # of the guardian, whose session has all of the family
        self.engine_pid = engine_pid
        self.log = log
        self._process = process
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else describe_exit(self.returncode)
        return f"<EngineProcess {self.name} guardian {self.pid} engine {self.engine_pid} {state}>"

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        state: StateDir,
        ports: tuple[int, ...] = (),
        log_bytes: int = LOG_BYTES,
        log_keep: int = LOG_KEEP,
    ) -> EngineProcess:
        """Start `argv` (no shell) with exactly `env`. Its log is `NAME.log` in the state directory.

        Raises `ProcessError`. A program that does not exist is no error here: it ends with status 127.
        """
        mark = secrets.token_hex(16)
        log = state.logs / f"{name}.log"
        # ASYNC220: some milliseconds, once a start of an engine that takes seconds.
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-I", "-S", str(GUARDIAN), str(log), str(log_bytes), str(log_keep), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**env, MARK: mark},
        )
        record = record_of(name, process.pid, mark, ports, tuple(argv))
        try:
            state.remember(record)
            engine_pid = await _engine_pid(process)
            started = cls(name, process, engine_pid, log)
        except BaseException as error:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()
            if isinstance(error, (OSError, ValueError, TimeoutError)):
                raise ProcessError(f"{name}: its guardian did not start: {str(error) or 'no answer'}") from error
            raise
        started._watch(record, state)
        return started

    @property
    def returncode(self) -> int | None:
        """Exit status; negative: the signal that ended it; None while any of it runs."""
        return self._exit.result() if self._exit.done() else None

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                text = file.read(TAIL_BYTES)
        except OSError:
            return ()
        return tuple(text.decode("utf-8", "replace").splitlines()[-lines:])

    async def wait(self) -> int:
        """Wait until all of it has ended; return the engine's exit status."""
        return await asyncio.shield(self._exit)

    def terminate(self) -> None:
        """Ask the engine to end by itself."""
        if not self._exit.done():  # afterwards the id may be somebody else's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Have the guardian kill all of it now."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, up to `grace_s`, then SIGKILL to everyone; return the exit status. Twice is harmless."""
        self.terminate()
        done, _ = await asyncio.wait({self._exit}, timeout=grace_s)
        if not done:
            self.kill()
            done, _ = await asyncio.wait({self._exit}, timeout=KILL_S)
        if not done:
            raise ProcessError(f"{self.name}: pid {self.engine_pid} survives SIGKILL; its driver may hang")
        return self._exit.result()

    def _watch(self, record: Record, state: StateDir) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            # Before the guardian is reaped, so that its session's number is surely still its own: somebody may have
            # killed the guardian, and with it the engine's first process, but not the rest of the family.
            for process in processes():
                if process.session == self.pid and process.pid != self.pid:
                    end_process(process)
            assert self._process.stdin is not None
            self._process.stdin.close()
            code = self._process.wait()
            state.forget(record)
            self._exit.set_result(code)

        try:
            handle = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # not in this kernel, or not allowed in this sandbox
            loop.call_later(POLL_S, self._poll, ended)
            return

        def readable() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            ended()

        loop.add_reader(handle, readable)

    def _poll(self, ended: Callable[[], None]) -> None:
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            asyncio.get_running_loop().call_later(POLL_S, self._poll, ended)
        else:
            ended()


def describe_exit(code: int) -> str:
    """An exit status in words: `status 2`, `SIGKILL`."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def _engine_pid(process: subprocess.Popen[bytes]) -> int:
    """The guardian's first line."""
    assert process.stdout is not None
    reader = asyncio.StreamReader(limit=64)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    try:
        async with asyncio.timeout(GUARDIAN_S):
            return int(await reader.readline())
    finally:
        transport.close()
