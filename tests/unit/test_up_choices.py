"""What `headrace up --engine …` refuses before it starts, and the workers.yaml that it writes."""

import json
import os
import stat
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.up_engines import Asked, ChoiceError, Engines, Place, choose, workers_document
from gateway.up_supervised import ERROR_LINES, LOG_LINES, log_tail, refusal, sweep
from workers.expand import parse_workers
from workers.launch import refusals, start_of
from workers.ledger import DeviceMemory, memory_ledger
from workers.model_files import load_model
from workers.units import GIB

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A directory with models and programs, the only ones on PATH."""
    (tmp_path / "chat-model").mkdir()
    (tmp_path / "chat-model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    (tmp_path / "small.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "text.gguf").write_bytes(b"text")
    for name in ("vllm", "llama-server"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


VLLM = Asked(model="chat-model", device=("cpu",))
LLAMA = Asked(model="small.gguf", device=("cpu",))


@pytest.mark.parametrize(
    ("kind", "asked", "told"),
    [
        ("sim", Asked(model="x"), "--model is for real engines: add --engine vllm or llamacpp, or leave it out"),
        ("sim", Asked(engine_arg=("-v",)), "--engine-arg is for real engines"),
        ("sim", Asked(ready_timeout=3), "--ready-timeout is for real engines"),
        ("vllm", replace(VLLM, speed=2.0), "--speed is for simulated engines"),
        ("vllm", Asked(), "--engine vllm needs --model PATH, a directory with config.json"),
        ("llamacpp", Asked(), "--engine llamacpp needs --model PATH, a .gguf file"),
        ("vllm", Asked(model="nowhere"), "config.json: No such file or directory; give a directory with config.json"),
        ("vllm", Asked(model="broken"), "config.json is not JSON"),
        ("vllm", Asked(model="small.gguf"), "with a .gguf use --engine llamacpp"),
        ("llamacpp", Asked(model="chat-model"), "with a directory use --engine vllm"),
        ("llamacpp", Asked(model="nowhere"), "nowhere: No such file or directory; give a .gguf file"),
        ("llamacpp", Asked(model="text.gguf"), "is no GGUF file (it begins with b'text')"),
        ("llamacpp", replace(LLAMA, kv_memory="1GiB"), "--kv-memory: llama.cpp takes KV memory for its whole context"),
        ("llamacpp", replace(LLAMA, dtype="float16"), "--dtype: a .gguf file has its types in it"),
        ("vllm", replace(VLLM, long_tokens=40000), "--long-tokens 40000 is more than the 32768 tokens"),
        ("vllm", replace(VLLM, short_tokens=9000, long_tokens=8000), "--short-tokens 9000 is more than --long-tokens"),
        ("vllm", replace(VLLM, device=("cpu,0",)), "--device cpu,0: either cpu or devices"),
        ("vllm", replace(VLLM, engine_command="nothing-like-it"), "there is no such program; give its path"),
        ("vllm", replace(VLLM, engine_command="'"), "No closing quotation"),
        ("vllm", replace(VLLM, engine_command=""), "there is no such program"),
    ],
)
def test_what_makes_no_sense_is_one_line_with_the_cure(models, kind, asked, told):
    with pytest.raises(ChoiceError) as caught:
        choose(kind, asked)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "program"), [("vllm", "vllm"), ("llamacpp", "llama-server")])
def test_a_program_that_is_not_there_is_named_with_the_cure(models, kind, program):
    (models / program).unlink()
    with pytest.raises(ChoiceError, match=rf"{program} is not on PATH: install it \(.+\) or .* --engine-command"):
        choose(kind, VLLM if kind == "vllm" else LLAMA)


def test_simulated_engines_need_nothing():
    assert choose("sim", Asked(speed=3.0)) is None


def test_what_is_left_out_is_taken_from_the_model(models):
    vllm, llama = choose("vllm", VLLM), choose("llamacpp", LLAMA)
    assert (vllm.served_name, llama.served_name) == ("chat-model", "small")
    assert (vllm.program, llama.program) == ((str(models / "vllm"),), (str(models / "llama-server"),))
    assert (vllm.short_tokens, vllm.long_tokens) == (4096, 32768)
    assert choose("vllm", replace(VLLM, short_tokens=100)).long_tokens == 32768
    (models / "chat-model/config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2048}))
    short = choose("vllm", VLLM)
    assert (short.short_tokens, short.long_tokens) == (2048, 2048)


PLACES = [
    Place("short-1", "short-chat", 64, False),
    Place("short-2", "short-chat", 64, False),
    Place("long-1", "long-context", 16, True),
]


def written(engines, places=PLACES):
    ports = count(40000)
    document = workers_document(engines, places, port=lambda: next(ports), internal_first=20000)
    return parse_workers(json.dumps(document))


def faults(file, devices):
    models = {one.name: load_model(one.model_path) for one in file.instances if one.engine == "vllm"}
    unknown = {one.name: None for one in file.instances if one.name not in models}
    ledger = memory_ledger(file, {one: DeviceMemory(80 * GIB) for one in devices}, models | unknown)
    return [str(fault) for fault in ledger.faults] + [
        str(refusal) for one in file.instances for refusal in refusals(one)
    ]


def test_the_supervisor_takes_the_file_for_vllm(models):
    engines = choose("vllm", replace(VLLM, served_name="${chat}", engine_arg=("--seed", "3")))
    file = written(engines)
    assert faults(file, ["cpu"]) == []
    assert [(one.pool, one.max_model_len) for one in file.instances] == [
        ("short-chat", 4096),
        ("short-chat", 4096),
        ("long-context", 32768),
    ]
    start = start_of(file.instances[0], file, "/state")
    assert start.argv[:3] == (str(models / "vllm"), "serve", str(models / "chat-model"))
    assert {"--enforce-eager", "--seed", "float32", "${chat}"} <= set(start.argv)
    assert start.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_the_supervisor_takes_the_file_for_llamacpp(models):
    file = written(choose("llamacpp", LLAMA))
    assert faults(file, ["cpu"]) == []
    argv = start_of(file.instances[2], file, "/state").argv
    assert argv[argv.index("--model") + 1] == str(models / "small.gguf")
    assert argv[argv.index("--ctx-size") + 1] == "32768"


@settings(max_examples=50)
@given(short=st.integers(0, 64), long=st.integers(0, 64), devices=st.lists(st.integers(0, 15), unique=True, max_size=8))
def test_shares_of_a_device_never_pass_what_there_is(short, long, devices):
    names = tuple(map(str, devices)) or ("0",)
    engines = Engines("vllm", Path("/m"), "m", ("vllm",), (), names, 1, 2, None, None, 60.0)
    places = [Place(f"short-{n}", "short-chat", 4, False) for n in range(short)]
    places += [Place(f"long-{n}", "long-context", 4, True) for n in range(long)]
    document = workers_document(engines, places, port=lambda: 1, internal_first=2)
    for name in names:
        assert sum(one["memory_share"] for one in document["instances"] if one["device"] == name) <= 0.95 + 1e-9
    assert all(one["memory_share"] > 0 for one in document["instances"])


def test_a_refused_file_is_told_in_one_line():
    usage = ["Usage: headrace worker run", "Try 'headrace worker run --help' for help.", ""]
    assert refusal([*usage, "Error: /tmp/w.yaml: nothing was started:", "a: wrong", "b: too"]) == "a: wrong; b: too"
    assert refusal([*usage, "Error: redis: no"]) == "redis: no"
    assert refusal([]) == "refused the file"


def test_of_a_log_the_first_errors_and_the_end_are_told(tmp_path):
    log = tmp_path / "x.log"
    assert log_tail(log) == []
    noise = [f"line {n}" for n in range(100)]
    log.write_text("\n".join(["ValueError: the cause", *["RuntimeError: too"] * 20, *noise, "x" * 100_000]))
    assert len(log_tail(log)) <= ERROR_LINES + LOG_LINES
    log.write_text("\n".join(["ValueError: the cause", *["RuntimeError: too"] * 20, *noise]))
    found = log_tail(log)
    assert (found[0], found[-1], len(found)) == ("ValueError: the cause", "line 99", ERROR_LINES + LOG_LINES)


def test_only_what_a_killed_run_left_is_swept(tmp_path, monkeypatch):
    import fcntl
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("headrace-up-dead", "headrace-up-alive", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workers.yaml").touch()
    for name in ("headrace-up-new", "headrace-up-rest"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "headrace-up-rest", (0, 0))
    lock = os.open(tmp_path / "headrace-up-alive", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep()
    finally:
        os.close(lock)
    assert {path.name for path in tmp_path.iterdir()} == {"headrace-up-alive", "headrace-up-new", "other"}
    assert stat.S_ISDIR((tmp_path / "other").stat().st_mode)
