"""llama.cpp: `llama-server` with `--metrics`. It shows no KV usage; its context is split evenly over its slots."""

from __future__ import annotations

from collections.abc import Mapping

from workers.engines.base import (
    Adapter,
    Card,
    Launch,
    Reading,
    UnreadableAnswer,
    flags,
    json_document,
    model_cards,
    positive,
    requests,
    short_line,
    tokens,
    total,
)
from workers.scrape import Scraper

HEALTH = "/health"
METRICS = "/metrics"
MODELS = "/v1/models"
PROPS = "/props"
SLOTS = "/slots"

RUNNING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
PROMPT_TOKENS = "llamacpp:prompt_tokens_total"  # those computed
CACHED_TOKENS = "llamacpp:prompt_tokens_cached_total"  # those found in a slot's cache
GENERATION_TOKENS = "llamacpp:tokens_predicted_total"
STARTED_HEADER = "process-start-time-unix"

_SCRAPER = Scraper({RUNNING, WAITING, PROMPT_TOKENS, CACHED_TOKENS, GENERATION_TOKENS})


def read_metrics(text: bytes, headers: Mapping[str, str]) -> Reading:
    """What llama-server's /metrics says. Raises `UnreadableAnswer` when it is not llama-server's."""
    try:
        samples = _SCRAPER.read(text)
    except ValueError as error:
        raise UnreadableAnswer(METRICS, str(error)) from error
    if RUNNING not in samples:
        raise UnreadableAnswer(METRICS, f"has no {RUNNING}: not the metrics of llama-server")
    cached = tokens(total(samples, CACHED_TOKENS), METRICS)
    prompt = tokens(total(samples, PROMPT_TOKENS) + cached, METRICS)
    return Reading(
        running=requests(total(samples, RUNNING), METRICS),
        waiting=requests(total(samples, WAITING), METRICS),
        prompt_tokens=prompt,
        generation_tokens=tokens(total(samples, GENERATION_TOKENS), METRICS),
        prefix_queries=prompt,
        prefix_hits=cached,
        started=headers.get(STARTED_HEADER, "")[:64],
    )


def read_card(documents: Mapping[str, bytes]) -> Card:
    """Models, slots as sequences, a slot's context as the longest request, all slots' contexts as KV capacity."""
    cards = model_cards(documents, MODELS)
    slots: int | None = None
    length: int | None = None
    version = ""
    if PROPS in documents:
        props = json_document(documents, PROPS, dict)
        slots = positive(props.get("total_slots"))
        settings = props.get("default_generation_settings")
        length = positive(settings.get("n_ctx")) if isinstance(settings, dict) else None
        version = short_line(props.get("build_info"))
    if SLOTS in documents:
        lengths = [
            each
            for slot in json_document(documents, SLOTS, list)
            if isinstance(slot, dict) and (each := positive(slot.get("n_ctx"))) is not None
        ]
        if lengths:
            slots, length = len(lengths), min(lengths)
    return Card(
        models=tuple(str(card["id"]) for card in cards),
        max_model_len=length,
        max_num_seqs=slots,
        kv_tokens=slots * length if slots and length else None,
        version=version,
    )


def command(launch: Launch) -> tuple[str, ...]:
    """The `llama-server` command line. Its context is the sum over slots, so the length is multiplied by them."""
    slots = launch.max_num_seqs or 1
    return (
        *(launch.program or ("llama-server",)),
        "--model",
        launch.model,
        *flags(
            ("--alias", launch.served_name),
            ("--host", launch.host),
            ("--port", launch.port),
            ("--parallel", slots),
            ("--ctx-size", None if launch.max_model_len is None else launch.max_model_len * slots),
            ("--batch-size", launch.max_num_batched_tokens),
            ("--cache-type-k", launch.kv_cache_dtype),
            ("--cache-type-v", launch.kv_cache_dtype),
        ),
        "--metrics",
        "--slots",
        *launch.extra,
    )


LLAMACPP = Adapter(
    name="llamacpp",
    health_path=HEALTH,
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(PROPS, SLOTS),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    supports_continuation=False,
    tokenize_path="/tokenize",
    cannot=frozenset(
        {
            # A share of memory only the ledger counts with: what it takes follows from its slots and their length.
            *("orders_by_priority", "kv_bytes", "quantization", "dtype", "block_size"),
            *("chunked_prefill", "prefix_caching"),
        }
    ),
)
