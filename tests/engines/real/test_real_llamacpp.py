"""A real llama.cpp server as a worker."""

import subprocess
from pathlib import Path

import pytest
from live_conformance import check_engine
from real_support import start, tail, until

from gateway.ports import free_port
from workers.engines.cpu import llama_server
from workers.engines.cpu.install import ensure_installed
from workers.engines.cpu.models import gemma_gguf
from workers.engines.llamacpp import LLAMACPP

SLOTS = 2
CONTEXT = 1024


@pytest.fixture
def llama(logs, tmp_path):
    """Its URL."""
    model = tmp_path / "gemma.gguf"
    gemma_gguf(model, print)
    log = logs / "llamacpp.log"
    argv = [str(ensure_installed("llamacpp", print)), str(Path(llama_server.__file__)), str(model), str(free_port())]
    with log.open("ab") as errors:
        process = start([*argv, str(SLOTS), str(CONTEXT), "gemma"], stdin=subprocess.PIPE, stderr=errors)
    try:
        assert b'"ready"' in process.stdout.readline(), tail(log)
        yield f"http://127.0.0.1:{argv[3]}"
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_it_conforms(llama):
    check_engine(LLAMACPP, llama, "gemma", checks_model=False, has_kv=False)  # any name is served; no KV is shown


def test_a_chat_goes_through_to_llamacpp(fleet, client, llama, start_agent):
    start_agent("llama", llama, "short-chat", engine="llamacpp")
    report = until(
        lambda: (report := fleet.engines.report("llama")).state == "ready" and report, what="the agent's report"
    )
    assert (report.engine, report.models) == ("llamacpp", ("gemma",))
    assert (report.max_num_seqs, report.max_model_len, report.kv_tokens) == (SLOTS, CONTEXT, SLOTS * CONTEXT)
    assert report.kv_usage is None
    fleet.wait_ready("llama")
    raw = client.chat.completions.with_raw_response.create(
        model="gemma", messages=[{"role": "user", "content": "The capital of France is"}], max_tokens=8
    )
    assert raw.headers["x-headrace-worker"] == "llama"
    assert raw.parse().usage.completion_tokens >= 1
    assert list(
        client.chat.completions.create(
            model="gemma", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True
        )
    )
    until(lambda: fleet.engines.report("llama").generation_tokens >= 1, what="tokens in the report")
