"""Names what an engine has loaded: a fingerprint of a model directory, made in milliseconds."""

from __future__ import annotations

import hashlib
from pathlib import Path

MAX_FILES = 4096
HEAD_BYTES = 64 * 1024  # the header of a safetensors file, or what tells two quantisations of a GGUF apart
SMALL_BYTES = 4 * 1024 * 1024  # configurations and tokenizers are read whole
SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".json", ".model", ".engine", ".jinja")


def fingerprint(model_path: str) -> str:
    """16 hex digits of names, sizes and beginnings of the files; empty when there is no such file on this host.

    Weights of the same shapes and sizes that differ only deep inside look alike: hashing them whole takes minutes.
    """
    path = Path(model_path).expanduser()
    try:
        files = [path] if path.is_file() else sorted(one for one in path.iterdir() if one.suffix in SUFFIXES)
    except OSError:
        return ""
    digest = hashlib.sha256()
    for one in files[:MAX_FILES]:
        try:
            size = one.stat().st_size
            with one.open("rb") as file:
                head = file.read(size if size <= SMALL_BYTES and one.suffix == ".json" else HEAD_BYTES)
        except OSError:
            return ""
        digest.update(f"{one.name}\0{size}\0".encode() + head)
    return digest.hexdigest()[:16] if files else ""
