"""The real engines of `headrace up`: `headrace worker run` as a child, with a directory of its own.

The supervisor checks ports and memory, starts the engines, each under a guardian, reports for them, starts again what
dies and ends all of it; here it is only started and listened to. It dies with us even when we are killed
(`process_launcher.py`), and its guardians then end the engines. The directory goes with us; what a killed one left is
taken away by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.ports import free_port
from gateway.process import Child, ChildError, describe_exit
from gateway.start import StartError
from gateway.up_engines import Engines, Place, workers_document

PREFIX: Final = "headrace-up-"
STOP_S: Final = 25.0  # the engines' own drain and grace, and something for the supervisor
PROGRESS_S: Final = 10.0
LOG_LINES: Final = 15
LOG_BYTES: Final = 64 * 1024
LINE_CHARACTERS: Final = 400
ERROR_LINES: Final = 5
SOCKET_DIRECTORY_BYTES: Final = 60  # of the 107 that a socket's path may have
MAX_FAULTS: Final = 20
MAX_SWEPT: Final = 64
MAKING_S: Final = 60.0
INTERNAL_PORTS: Final = (20000, 64, 100)  # first, ports of an instance, different beginnings

_ERROR: Final = re.compile(r"\b\w*(?:Error|Exception)\b: ?\S|\b[Ee]rror: ")

Tell = Callable[[str], None]


class Supervised:
    """The supervisor's process, and what it told last of each instance. Make it with `start`."""

    def __init__(self, engines: Engines, directory: Path, lock: int, progress: Tell, trouble: Tell) -> None:
        self.directory = directory
        self._engines = engines
        self._lock = lock
        self._progress = progress
        self._trouble = trouble
        self._states: dict[str, str] = {}
        self._all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began = time.monotonic()
        self.child: Child

    @classmethod
    async def start(
        cls, engines: Engines, places: Sequence[Place], redis_url: str, fleet: str, progress: Tell, trouble: Tell
    ) -> Supervised:
        """Write the file and start the supervisor. Raises OSError; then nothing is left."""
        sweep()
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self = cls(engines, directory, os.open(directory, os.O_RDONLY), progress, trouble)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            file = directory / "workers.yaml"
            temporary = directory / "tmp"
            temporary.mkdir(mode=0o700)
            first, stride, beginnings = INTERNAL_PORTS
            document = workers_document(
                engines,
                places,
                port=free_port,
                # Somewhere: a second fleet on this host would want the same ports.
                internal_first=first + stride * secrets.randbelow(beginnings),
                # vLLM leaves files there, and has sockets there, whose names may not be long.
                temporary=temporary if len(os.fsencode(temporary)) <= SOCKET_DIRECTORY_BYTES else None,
            )
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
                writing.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            argv = supervisor_argv(file, directory / "state", redis_url, fleet)
            self._states = dict.fromkeys((place.name for place in places), "pending")
            self.child = await Child.start("engines", argv, heard=self._heard)
        except BaseException:  # Ctrl-C during the start must leave nothing, too
            self.remove()
            raise
        return self

    async def wait_ready(self) -> None:
        """Wait for all. `ChildError` when one fails or time is over, `StartError` when the file is refused."""
        deadline = time.monotonic() + self._engines.ready_s
        ended = asyncio.ensure_future(self.child.wait())
        try:
            while not self._all_ready.done() and not ended.done():
                left = deadline - time.monotonic()
                if left <= 0:
                    waiting = self._waiting()
                    cure = "give it more with --ready-timeout"
                    raise ChildError("engines", f"not ready within {self._engines.ready_s:g} s: {waiting}; {cure}")
                either: set[asyncio.Future[Any]] = {self._all_ready, ended}
                done, _ = await asyncio.wait(either, timeout=min(PROGRESS_S, left), return_when=asyncio.FIRST_COMPLETED)
                if not done and left > PROGRESS_S:
                    self._progress(f"still waiting after {time.monotonic() - self._began:.0f} s: {self._waiting()}")
            if self._all_ready.done():
                return self._all_ready.result()
            if ended.result() == 2:
                raise StartError(f"engines: {refusal(self.child.tail)}")
            raise ChildError("engines", f"ended with {describe_exit(ended.result())}", self.child.tail)
        finally:
            ended.cancel()
            self._all_ready.cancel()

    def remove(self) -> None:
        """Take the directory away; the supervisor must have ended."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)
        if self._all_ready.done() and not self._all_ready.cancelled():
            self._all_ready.exception()  # told by whoever ended us, if by that

    def _waiting(self) -> str:
        return ", ".join(f"{name} ({state})" for name, state in self._states.items() if state != "ready")

    def _heard(self, line: bytes) -> None:
        """One line of the supervisor's output: of its events, those that a person would want to know."""
        if not line.startswith(b"{"):
            return
        with contextlib.suppress(orjson.JSONDecodeError):
            event = orjson.loads(line)
            if event.get("event") == "ready" and not self._all_ready.done():
                self._all_ready.set_result(None)
            elif event.get("event") == "instance" and event.get("id") in self._states:
                self._changed(event["id"], event["state"], event["why"], event["given_up"])

    def _changed(self, name: str, state: str, why: str, given_up: bool) -> None:
        before, self._states[name] = self._states[name], state
        if state == "failed":
            log = self.directory / "state" / "logs" / f"{name}.log"
            if self._all_ready.done():
                next_step = "it failed too often and stays down" if given_up else "it is started again"
                self._trouble(f"{name} {why}; {next_step} (its log: {log})")
                return
            # What does not come up now will not by itself: a wrong model or flag, too little memory.
            last = log_tail(log)
            if last:
                self._trouble("\n  ".join((f"{name} did not start. From its log:", *last)))
            self._all_ready.set_exception(ChildError(name, why))
        elif state in {"starting", "ready"} and state != before:
            after = f" after {time.monotonic() - self._began:.0f} s" if state == "ready" else ""
            self._progress(f"{name} is {state}{after}")


