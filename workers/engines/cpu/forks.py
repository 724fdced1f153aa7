"""The near end of `vllm_forks.py`: start, find and end real vLLM servers from a test or a demonstration."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from workers.engines.base import Launch
from workers.engines.cpu.install import Say, ensure_installed
from workers.engines.vllm import HEALTH, command
from workers.settings import child_environment

IMPORT_TIMEOUT_S = 180.0
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.1

# Eager and single precision are the faster choice on a CPU without AVX-512; blocks of 32 tokens let KV usage and
# prefix hits move with short prompts (128 is the default there).
CPU_FLAGS = ("--enforce-eager", "--dtype", "float32", "--block-size", "32")
KV_BYTES = 32 * 1024 * 1024
CPU_ENVIRONMENT: dict[str, str | None] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first request with logprobs compiles for 23 s
    "PYTHONDONTWRITEBYTECODE": None,
}


def on_cpu(launch: Launch) -> Launch:
    """The same launch with a small KV cache and the flags that suit a CPU before its own."""
    return replace(launch, kv_bytes=launch.kv_bytes or KV_BYTES, extra=(*CPU_FLAGS, *launch.extra))


_SCRIPT = Path(__file__).with_name("vllm_forks.py")


class EngineError(RuntimeError):
    """An engine did not start; the message ends with the last lines of its log."""


@dataclass(slots=True)
class Server:
    """One forked `vllm serve`. `pid` is also its process group."""

    name: str
    pid: int
    launch: Launch
    log: Path
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.launch.host}:{self.launch.port}"

    def kill(self) -> None:
        """SIGKILL the whole server and wait until it is reaped."""
        if not self.ended.is_set():
            os.killpg(self.pid, signal.SIGKILL)
        if not self.ended.wait(STOP_TIMEOUT_S):
            raise EngineError(f"{self.name}: still there {STOP_TIMEOUT_S:g} s after SIGKILL")

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once it answers /health; raises `EngineError` when it ended or takes longer."""
        deadline = time.monotonic() + timeout_s
        while not self._is_healthy():
            if self.ended.is_set() or time.monotonic() > deadline:
                why = "ended" if self.ended.is_set() else f"not ready within {timeout_s:g} s"
                raise EngineError(f"{self.name}: {why}\n{tail(self.log)}")
            time.sleep(POLL_S)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.launch.host, self.launch.port, timeout=2)
        try:
            connection.request("GET", HEALTH)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Forks:
    """A process that has vLLM imported, and the servers forked from it. A context manager: its end ends them all."""

    def __init__(self, run_dir: Path, say: Say) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir = run_dir
        self._news = threading.Condition()
        # All guarded by it; the reader thread writes.
        self._servers: dict[int, Server] = {}  # running, by process id
        self._wanted: dict[str, tuple[Launch, Path]] = {}  # ordered, not yet forked
        self._fresh: dict[str, Server] = {}  # forked, not yet handed out
        self._ready = False
        self._ended = False
        python = ensure_installed("vllm", say)
        with (run_dir / "forks.log").open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_environment(CPU_ENVIRONMENT),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all servers and the process they came from."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in list(self._servers):
                os.killpg(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def serve(self, name: str, launch: Launch) -> Server:
        """Fork a server; see `Server.wait_ready`. A name may be used again once its server ended."""
        log = self._run_dir / f"{name}.log"
        order = {"name": name, "argv": command(launch)[1:], "log": str(log)}
        with self._news:
            if not self._news.wait_for(lambda: self._ready or self._ended, IMPORT_TIMEOUT_S):
                raise EngineError(f"vLLM was not imported within {IMPORT_TIMEOUT_S:g} s")
            if not self._ended:
                self._wanted[name] = launch, log
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
                self._news.wait_for(lambda: name in self._fresh or self._ended, STOP_TIMEOUT_S)
            if name not in self._fresh:
                raise EngineError(f"{name}: could not be forked\n{tail(self._run_dir / 'forks.log')}")
            return self._fresh.pop(name)

    def _read(self, events: IO[bytes]) -> None:
        for line in events:
            event = json.loads(line)
            with self._news:
                if event["event"] == "ready":
                    self._ready = True
                elif event["event"] == "forked":
                    server = Server(event["name"], event["pid"], *self._wanted.pop(event["name"]))
                    self._servers[server.pid] = self._fresh[server.name] = server
                else:
                    self._servers.pop(event["pid"]).ended.set()
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log that may not be there."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
