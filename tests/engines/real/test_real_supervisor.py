"""`headrace worker run` with real vLLM servers: each an API server with an engine core of its own, as on a GPU host."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import openai
import pytest
import yaml
from real_support import MODEL, POLICY, Command, Fleet, until

import workers.engines.cpu
from gateway.ports import free_port
from workers.engines.cpu.forks import CPU_ENVIRONMENT, CPU_FLAGS
from workers.engines.cpu.install import ensure_installed
from workers.leftovers import StateDir, belongs
from workers.processes import processes
from workers.report import decode, report_key

FLEET = "supervised"
START_S = 240.0  # two servers, one after the other, each importing vLLM for 17 s of CPU
# Half of the sessions are for the pool of whoever is tried out; while nobody is, the usual workers have them.
TRYING = POLICY.replace("long-context]}", "long-context], canary: [{pool: trial, weight: 0.5}]}", 1)
TRYING += "  trial: {}\nhealth: {slow_start_s: 0}\n"
QUICK = Path(workers.engines.cpu.__file__).with_name("vllm_forks.py")


def document(model_dir, state_dir, redis_url):
    python = ensure_installed("vllm", print)
    flags = dict(zip(CPU_FLAGS[1::2], CPU_FLAGS[2::2], strict=True))
    defaults = {
        "model_path": str(model_dir),
        "served_name": MODEL,
        "device": "cpu",
        "kv_bytes": "16MiB",
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "prefix_caching": True,
        "dtype": flags["--dtype"],
        "block_size": int(flags["--block-size"]),
        "extra_flags": ["--enforce-eager"],
        "warmup_prompts": ["You are a helpful assistant."],
        "env": {name: value or "" for name, value in CPU_ENVIRONMENT.items()},
        "program": [str(python), str(QUICK)],  # `vllm` with one import in place of two
        "stop_grace_s": 10,
        "agent_port": None,
    }
    return {
        "shared": {
            "fleet": FLEET,
            "redis": redis_url,
            "state_dir": str(state_dir),
            "devices": [{"id": "cpu", "kind": "cpu", "memory": "8GiB"}],
            "defaults": defaults,
        },
        "instances": [
            {"name": "short", "pool": "short-chat", "port": free_port()},
            {"name": "long", "pool": "long-context", "port": free_port(), "max_model_len": 8192, "kv_bytes": "32MiB"},
        ],
    }


class Supervised:
    """The supervisor's process, its file, and what it told."""

    def __init__(self, directory, content):
        self.path = directory / "workers.yaml"
        self.content = content
        self.state = StateDir(directory / "state")
        self.write()
        self.command = Command.headrace(
            directory / "supervisor.log", "worker", "run", "-c", str(self.path), "--interval", "0.2"
        )
        self.told = []

    def write(self):
        self.path.write_text(yaml.safe_dump(self.content))

    def wait_told(self, timeout_s=START_S, after=0, **fields):
        """The first event with these values, among those after the first `after`."""
        deadline = time.monotonic() + timeout_s
        seen = after
        while True:
            for event in self.told[seen:]:
                if all(event.get(key) == value for key, value in fields.items()):
                    return event
            seen = len(self.told)
            event = self.command.events.get(timeout=max(0.0, deadline - time.monotonic()))
            assert event is not None, f"the supervisor ended: {self.told[-5:]}"
            self.told.append(event)

    def family(self, name):
        """Everybody of one instance: guardian, API server, engine core."""
        records = [record for record in self.state.records() if record.instance == name]
        return [one for one in processes() if any(belongs(one, record) for record in records)]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory, model_dir, redis_url):
    directory = tmp_path_factory.mktemp("supervised")
    running = Supervised(directory, document(model_dir, directory / "state", redis_url))
    try:
        running.wait_told(event="ready")
        yield running
    finally:
        running.command.stop()


@pytest.fixture(scope="module")
def front(tmp_path_factory, redis_url, supervised):
    directory = tmp_path_factory.mktemp("front")
    (directory / "policy.yaml").write_text(TRYING)
    (directory / "headrace.yaml").write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nfleet: {FLEET}\nredis: {redis_url}\n"
        f"policy: {directory / 'policy.yaml'}\nstate_dir: {directory / 'state'}\ndrain_s: 5\n"
    )
    command = Command.headrace(directory / "gateway.log", "serve", "-c", str(directory / "headrace.yaml"))
    try:
        ready = command.ready()
        fleet = Fleet(ready["data"], ready["admin"], None)
        for name in ("short", "long"):
            fleet.wait_ready(name)
        yield fleet
    finally:
        command.stop()


@pytest.fixture
def redis(redis_url):
    from redis import Redis

    with Redis.from_url(redis_url) as client:
        yield client


def report(redis, worker):
    raw = redis.get(report_key(FLEET, worker))
    return None if raw is None else decode(raw, worker)


def client(front):
    return openai.OpenAI(base_url=f"{front.data}/v1", api_key="none", max_retries=0, timeout=120)


def complete(asked, tokens=40):
    """One stream from its first event to its end; the finish reason."""
    chunks = asked.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    return [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]


def where(asked):
    """(worker, whether as a canary) of a short request."""
    fields = asked.completions.with_raw_response.create(model=MODEL, prompt="x", max_tokens=2).headers
    return fields["x-headrace-worker"], fields["x-headrace-reason"].startswith("canary")


