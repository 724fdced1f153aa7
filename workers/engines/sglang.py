"""SGLang: `python -m sglang.launch_server`, and what it tells of itself. Not run live here: written from its documents.

Sources: docs/references/production_metrics.md (metric names), docs/advanced_features/server_arguments.md (flags) and
`/get_server_info` of sgl-project/sglang. Metrics need `--enable-metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping

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
METRICS = "/metrics"
MODELS = "/v1/models"
INFO = "/get_server_info"

RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
KV_USAGE = "sglang:token_usage"
KV_TOKENS = "sglang:max_total_num_tokens"
PREEMPTIONS = ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs")
PROMPT_TOKENS = "sglang:prompt_tokens_total"
GENERATION_TOKENS = "sglang:generation_tokens_total"
PREFIX_HITS = "sglang:cached_tokens_total"
TTFT = "sglang:time_to_first_token_seconds"
ITL = ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")

_SCRAPER = Scraper(
    {
        *(RUNNING, WAITING, KV_USAGE, KV_TOKENS, *PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS, PREFIX_HITS),
        *(f"{name}_bucket" for name in (TTFT, *ITL)),
    }
)


def read_metrics(text: bytes, headers: Mapping[str, str]) -> Reading:
    """What SGLang's /metrics says. Raises `UnreadableAnswer` when it is not SGLang's."""
    try:
        samples = _SCRAPER.read(text)
    except ValueError as error:
        raise UnreadableAnswer(METRICS, str(error)) from error
    if RUNNING not in samples:
        raise UnreadableAnswer(METRICS, f"has no {RUNNING}: not the metrics of SGLang, or without --enable-metrics")
    prompt = tokens(total(samples, PROMPT_TOKENS), METRICS)
    return Reading(
        running=requests(total(samples, RUNNING), METRICS),
        waiting=requests(total(samples, WAITING), METRICS),
        kv_usage=share(mean(samples, KV_USAGE)),
        kv_tokens=positive(int(total(samples, KV_TOKENS))),
        preemptions=tokens(total(samples, *PREEMPTIONS), METRICS),
        prompt_tokens=prompt,
        generation_tokens=tokens(total(samples, GENERATION_TOKENS), METRICS),
        prefix_queries=prompt,
        prefix_hits=tokens(total(samples, PREFIX_HITS), METRICS),
        ttft=histogram(samples, TTFT),
        itl=histogram(samples, *ITL),
    )


def read_card(documents: Mapping[str, bytes]) -> Card:
    """Models with their context length; slots, KV capacity and version by `/get_server_info`."""
    cards = model_cards(documents, MODELS)
    info: dict[str, object] = json_document(documents, INFO, dict) if INFO in documents else {}
    lengths = [length for card in cards if (length := positive(card.get("max_model_len"))) is not None]
    return Card(
        models=tuple(str(card["id"]) for card in cards),
        max_model_len=min(lengths, default=None) or positive(info.get("context_length")),
        max_num_seqs=positive(info.get("max_running_requests")),
        kv_tokens=positive(info.get("max_total_num_tokens")),
        version=short_line(info.get("version")),
        adapters=tuple(str(card["id"]) for card in cards if isinstance(card.get("parent"), str)),
    )


def command(launch: Launch) -> tuple[str, ...]:
    """The command line. Its prefill chunk is what vLLM calls the tokens of one step; -1 switches chunking off.

    Its static fraction is one of what is free before it loads, for weights, KV and what its process has taken by then
    (`profile_available_bytes` in sglang/srt/model_executor): what the ledger plans, of the least that may be free.
    Where more is, `--max-total-tokens` keeps the KV as large as planned.
    """
    planned, static = launch.planned, launch.memory_share
    if planned is not None:
        static = planned.of_free(planned.weights + planned.kv + planned.runtime)
    chunk = -1 if launch.chunked_prefill is False else launch.max_num_batched_tokens
    rank_port = launch.dist_init_port
    return (
        *(launch.program or ("python", "-m", "sglang.launch_server")),
        *flags(
            ("--model-path", launch.model),
            ("--served-model-name", launch.served_name),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--context-length", launch.max_model_len),
            ("--max-running-requests", launch.max_num_seqs),
            ("--chunked-prefill-size", chunk),
            ("--mem-fraction-static", static),
            ("--max-total-tokens", None if planned is None else planned.kv_tokens),
            ("--quantization", launch.quantization),
            ("--dtype", launch.dtype),
            ("--kv-cache-dtype", launch.kv_cache_dtype),
            ("--page-size", launch.block_size),
            ("--tp-size", launch.tensor_parallel if launch.tensor_parallel > 1 else None),
            ("--pp-size", launch.pipeline_parallel if launch.pipeline_parallel > 1 else None),
            ("--dist-init-addr", None if rank_port is None else f"127.0.0.1:{rank_port}"),
            ("--nccl-port", launch.ports.get("nccl")),
        ),
        *(("--disable-radix-cache",) if launch.prefix_caching is False else ()),
        # By itself SGLang serves the highest number first; this makes numbers mean what they mean to vLLM.
        *(
            ("--enable-priority-scheduling", "--schedule-low-priority-values-first")
            if launch.orders_by_priority
            else ()
        ),
        "--enable-metrics",
        *launch.extra,
    )


SGLANG = Adapter(
    name="sglang",
    health_path=HEALTH,
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(INFO,),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    supports_continuation=False,  # its chat API has the field; nobody has tried it here
    supports_priority=True,
    cannot=frozenset({"kv_bytes"}),
    live=False,
)
