"""vLLM: `vllm serve` and what it tells of itself.

Metric names are those of vLLM 0.10 and later, with the older ones behind them. Several engines behind one API
server (data parallelism) appear as several series with another `engine` label: counts add up, usage is their mean.
"""

from __future__ import annotations

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
    )


def command(launch: Launch) -> tuple[str, ...]:
    """The `vllm serve` command line."""
    return (
        "vllm",
        "serve",
        launch.model,
        *flags(
            ("--served-model-name", launch.served_name),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--max-model-len", launch.max_model_len),
            ("--max-num-seqs", launch.max_num_seqs),
            ("--max-num-batched-tokens", launch.max_num_batched_tokens),
            ("--kv-cache-memory-bytes", launch.kv_bytes),
            ("--scheduling-policy", "priority" if launch.orders_by_priority else None),
        ),
        *launch.extra,
    )


VLLM = Adapter(
    name="vllm",
    health_path=HEALTH,
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(VERSION,),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    supports_continuation=True,
)

SIMULATOR = replace(VLLM, name="simulator")  # speaks with vLLM's words; started by `headrace worker sim`
