"""vLLM: `vllm serve` and what it tells of itself.

Metric names are those of vLLM 0.10 and later, with the older ones behind them. Several engines behind one API
server (data parallelism) appear as several series with another `engine` label: counts add up, usage is their mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from workers.engines.base import (
    Adapter,
    Card,
    Launch,
    Reading,
    Samples,
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
    switch,
    tokens,
    total,
)
from workers.scrape import Scraper

HEALTH = "/health"
METRICS = "/metrics"
MODELS = "/v1/models"
VERSION = "/version"

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
PROMPT_TOKENS = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATION_TOKENS = ("vllm:generation_tokens_total", "vllm:generation_tokens")
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits")
TTFT = ("vllm:time_to_first_token_seconds",)
ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
CACHE_CONFIG = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"

_SCRAPER = Scraper(
    {
        *RUNNING,
        *WAITING,
        *KV_USAGE,
        *PREEMPTIONS,
        *PROMPT_TOKENS,
        *GENERATION_TOKENS,
        *PREFIX_QUERIES,
        *PREFIX_HITS,
        *(f"{name}_bucket" for name in (*TTFT, *ITL)),
        CACHE_CONFIG,
        STARTED,
    }
)


def read_metrics(text: bytes, headers: Mapping[str, str]) -> Reading:
    """What vLLM's /metrics says. Raises `UnreadableAnswer` when it is not vLLM's."""
    try:
        samples = _SCRAPER.read(text)
    except ValueError as error:
        raise UnreadableAnswer(METRICS, str(error)) from error
    if RUNNING[0] not in samples:
        raise UnreadableAnswer(METRICS, f"has no {RUNNING[0]}: not the metrics of vLLM")
    return Reading(
        running=requests(total(samples, *RUNNING), METRICS),
        waiting=requests(total(samples, *WAITING), METRICS),
        kv_usage=share(mean(samples, *KV_USAGE)),
        kv_tokens=kv_capacity_tokens(samples),
        preemptions=tokens(total(samples, *PREEMPTIONS), METRICS),
        prompt_tokens=tokens(total(samples, *PROMPT_TOKENS), METRICS),
        generation_tokens=tokens(total(samples, *GENERATION_TOKENS), METRICS),
        prefix_queries=tokens(total(samples, *PREFIX_QUERIES), METRICS),
        prefix_hits=tokens(total(samples, *PREFIX_HITS), METRICS),
        started=",".join(repr(sample.value) for sample in samples.get(STARTED, [])[:4]),
        ttft=histogram(samples, *TTFT),
        itl=histogram(samples, *ITL),
    )


def kv_capacity_tokens(samples: Samples) -> int | None:
    """KV capacity over all engines in tokens: (num_gpu_blocks - 1) * block_size; None when vLLM does not say.

    The block less is vLLM's null block, which its usage figure leaves out too. `kv_cache_size_tokens`, where there
    is one, is the smaller and truer figure for models whose layers share blocks (sliding windows, state layers).
    """
    capacity = 0
    for sample in samples.get(CACHE_CONFIG, []):
        blocks, block_size = positive(sample.labels.get("num_gpu_blocks")), positive(sample.labels.get("block_size"))
        stated = positive(sample.labels.get("kv_cache_size_tokens"))
        counted = (blocks - 1) * block_size if blocks and block_size else None
        known = [each for each in (counted, stated) if each is not None]
        if not known:
            return None
        capacity += min(known)
    return capacity or None


def read_card(documents: Mapping[str, bytes]) -> Card:
    """Models with their LoRA adapters, the shortest context length among them, and the version."""
    cards = model_cards(documents, MODELS)
    lengths = [length for card in cards if (length := positive(card.get("max_model_len"))) is not None]
    version = ""
    if VERSION in documents:
        version = short_line(json_document(documents, VERSION, dict).get("version"))
    return Card(
        models=tuple(str(card["id"]) for card in cards),
        max_model_len=min(lengths, default=None),
        version=version,
        # An adapter's card names the model it was made for.
        adapters=tuple(str(card["id"]) for card in cards if isinstance(card.get("parent"), str)),
    )


def command(launch: Launch) -> tuple[str, ...]:
    """The `vllm serve` command line.

    Its utilisation is a share of the whole device, and it refuses to start where less than that is free, also when the
    KV's size is given: then, and where the file leaves the share open, it is what the ledger plans for the instance.
    """
    share, planned = launch.memory_share, launch.planned
    if share is None and planned is not None:
        share = planned.of_device(planned.total)
    return (
        *(launch.program or ("vllm",)),
        "serve",
        launch.model,
        *flags(
            ("--served-model-name", launch.served_name),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--max-model-len", launch.max_model_len),
            ("--max-num-seqs", launch.max_num_seqs),
            ("--max-num-batched-tokens", launch.max_num_batched_tokens),
            ("--gpu-memory-utilization", share),
            ("--kv-cache-memory-bytes", launch.kv_bytes),
            ("--scheduling-policy", "priority" if launch.orders_by_priority else None),
            ("--quantization", launch.quantization),
            ("--dtype", launch.dtype),
            ("--kv-cache-dtype", launch.kv_cache_dtype),
            ("--block-size", launch.block_size),
            ("--tensor-parallel-size", launch.tensor_parallel if launch.tensor_parallel > 1 else None),
            ("--pipeline-parallel-size", launch.pipeline_parallel if launch.pipeline_parallel > 1 else None),
            ("--master-port", launch.dist_init_port),
        ),
        *switch("enable-prefix-caching", launch.prefix_caching),
        *switch("enable-chunked-prefill", launch.chunked_prefill),
        *launch.extra,
    )


def environment(launch: Launch) -> Mapping[str, str]:
    """The first of the ports that vLLM's parts open among each other; it counts up from there."""
    return {} if launch.first_internal_port is None else {"VLLM_PORT": str(launch.first_internal_port)}


VLLM = Adapter(
    name="vllm",
    health_path=HEALTH,
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(VERSION,),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    environment=environment,
    supports_continuation=True,
    supports_priority=True,
    tells_prefixes=True,
    tokenize_path="/tokenize",
)


def simulator_command(launch: Launch) -> tuple[str, ...]:
    """`headrace worker sim` without its way through the command line's root, and without an agent of its own."""
    return (
        *(launch.program or (sys.executable, "-m", "workers.engines.simulator_cli")),
        *flags(
            ("--id", launch.name or None),
            ("--pool", launch.pool or None),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--model", launch.served_name),
            ("--max-model-len", launch.max_model_len),
            ("--max-num-seqs", launch.max_num_seqs),
            ("--max-num-batched-tokens", launch.max_num_batched_tokens),
            ("--block-size", launch.block_size),
            ("--admin-port", launch.debug_port),
            ("--scheduling-policy", "priority" if launch.orders_by_priority else None),
        ),
        *({None: (), True: ("--prefix-caching",), False: ("--no-prefix-caching",)}[launch.prefix_caching]),
        *launch.extra,
    )


# Speaks with vLLM's words; what vLLM opens among its parts, it does not have.
SIMULATOR = replace(VLLM, name="simulator", command=simulator_command, environment=lambda _: {}, tells_prefixes=False)
