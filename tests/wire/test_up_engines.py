"""`headrace up --engine vllm` with a program called vllm that is a simulator: the whole way but the weights."""

import asyncio
import json
import os
import signal
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from up_support import Up, descendants, files_below, is_free, parents, wait_until

from gateway.admin_client import get
from gateway.up_supervised import sweep

FAKE = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
assert words[0] == "serve", words
if "--fail" in words:
    print("ValueError: no such quantisation")
    sys.exit(3)
given = dict(zip(words[2::2], words[3::2]))
same = ["--host", "--port", "--max-model-len", "--max-num-seqs"]
argv = [sys.executable, "-P", "-m", "workers.engines.simulator_cli", "--speed", "50", "--model"]
argv += [given["--served-model-name"]] + [word for name in same for word in (name, given[name])]
os.execv(sys.executable, argv)
"""
ONE_EACH = ("--short", "1", "--long", "1")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Words of the command line; `vllm` is on PATH."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    model = tmp_path / "my-model"
    model.mkdir()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    limits = {"vocab_size": 512, "max_position_embeddings": 32768, "torch_dtype": "float32"}
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes, **limits}))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    words = ("--engine", "vllm", "--model", str(model), "--device", "cpu", "--kv-memory", "256MiB")
    return (*words, *ONE_EACH, "--json")


@pytest.fixture
async def up(home, real):
    up = await Up.start(home, *real)
    try:
        yield await up.ready()
    finally:
        if up.process.returncode is None:
            up.process.kill()
        await up.process.communicate()
        await wait_until("the engines have ended", lambda: not up.family & parents().keys())


def engines_of(up):
    found = [pid for pid in up.family if "simulator_cli" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(found) == 2
    return found


async def test_the_fleet_serves_and_ctrl_c_leaves_nothing(up):
    fleet = await asyncio.to_thread(get, up.urls["admin"], "/admin/v1/fleet")
    seen = {one["id"]: (one["pool"], one["max_model_len"], one["models"]) for one in fleet["workers"]}
    assert seen == {
        "short-1": ("short-chat", 4096, ["my-model"]),
        "long-1": ("long-context", 32768, ["my-model"]),
    }
    (file,) = up.home.glob("headrace-up-*/workers.yaml")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len(up.family) == 6  # Valkey, the supervisor, two guardians, two engines
    up.process.send_signal(signal.SIGINT)
    assert (await up.ended())[:2] == (0, '{"event":"stopped"}\n')
    await up.nothing_left()


async def test_a_second_ctrl_c_leaves_nothing_either(up):
    for pid in engines_of(up):
        os.kill(pid, signal.SIGSTOP)  # so that the first one has something to wait for
    up.process.send_signal(signal.SIGINT)
    await wait_until("it is stopping", lambda: is_free(up.urls["data"]))
    for _ in range(3):
        up.process.send_signal(signal.SIGINT)
    assert (await up.ended())[:2] == (0, '{"event":"stopped"}\n')
    await up.nothing_left()


async def test_killing_it_ends_the_engines_and_the_next_one_takes_its_files_away(up, monkeypatch):
    up.process.kill()
    await up.ended()
    await wait_until("every process has ended", lambda: not up.family & parents().keys())
    monkeypatch.setattr(tempfile, "tempdir", str(up.home))
    sweep()
    assert files_below(up.home) == []


async def test_a_signal_while_engines_start_ends_what_there_is(home, real):
    up = await Up.start(home, *real)
    await wait_until("the engines are begun", lambda: [*home.glob("headrace-up-*/state/running/*.json")])
    up.family = descendants(up.process.pid)
    up.process.terminate()
    assert (await up.ended())[:2] == (0, '{"event":"stopped"}\n')
    await wait_until("every process has ended", lambda: not up.family & parents().keys())
    assert files_below(home) == []


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        (("--engine-arg", "--fail"), 1, "ended with status 3: ValueError: no such quantisation"),
        (("--kv-memory", "1MiB"), 2, "instances[0].max_model_len: a request of 4096 tokens needs"),
        (("--ready-timeout", "1", "--engine-command", "sleep 60 #"), 1, "sleep"),
        (("--engine-command", "/no/such/vllm"), 2, "--engine-command '/no/such/vllm': there is no such program"),
    ],
)
async def test_what_does_not_start_says_why_and_leaves_nothing(home, real, more, status, told):
    up = await Up.start(home, *real, *more)
    code, out, err = await up.ended()
    assert (code, out) == (status, "")
    assert told in err
    assert "Traceback" not in err
    assert files_below(home) == []
