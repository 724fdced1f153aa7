"""Starts several real `vllm serve` processes quickly: imports vLLM once (17 s of CPU), then forks each server (3 s).

Runs in the engine's own Python and imports nothing of this project; `forks.py` is its other end. Orders are JSON
lines on standard input, events are JSON lines on standard output:

    {"name": "short", "argv": ["serve", "MODEL", "--port", "1", …], "log": "FILE"}
    {"event": "ready", "seconds": 17.2}
    {"event": "forked", "name": "short", "pid": 7}        pid is the id of a process group with all of the server
    {"event": "ended", "name": "short", "pid": 7, "status": -9}

At the end of standard input, or on SIGTERM, all servers get SIGTERM, after a grace SIGKILL, and it ends: servers
cannot outlive whoever asked for them. With arguments (`python vllm_forks.py serve MODEL …`) it is that one server
itself, with one import in place of one for each of its processes. The one difference to `vllm serve` is how its
processes start: vLLM's CPU platform insists on `spawn`, which would import everything again; here `spawn` means `fork`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any

GRACE_S = 3.0
KILL_S = 3.0
POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36

COMMAND_LINE = "vllm.entrypoints.cli.main"
# What a server imports late. A name that another version does not have costs it time, nothing else.
WORTH_IMPORTING = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.model_loader",
    "transformers.models.auto.tokenization_auto",
    "xgrammar",
)


class Servers:
    """The forked servers, by process id."""

    def __init__(self, command_line: Any) -> None:
        self._command_line = command_line
        self._names: dict[int, str] = {}
        self.stopping = False

    def fork(self, order: dict[str, Any]) -> None:
        """Start one server as ordered."""
        pid = os.fork()
        if pid == 0:
            self._serve(order)
        self._names[pid] = order["name"]
        tell(event="forked", name=order["name"], pid=pid)

    def reap(self) -> bool:
        """Tell of every server that ended; whether there are children left, servers or what they left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self._names:
                # What the server left behind of its group, such as an engine process, ends with it.
                signal_group(pid, signal.SIGKILL)
                tell(event="ended", name=self._names.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status))

    def end(self) -> None:
        """End all of them, whole groups, and reap what they were."""
        for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILL_S)):
            for pid in self._names:
                signal_group(pid, number)
            deadline = time.monotonic() + wait_s
            while self.reap() and time.monotonic() < deadline:
                time.sleep(POLL_S)

    def stop(self, *_: int | FrameType | None) -> None:
        """Signal handler: end."""
        self.stopping = True

    def _serve(self, order: dict[str, Any]) -> None:
        status = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            sys.argv = ["vllm", *order["argv"]]
            self._command_line.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process group that may be gone already."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def tell(**event: Any) -> None:
    """One event line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def import_vllm() -> Any:
    """Everything a server needs, and the module whose `main` is the vllm command."""
    real = multiprocessing.get_context

    def forking(method: str | None = None) -> Any:
        return real("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking
    command_line = importlib.import_module(COMMAND_LINE)
    for name in WORTH_IMPORTING:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"not imported ahead: {name}: {error}\n")
    gc.collect()
    gc.freeze()  # keeps the pages shared with the forks
    return command_line


def serve(argv: list[str]) -> None:
    """Be one server, as `vllm` with these arguments."""
    command_line = import_vllm()
    sys.argv = ["vllm", *argv]
    command_line.main()


def main() -> None:
    """Follow orders until standard input ends."""
    began = time.monotonic()
    # An engine process whose server was killed becomes our child: where nobody else reaps, we do.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    servers = Servers(import_vllm())
    signal.signal(signal.SIGTERM, servers.stop)
    signal.signal(signal.SIGINT, servers.stop)
    tell(event="ready", seconds=round(time.monotonic() - began, 1))
    unread = b""
    while not servers.stopping:
        servers.reap()
        if not select.select([0], [], [], POLL_S)[0]:
            continue
        piece = os.read(0, 65536)
        if not piece:
            break
        *lines, unread = (unread + piece).split(b"\n")
        for line in lines:
            servers.fork(json.loads(line))
    servers.end()


if __name__ == "__main__":
    if sys.argv[1:]:
        serve(sys.argv[1:])
    else:
        main()
