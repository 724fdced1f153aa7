"""Starts the parts of a real fleet as processes and asks each part what it sees."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.ports import free_port
from gateway.process import LAUNCHER, valkey_argv
from workers.engines.base import Launch
from workers.engines.cpu.forks import Forks, Server, on_cpu, tail
from workers.engines.vllm import VLLM
from workers.report import decode, report_key

FLEET = "real"
MODEL = "tiny"
SHORT_LENGTH = 2048
LONG_LENGTH = 16384
SEQUENCES = 4
BLOCK = 32  # tokens
KV_BYTES_PER_TOKEN = 1024  # of the tiny model in single precision
REPORT_INTERVAL_S = 0.2
TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")

POLICY = """
models:
  tiny: {served_as: tiny, pools: [short-chat, long-context]}
  gemma: {served_as: gemma, pools: [short-chat]}
pools:
  short-chat: {max_budget_tokens: 1900, may_borrow: [long-context]}
  long-context: {}
"""


def until(condition, timeout_s=20.0, what="the condition"):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        time.sleep(0.05)  # what processes bring about is looked for, within `timeout_s`
    return value


def start(argv, **more):
    """A process that dies with this one, even when this one is killed."""
    tied = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv]
    return subprocess.Popen(tied, **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **more})


class Command:
    """One of our own commands as a process that prints JSON events."""

    def __init__(self, argv, log):
        self.log = log
        with log.open("ab") as errors:
            self.process = start(argv, stderr=errors)
        self.events = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    @classmethod
    def headrace(cls, log, *arguments):
        return cls([sys.executable, "-m", "headrace", *arguments, "--json"], log)

    def _read(self):
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self.events.put(json.loads(line))
        self.events.put(None)

    def ready(self, timeout_s=30.0):
        """The first event; it must be `ready`."""
        with contextlib.suppress(queue.Empty):
            event = self.events.get(timeout=timeout_s)
            if event is not None and event["event"] == "ready":
                return event
        raise AssertionError(f"{self.log.stem} is not ready:\n{tail(self.log)}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join()
            self.process.stdout.close()


@contextlib.contextmanager
def running_valkey(log_dir):
    """The URL of a Valkey that keeps nothing."""
    port = free_port()
    with (log_dir / "valkey.log").open("ab") as log:
        process = start(valkey_argv(log_dir, port), stdout=log, stderr=log)
    try:
        url = f"redis://127.0.0.1:{port}/0"
        with contextlib.closing(Redis.from_url(url)) as client:
            until(lambda: _pings(client), what="a ping of Valkey")
        yield url
    finally:
        process.kill()
        process.wait()


def _pings(client):
    try:
        return client.ping()
    except RedisConnectionError:
        return False


@dataclass
class Engines:
    """Real servers with their agents, and the Redis that these report to."""

    redis: Redis
    forks: Forks
    servers: dict[str, Server]
    model_dir: Path

    def report(self, worker):
        """The report in Redis, or None."""
        raw = self.redis.get(report_key(FLEET, worker))
        return None if raw is None else decode(raw, worker)

    def wait_reported(self, worker, state="ready", timeout_s=20.0):
        """The first report with this state."""
        return until(
            lambda: (report := self.report(worker)) and report.state == state and report,
            timeout_s,
            f"{worker} reported {state}",
        )

    def reading(self, worker):
        """What the engine itself says now."""
        with urllib.request.urlopen(self.servers[worker].url + "/metrics", timeout=10) as answer:
            return VLLM.read_metrics(answer.read(), {})

    def restart(self, worker):
        """A new engine on the port of one that was killed."""
        self.servers[worker] = self.forks.serve(worker, self.servers[worker].launch)
        self.servers[worker].wait_ready()
        return self.wait_reported(worker)


@dataclass
class Fleet:
    """Engines behind a gateway."""

    data: str  # URL of the gateway
    admin: str
    engines: Engines

    def view(self, worker=None):
        """What /admin/v1/fleet says: of one worker, or all of it."""
        fleet = get_json(f"{self.admin}/admin/v1/fleet")
        if worker is None:
            return fleet
        # A former incarnation may still be listed while its last leases end.
        return next((each for each in fleet["workers"] if each["id"] == worker and each["state"] != "gone"), None)

    def states(self):
        """The states there are among the engines that last; a test's own may still be about to leave."""
        return {self.view(name)["state"] for name in self.engines.servers}

    def wait_idle(self):
        """Wait until neither an engine nor the gateway has anything left to do."""
        for worker in self.engines.servers:
            until(lambda worker=worker: (r := self.engines.reading(worker)).running == r.waiting == 0, what="no work")
        until(lambda: self.view()["in_flight"] == 0, what="no request in flight at the gateway")

    def wait_ready(self, worker, timeout_s=60.0):
        """Wait until the gateway would give it work."""
        until(lambda: (view := self.view(worker)) and view["state"] == "ready", timeout_s, f"{worker} ready")


def kv_tokens(max_model_len):
    """A KV cache for two of the longest requests: small, so that usage moves."""
    return 2 * max_model_len


def vllm_launch(model_dir, max_model_len):
    return on_cpu(
        Launch(
            model=str(model_dir),
            served_name=MODEL,
            host="127.0.0.1",
            port=free_port(),
            max_model_len=max_model_len,
            max_num_seqs=SEQUENCES,
            kv_bytes=(kv_tokens(max_model_len) + BLOCK) * KV_BYTES_PER_TOKEN,  # vLLM keeps one block for itself
            extra=TOOL_FLAGS,
        )
    )


def get_json(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