def test_two_instances_serve_behind_the_gateway(supervised, front, redis):
    order = [(event.get("id"), event.get("state")) for event in supervised.told]
    assert order.index(("short", "ready")) < order.index(("long", "starting"))  # one at a time on a device
    with client(front) as asked:
        assert complete(asked) == "length"
    seen = until(lambda: (r := report(redis, "short")) and r.state == "ready" and r, what="short is reported ready")
    assert (seen.models, seen.max_model_len, seen.kv_tokens) == ((MODEL,), 2048, 16 * 1024 - 32)
    assert len(seen.weights) == 16
    assert seen.device_bytes > 0
    assert len(supervised.family("short")) >= 3


def test_a_dry_run_refuses_a_colliding_debug_port_and_over_committed_memory(supervised, tmp_path):
    content = yaml.safe_load(supervised.path.read_text())
    for one in content["instances"]:
        one["port"] = free_port()
    content["shared"]["ports"] = {"internal_first": 42000}
    content["instances"][1]["debug_port"] = content["instances"][0]["port"]
    assert "is wanted by short (port) and by long (debug_port)" in refused(tmp_path, content)
    del content["instances"][1]["debug_port"]
    content["instances"][0]["kv_bytes"] = "7GiB"
    assert "device cpu is over-committed" in refused(tmp_path, content)


def refused(tmp_path, content):
    path = tmp_path / "workers.yaml"
    path.write_text(yaml.safe_dump(content))
    argv = [sys.executable, "-m", "headrace", "worker", "run", "-c", str(path), "--dry-run"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    return " ".join((done.stdout + done.stderr).split())


class Load:
    """Streams through the gateway, a few at a time, until it is stopped; what did not end as it should."""

    def __init__(self, front, streams=3):
        self.done = 0
        self.failed = []
        self._front = front
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(streams)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self):
        with client(self._front) as asked:
            while not self._stop.is_set():
                try:
                    reason = complete(asked)
                except openai.OpenAIError as error:
                    self.failed.append(repr(error))
                else:
                    self.done += 1
                    if reason != "length":
                        self.failed.append(reason)


def test_a_rolling_change_under_load_fails_no_request(supervised, front, redis):
    before = [one.pid for one in supervised.family("short")]
    supervised.content["instances"][0] |= {"max_num_seqs": 6, "canary_pool": "trial", "canary_s": 15}
    supervised.write()
    with Load(front) as load:
        until(lambda: load.done > 3, 60, "the load runs")
        told = len(supervised.told)
        supervised.command.process.send_signal(signal.SIGHUP)
        supervised.wait_told(event="instance", id="short:2", state="ready", after=told)
        front.wait_ready("short:2")
        with client(front) as asked:
            seen = set()
            until(lambda: seen.add(where(asked)) or {("short:2", True), ("short", False)} <= seen, 14, "both serve")
        assert not {("short:2", False), ("short", True)} & seen, "each has its own sessions"
        assert supervised.wait_told(event="reloaded", after=told)["faults"] == 0
        so_far = load.done
        until(lambda: load.done > so_far + 6, 60, "the load goes on at the new one")
    assert load.failed == []
    assert not {one.pid for one in processes()} & set(before)
    assert report(redis, "short") is None
    fresh = report(redis, "short:2")
    assert (fresh.state, fresh.max_num_seqs) == ("ready", 6)
    order = [(event.get("id"), event.get("state")) for event in supervised.told[told:]]
    assert order.index(("short:2", "ready")) < order.index(("short", "draining"))
    assert "long" not in [who for who, _ in order]


def test_a_killed_engine_takes_its_family_along_and_is_started_again(supervised, redis):
    before = report(redis, "long")
    family = supervised.family("long")
    told = len(supervised.told)
    os.kill(
        next(e["engine_pid"] for e in supervised.told if e.get("id") == "long" and "engine_pid" in e), signal.SIGKILL
    )
    failed = supervised.wait_told(event="instance", id="long", state="failed", after=told)
    assert failed["why"].startswith("ended with SIGKILL")
    assert not {one.pid for one in processes()} & {one.pid for one in family}
    supervised.wait_told(event="instance", id="long", state="ready", after=told)
    after = until(lambda: (r := report(redis, "long")) and r.state == "ready" and r, what="long is reported ready")
    assert after.incarnation != before.incarnation


def test_draining_loses_no_stream_and_a_killed_supervisor_leaves_nothing(supervised, front):
    """The last test of this module: it ends the supervisor."""
    url = next(event["url"] for event in reversed(supervised.told) if event.get("id") == "long")
    body = b'{"model": "%b", "prompt": "x", "max_tokens": 1500, "ignore_eos": true, "stream": true}' % MODEL.encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    told = len(supervised.told)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.readline()
        supervised.content["instances"] = supervised.content["instances"][:1]
        supervised.write()
        supervised.command.process.send_signal(signal.SIGHUP)
        supervised.wait_told(event="instance", id="long", state="draining", after=told)
        text += answer.read()
    assert b"[DONE]" in text
    assert b'"finish_reason":"length"' in text
    supervised.wait_told(event="instance", id="long", state="stopped", after=told)

    family = supervised.family("short:2")
    assert len(family) >= 3
    supervised.command.process.kill()
    gone = {one.pid for one in family}
    until(lambda: not {one.pid for one in processes()} & gone, what="nothing is left")
