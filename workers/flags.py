"""Flags and variables of each engine that a field of `workers.yaml` sets: written beside it, they would contradict it.

A port in `extra_flags` that differs from the instance's own leaves a supervisor waiting for ever at the wrong one, so
every spelling is known: `--port 8080`, `--port=8080`, `--max_model_len`, `-tp 2`, `-tp2`, and abbreviations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workers.instances import Engine

# Flag -> field. Sources: `vllm serve --help` (0.32), SGLang's server_args.py, `trtllm-serve serve --help`,
# llama.cpp's tools/server/README.md. MindIE takes its settings from a file, not from flags.
_VLLM: Final = {
    "--host": "host",
    "--port": "port",
    "--model": "model_path",
    "--served-model-name": "served_name",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--gpu-memory-utilization": "memory_share",
    "--kv-cache-memory-bytes": "kv_bytes",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--block-size": "block_size",
    "--enable-prefix-caching": "prefix_caching",
    "--no-enable-prefix-caching": "prefix_caching",
    "--enable-chunked-prefill": "chunked_prefill",
    "--no-enable-chunked-prefill": "chunked_prefill",
    "--scheduling-policy": "priority_scheduling",
    "--quantization": "quantization",
    "-q": "quantization",
    "--dtype": "dtype",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "-pp": "pipeline_parallel",
    "--master-port": "dist_init_port",
}
_SGLANG: Final = {
    "--host": "host",
    "--port": "port",
    "--model-path": "model_path",
    "--model": "model_path",
    "--served-model-name": "served_name",
    "--context-length": "max_model_len",
    "--max-running-requests": "max_num_seqs",
    "--chunked-prefill-size": "chunked_prefill",
    "--mem-fraction-static": "memory_share",
    "--max-total-tokens": "memory_share",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--page-size": "block_size",
    "--disable-radix-cache": "prefix_caching",
    "--enable-priority-scheduling": "priority_scheduling",
    "--quantization": "quantization",
    "--dtype": "dtype",
    "--tensor-parallel-size": "tensor_parallel",
    "--tp-size": "tensor_parallel",
    "--tp": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "--pp-size": "pipeline_parallel",
    "--pp": "pipeline_parallel",
    "--dist-init-addr": "dist_init_port",
    "--nccl-port": "other_ports",
    "--base-gpu-id": "device",
}
_TRTLLM: Final = {
    "--host": "host",
    "--port": "port",
    "--max-seq-len": "max_model_len",
    "--max-batch-size": "max_num_seqs",
    "--max-num-tokens": "max_num_batched_tokens",
    "--kv-cache-free-gpu-memory-fraction": "memory_share",
    "--free-gpu-memory-fraction": "memory_share",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--served-model-name": "served_name",
    "--tp-size": "tensor_parallel",
    "--pp-size": "pipeline_parallel",
}
_LLAMACPP: Final = {
    "--host": "host",
    "--port": "port",
    "--model": "model_path",
    "-m": "model_path",
    "--alias": "served_name",
    "-a": "served_name",
    "--ctx-size": "max_model_len",
    "-c": "max_model_len",
    "--parallel": "max_num_seqs",
    "-np": "max_num_seqs",
    "--batch-size": "max_num_batched_tokens",
    "-b": "max_num_batched_tokens",
    "--cache-type-k": "kv_cache_dtype",
    "-ctk": "kv_cache_dtype",
}
_SIMULATOR: Final = {
    "--host": "host",
    "--port": "port",
    "--model": "served_name",
    "--pool": "pool",
    "--id": "name",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--block-size": "block_size",
    "--prefix-caching": "prefix_caching",
    "--no-prefix-caching": "prefix_caching",
    "--admin-port": "debug_port",
    "--redis": "shared.redis",
    "--fleet": "shared.fleet",
}
MANAGED_FLAGS: Final[Mapping[Engine, Mapping[str, str]]] = {
    Engine.VLLM: _VLLM,
    Engine.SGLANG: _SGLANG,
    Engine.TRTLLM: _TRTLLM,
    Engine.LLAMACPP: _LLAMACPP,
    Engine.MINDIE: {},
    Engine.SIMULATOR: _SIMULATOR,
}
_REPLICAS = "runs replicas on further devices behind one port; list an instance for each of them"
_FILE = "takes the place of the file that is made from the fields; write fields"
UNSUITABLE_FLAGS: Final[Mapping[Engine, Mapping[str, str]]] = {
    Engine.VLLM: {
        "--data-parallel-size": _REPLICAS,
        "-dp": _REPLICAS,
        "--uds": "answers on a socket, while the supervisor asks at the port; leave it out",
        "--headless": "has no API that could be asked; leave it out",
    },
    Engine.SGLANG: {"--data-parallel-size": _REPLICAS, "--dp-size": _REPLICAS, "--dp": _REPLICAS},
    Engine.TRTLLM: {"--config": _FILE, "--extra-llm-api-options": _FILE},
}
"""Flags that no field sets and that break what the fields say -> why, and what to do."""

MANAGED_VARIABLES: Final[Mapping[str, str]] = {
    "VLLM_PORT": "internal_ports.first",
    "CUDA_VISIBLE_DEVICES": "device",
    "ASCEND_RT_VISIBLE_DEVICES": "device",
    "ASCEND_VISIBLE_DEVICES": "device",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "compute_share",
    "MASTER_PORT": "dist_init_port",
    "NPU_MEMORY_FRACTION": "memory_share",
    "MIES_CONFIG_JSON_PATH": "model_path and the others",
}
"""Environment variable -> the field that sets it."""

# argparse takes any beginning of a flag that is no other's. A shorter one, dashes counted, is hardly ever.
_SHORTEST_ABBREVIATION: Final = 4


@dataclass(frozen=True, slots=True)
class FlagFault:
    """A word of `extra_flags` that cannot stay: its index, what is wrong, and what to write instead."""

    index: int
    message: str


def flag_faults(engine: Engine, words: Sequence[str]) -> list[FlagFault]:
    """Every word that sets what a field sets, also where it happens to agree: one home for each value."""
    faults = [
        FlagFault(index, f"{word!r} is one word, in which no engine finds a flag; write flag and value as two")
        for index, word in enumerate(words)
        if word.startswith("--") and any(sign.isspace() for sign in word.partition("=")[0])
    ]
    for index, flag, value in _flags(engine, words):
        field = _field_of(engine, flag)
        if field is not None:
            meant = f"{field}: {value}" if value else field
            faults.append(FlagFault(index, f"{words[index]!r} sets what the field {field} sets; write {meant} instead"))
        elif (why := UNSUITABLE_FLAGS.get(engine, {}).get(flag)) is not None:
            faults.append(FlagFault(index, f"{words[index]!r} {why}"))
    return faults


def _flags(engine: Engine, words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(index, normalised flag, value or "") of each flag among the words."""
    known = (*MANAGED_FLAGS[engine], *UNSUITABLE_FLAGS.get(engine, ()))
    short = sorted((flag for flag in known if not flag.startswith("--")), key=len, reverse=True)
    for index, word in enumerate(words):
        if not word.startswith("-") or _is_number(word):
            continue
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            # `-tp2` and `-tp=2` are `-tp 2` to argparse.
            joined = next((flag for flag in short if name.startswith(flag) and name[len(flag) :].isdigit()), None)
            if joined is not None:
                yield index, joined, name[len(joined) :]
                continue
        else:
            name = "--" + name[2:].replace("_", "-")
        if not equals and index + 1 < len(words):
            following = words[index + 1]
            value = following if not following.startswith("-") or _is_number(following) else ""
        yield index, name, value


def _field_of(engine: Engine, flag: str) -> str | None:
    managed = MANAGED_FLAGS[engine]
    if flag in managed:
        return managed[flag]
    if flag.startswith("--") and len(flag) >= _SHORTEST_ABBREVIATION:
        return next((field for known, field in managed.items() if known.startswith(flag)), None)
    return None


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