def supervisor_argv(file: Path, state: Path, redis_url: str, fleet: str) -> list[str]:
    """The supervisor's command line. `-P`: a directory that we happen to be in must not hide a package."""
    argv = [sys.executable, "-P", "-m", "headrace", "worker", "run", "--json", "-c", str(file)]
    return [*argv, "--state-dir", str(state), "--redis", redis_url, "--fleet", fleet]


def refusal(tail: Sequence[str]) -> str:
    """What a supervisor that would not start has said, in one line."""
    lines = [line.strip() for line in tail if line.strip()]
    for at, line in enumerate(lines):
        if line.endswith("nothing was started:") or line.startswith("Error: "):
            told = lines[at + 1 :] or [line.removeprefix("Error: ")]
            return "; ".join(told[:MAX_FAULTS])
    return "; ".join(lines[-1:]) or "refused the file"


def log_tail(log: Path) -> list[str]:
    """What a log says of an end: its first lines that name an error, and its last ones; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            text = file.read(LOG_BYTES)
    except OSError:
        return []
    lines = [line[:LINE_CHARACTERS] for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    before, last = lines[:-LOG_LINES], lines[-LOG_LINES:]
    # vLLM's parts each tell of the end of another: the cause is the first, far above.
    return [*[line for line in before if _ERROR.search(line) and "WARNING" not in line][:ERROR_LINES], *last]


def sweep() -> None:
    """Take away the directories of runs that were killed: ours, and nobody holds their lock."""
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))[:MAX_SWEPT]:
        with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen = os.fstat(lock)
                # Without its file it may have been made just now, and is locked next; or an engine, as it was killed,
                # still wrote to what was being taken away.
                begun = (directory / "workers.yaml").exists() or time.time() - seen.st_mtime > MAKING_S
                if seen.st_uid == os.getuid() and begun:
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
