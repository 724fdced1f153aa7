"""vLLM's own load generator through the gateway."""

import json
import subprocess

from real_support import MODEL

from workers.engines.cpu.forks import CPU_ENVIRONMENT
from workers.engines.cpu.install import ensure_installed
from workers.settings import child_environment


def test_vllm_bench_serve_completes_without_a_failure(fleet, tmp_path):
    fleet.wait_idle()
    vllm = ensure_installed("vllm", lambda _: None).with_name("vllm")
    result = subprocess.run(
        [
            *(str(vllm), "bench", "serve", "--backend", "openai-chat", "--base-url", fleet.data),
            *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", str(fleet.engines.model_dir)),
            *("--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "32", "--ignore-eos"),
            *("--num-prompts", "200", "--max-concurrency", "32", "--seed", "1", "--disable-tqdm"),
            *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json"),
        ],
        env=child_environment(CPU_ENVIRONMENT),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert figures["completed"] == 200, result.stdout[-3000:]
    assert figures.get("failed", 0) == 0
    assert figures["total_output_tokens"] == 200 * 32
    fleet.wait_idle()
    assert fleet.states() == {"ready"}
