"""`headrace up` with a real vLLM and a real llama.cpp: it serves, and Ctrl-C leaves nothing of it."""

import json
import os
import shutil
import signal
import tempfile
import urllib.request
from pathlib import Path

import pytest
from real_support import Command, until

import workers.engines.cpu
from workers.engines.cpu.forks import CPU_ENVIRONMENT
from workers.engines.cpu.install import ensure_installed
from workers.engines.cpu.models import gemma_gguf
from workers.processes import processes

QUICK = Path(workers.engines.cpu.__file__).with_name("vllm_forks.py")
READY_S = 180.0
# `llama-server` as far as `up` calls for it: the real engine, from Python because its own program is not installed.
LLAMA_SERVER = """#!{python}
import importlib, signal, sys
words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
llama = importlib.import_module("xllamacpp")
params = llama.CommonParams()
params.model.path, params.model_alias = given["--model"], {{given["--alias"]}}
params.port, params.n_parallel, params.n_ctx = (int(given[name]) for name in ("--port", "--parallel", "--ctx-size"))
params.endpoint_metrics, params.endpoint_slots = "--metrics" in words, "--slots" in words
params.endpoint_props, params.warmup = True, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = llama.Server(params)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    signal.pause()
"""


@pytest.fixture
def up(tmp_path, monkeypatch):
    """Start it with these words; afterwards it has ended, by SIGINT, and nothing of it is left."""
    home = Path(tempfile.mkdtemp())  # short: vLLM has sockets below it
    for name in ("TMPDIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home))
    started = []

    def start(*words):
        listeners = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        command = Command.headrace(tmp_path / "up.log", "up", *listeners, "--device", "cpu", *words)
        started.append(command)
        ready = command.ready(READY_S)
        return ready, family(command.process.pid)

    try:
        yield start
        (command,) = started
        left = family(command.process.pid)
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(60) == 0
        until(lambda: not left & {one.pid for one in processes() if not one.zombie}, what="nothing runs any more")
        assert [path for path in home.rglob("*") if path.is_file() and path.suffix != ".token"] == []
    finally:
        for command in started:
            command.stop()
        shutil.rmtree(home)


def family(pid):
    """Everybody below this process."""
    parents = {one.pid: int(stat(one.pid)[1]) for one in processes() if stat(one.pid)}
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def stat(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # ended meanwhile


def chat(url, model):
    """The worker that answered, and how many tokens it says that it made."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["X-Headrace-Worker"], json.load(answer)["usage"]["completion_tokens"]


def test_a_real_vllm(up, model_dir, monkeypatch):
    for name, value in CPU_ENVIRONMENT.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    quick = f"{ensure_installed('vllm', print)} {QUICK}"  # `vllm` with one import in place of two
    words = ("--engine", "vllm", "--model", str(model_dir), "--engine-command", quick, "--kv-memory", "32MiB")
    ready, family_of_it = up(*words, "--served-name", "tiny-real", "--short", "1", "--long", "0")
    assert len(family_of_it) >= 5  # Valkey, supervisor, guardian, API server, engine core
    worker, tokens = chat(ready["data"], "tiny-real")
    assert worker == "short-1"
    assert tokens >= 1


def test_a_real_llamacpp(up, tmp_path, monkeypatch):
    model = tmp_path / "gemma.gguf"
    gemma_gguf(model, print)
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(LLAMA_SERVER.format(python=ensure_installed("llamacpp", print)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    lengths = ("--short-tokens", "512", "--long-tokens", "1024")
    ready, family_of_it = up("--engine", "llamacpp", "--model", str(model), "--short", "1", "--long", "1", *lengths)
    assert len(family_of_it) >= 6  # Valkey, supervisor, two guardians, two servers
    worker, tokens = chat(ready["data"], "gemma")
    assert worker in {"short-1", "long-1"}
    assert tokens >= 1
