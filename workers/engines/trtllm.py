"""TensorRT-LLM: `trtllm-serve`, and what it tells of itself. Not run live here: written from its documents.

Sources: docs/source/commands/trtllm-serve/trtllm-serve.rst (flags, `--config`), tensorrt_llm/metrics/collector.py and
examples/serve/prometheus_metrics.py (`/prometheus/metrics`) of NVIDIA/TensorRT-LLM. Its `/metrics` is another thing: a
queue of statistics that is emptied by whoever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from workers.engines.base import (
    Adapter,
    Card,
    Launch,
    Reading,
    UnreadableAnswer,
    flags,
    histogram,
    json_document,
    mean,
    model_cards,
    positive,
    requests,
    share,
    short_line,
    tokens,
    total,
)
from workers.scrape import Scraper

HEALTH = "/health"
METRICS = "/prometheus/metrics"
MODELS = "/v1/models"
VERSION = "/version"
CONFIG = "trtllm.yaml"

RUNNING = "trtllm_num_requests_running"
WAITING = "trtllm_num_requests_waiting"
KV_USAGE = "trtllm_kv_cache_utilization"
KV_BLOCKS = "trtllm_kv_cache_max_blocks"
KV_BLOCK_TOKENS = "trtllm_kv_cache_tokens_per_block"
PAUSED = "trtllm_num_paused_requests"
PROMPT_TOKENS = "trtllm_prompt_tokens_total"
GENERATION_TOKENS = "trtllm_generation_tokens_total"
PREFIX_HITS = ("trtllm_prompt_cache_hit_tokens_total", "trtllm_prompt_cached_tokens_total")
TTFT = "trtllm_time_to_first_token_seconds"
ITL = "trtllm_time_per_output_token_seconds"

_SCRAPER = Scraper(
    {
        *(RUNNING, WAITING, KV_USAGE, KV_BLOCKS, KV_BLOCK_TOKENS, PAUSED),
        *(PROMPT_TOKENS, GENERATION_TOKENS, *PREFIX_HITS, f"{TTFT}_bucket", f"{ITL}_bucket"),
    }
)


def read_metrics(text: bytes, headers: Mapping[str, str]) -> Reading:
    """What `/prometheus/metrics` says. Before the first request it has names without values, which is idle."""
    try:
        samples = _SCRAPER.read(text)
    except ValueError as error:
        raise UnreadableAnswer(METRICS, str(error)) from error
    if RUNNING.encode() not in text:
        raise UnreadableAnswer(METRICS, f"has no {RUNNING}: not the metrics of TensorRT-LLM, or without its statistics")
    prompt = tokens(total(samples, PROMPT_TOKENS), METRICS)
    return Reading(
        running=requests(total(samples, RUNNING), METRICS),
        waiting=requests(total(samples, WAITING), METRICS),
        kv_usage=share(mean(samples, KV_USAGE)),
        kv_tokens=positive(int(total(samples, KV_BLOCKS) * (mean(samples, KV_BLOCK_TOKENS) or 0))),
        prompt_tokens=prompt,
        generation_tokens=tokens(total(samples, GENERATION_TOKENS), METRICS),
        prefix_queries=prompt,
        prefix_hits=tokens(total(samples, *PREFIX_HITS), METRICS),
        ttft=histogram(samples, TTFT),
        itl=histogram(samples, ITL),
    )


def read_card(documents: Mapping[str, bytes]) -> Card:
    """Models and version; it says no context length, so the operator must."""
    cards = model_cards(documents, MODELS)
    version = json_document(documents, VERSION, dict).get("version") if VERSION in documents else ""
    lengths = [length for card in cards if (length := positive(card.get("max_model_len"))) is not None]
    return Card(
        models=tuple(str(card["id"]) for card in cards),
        max_model_len=min(lengths, default=None),
        version=short_line(version),
    )


def command(launch: Launch) -> tuple[str, ...]:
    """The `trtllm-serve` command line; what has no flag is in the file that `files` makes.

    Its memory fraction is one of what is free once the weights are loaded, for KV alone. So it is what the ledger plans
    for KV, of the least that may be free then; where more is, `max_gpu_total_bytes` keeps the KV as large as planned
    (of both, the smaller holds).
    """
    planned, fraction = launch.planned, launch.memory_share
    if planned is not None:
        fraction = planned.of_free(planned.kv, taken=planned.weights + planned.runtime)
    return (
        *(launch.program or ("trtllm-serve",)),
        launch.model,
        *flags(
            ("--served_model_name", launch.served_name),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--max_seq_len", launch.max_model_len),
            ("--max_batch_size", launch.max_num_seqs),
            ("--max_num_tokens", launch.max_num_batched_tokens),
            ("--kv_cache_free_gpu_memory_fraction", fraction),
            ("--tp_size", launch.tensor_parallel if launch.tensor_parallel > 1 else None),
            ("--pp_size", launch.pipeline_parallel if launch.pipeline_parallel > 1 else None),
            ("--config", f"{launch.directory}/{CONFIG}"),
        ),
        *launch.extra,
    )


def files(launch: Launch) -> Mapping[str, bytes]:
    """The file for `--config`: JSON, which is YAML too. Without the statistics its metrics have no queue and no KV."""
    kv = {
        "enable_block_reuse": launch.prefix_caching,
        "dtype": launch.kv_cache_dtype,
        "tokens_per_block": launch.block_size,
        "max_gpu_total_bytes": launch.kv_bytes if launch.planned is None else launch.planned.kv,
    }
    config: dict[str, object] = {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "kv_cache_config": {name: value for name, value in kv.items() if value is not None},
    }
    more = {"enable_chunked_prefill": launch.chunked_prefill, "dtype": launch.dtype}
    config |= {name: value for name, value in more.items() if value is not None}
    return {CONFIG: orjson.dumps(config, option=orjson.OPT_INDENT_2)}


TRTLLM = Adapter(
    name="trtllm",
    health_path=HEALTH,
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(VERSION,),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    files=files,
    supports_continuation=False,
    cannot=frozenset({"orders_by_priority", "quantization"}),  # weights are quantised when the checkpoint is made
    live=False,
)
