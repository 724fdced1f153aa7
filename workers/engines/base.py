"""What an agent and a supervisor must know about a kind of engine, as data and a few pure functions.

Engines differ only here: paths, metric names, what their documents mean, how they are started. An adapter does no
I/O; the agent fetches what it names and hands the bytes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TypeVar

import orjson

from workers.histograms import Histogram, from_buckets
from workers.scrape import Sample

MOST_REQUESTS = 1_000_000
MOST_TOKENS = 2**53
MOST_SHARE = 0.99  # of memory that an engine is told to take

Samples = Mapping[str, list[Sample]]
_Kind = TypeVar("_Kind")


class UnreadableAnswer(ValueError):  # noqa: N818 - it names what came back, as the other answers are named
    """An engine answered something that cannot be what it should. `path` says to which question."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path}: {why}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at an engine's metrics says. Counters are totals since the engine started."""

    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None  # 0 … 1
    kv_tokens: int | None = None  # capacity
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up in the prefix cache
    prefix_hits: int = 0  # of these, found
    started: str = ""  # differs between two starts of the engine; empty: it does not say
    ttft: Histogram | None = None  # seconds to the first token
    itl: Histogram | None = None  # seconds between tokens


@dataclass(frozen=True, slots=True)
class Card:
    """What an engine says of itself that rarely changes."""

    models: tuple[str, ...]
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    version: str = ""
    adapters: tuple[str, ...] = ()  # LoRA adapters among the models


@dataclass(frozen=True, slots=True)
class Planned:
    """What the memory ledger deals out to an instance on each of its devices, in bytes."""

    device: int  # all there is
    free: int  # what the plans of the others leave: the least there is when it starts, in whatever order
    weights: int
    kv: int
    runtime: int
    total: int  # with activations and graphs
    kv_tokens: int | None = None  # the same KV; None: not all of its layers grow with the tokens, or not known

    def of_device(self, part: int) -> float:
        """`part` as a share of the device, a little more rather than less."""
        return _share_up(part, self.device)

    def of_free(self, part: int, taken: int = 0) -> float:
        """`part` as a share of what is free once `taken` is in use."""
        return _share_up(part, self.free - taken)


def _share_up(part: int, whole: int) -> float:
    return MOST_SHARE if part >= whole else min(MOST_SHARE, ceil(part / whole * 10_000) / 10_000)


@dataclass(frozen=True, slots=True)
class Launch:
    """How an engine process is wanted. None leaves a choice to the engine; `extra` goes to the end of its command."""

    model: str
    served_name: str
    host: str
    port: int
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_bytes: int | None = None
    orders_by_priority: bool = False
    extra: tuple[str, ...] = ()
    name: str = ""
    pool: str = ""
    program: tuple[str, ...] = ()  # in place of the engine's own
    devices: int = 0  # how many it may see; the environment says which
    device_ids: tuple[str, ...] = ()
    memory_share: float | None = None
    planned: Planned | None = None  # by the ledger, for engines whose own figures mean something else; None: no ledger
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    dist_init_port: int | None = None
    debug_port: int | None = None
    metrics_port: int | None = None
    first_internal_port: int | None = None
    ports: Mapping[str, int] = field(default_factory=dict)  # further ones, by purpose
    directory: str = ""  # for files that it is started with


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of one token: how an engine shows that it can do its work."""

    path: str
    body: bytes


def _nothing(_: Launch) -> Mapping[str, str]:
    return {}


def _no_files(_: Launch) -> Mapping[str, bytes]:
    return {}


def _own_port(_: Launch) -> int | None:
    return None


def ask_completions(model: str, prompt: str, max_tokens: int) -> tuple[Ask, ...]:
    """Questions to try in turn until one is not answered 404: an embedding model has no completions."""
    generate = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return (
        Ask("/v1/completions", orjson.dumps(generate)),
        Ask("/v1/embeddings", orjson.dumps({"model": model, "input": prompt})),
    )


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind of engine.

    `card_paths` must all answer 200 for a card to be read; `hint_paths` may be missing. `read_metrics` gets the text
    and the response's headers (names in lower case), `read_card` the bodies by path. Both raise `UnreadableAnswer`.
    """

    name: str
    health_path: str
    metrics_path: str
    card_paths: tuple[str, ...]
    hint_paths: tuple[str, ...]
    read_metrics: Callable[[bytes, Mapping[str, str]], Reading]
    read_card: Callable[[Mapping[str, bytes]], Card]
    command: Callable[[Launch], tuple[str, ...]]
    supports_continuation: bool
    supports_priority: bool = False  # it can order its own queue, when started so
    tells_prefixes: bool = False  # it can publish what its prefix cache holds
    tokenize_path: str | None = None
    environment: Callable[[Launch], Mapping[str, str]] = _nothing
    files: Callable[[Launch], Mapping[str, bytes]] = _no_files  # by name; written into `Launch.directory`
    ask: Callable[[str, str, int], tuple[Ask, ...]] = ask_completions  # (model, prompt, tokens)
    metrics_port: Callable[[Launch], int | None] = _own_port  # where metrics are, if not with the API
    cannot: frozenset[str] = frozenset()  # fields of a Launch that it has no way to take
    live: bool = True  # it has been run by this project; else it is written from its documentation


def total(samples: Samples, *names: str) -> float:
    """Sum over all series of the first of `names` (newest name first) that the engine has; 0 when it has none."""
    return sum(sample.value for sample in _first(samples, names))


def mean(samples: Samples, *names: str) -> float | None:
    """Mean over all series of the first of `names` that the engine has; None when it has none."""
    series = _first(samples, names)
    return sum(sample.value for sample in series) / len(series) if series else None


def histogram(samples: Samples, *names: str) -> Histogram | None:
    """The first of `names` that the engine has as a histogram, over all its series."""
    series = _first(samples, [f"{name}_bucket" for name in names])
    return from_buckets((sample.labels.get("le", ""), sample.value) for sample in series)


def error_message(body: bytes) -> str:
    """What an engine says went wrong, in any of the shapes that engines use; one line of at most 300 characters.

    `{"error": {"message"}}` vLLM, llama.cpp; `{"error": "…"}` vLLM's 401, MindIE; `{"message"}` SGLang, TensorRT-LLM;
    `{"detail"}` frameworks.
    """
    text = body[:2000].decode("utf-8", "replace")
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = text
    if isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), text)
    if isinstance(said, dict):
        said = said.get("message", text)
    return " ".join(str(said).split())[:300]


def requests(value: float, path: str) -> int:
    """A number of requests, checked."""
    return _whole(value, path, MOST_REQUESTS)


def tokens(value: float, path: str) -> int:
    """A total, checked."""
    return _whole(value, path, MOST_TOKENS)


def share(value: float | None) -> float | None:
    """A share, put back between 0 and 1 where rounding carried it out."""
    return None if value is None else min(1.0, max(0.0, value))


def positive(value: object) -> int | None:
    """A whole number of at least 1, also when written as text; None for anything else, such as `"None"`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None
    return value if isinstance(value, int) and 0 < value <= MOST_TOKENS else None


def short_line(value: object) -> str:
    """A version or the like as at most 64 printable characters; empty for anything that is no text."""
    return "".join(filter(str.isprintable, value[:64])) if isinstance(value, str) else ""


def json_document(documents: Mapping[str, bytes], path: str, kind: type[_Kind]) -> _Kind:
    """The JSON document at `path`, which must be a `kind`."""
    try:
        document = orjson.loads(documents[path])
    except orjson.JSONDecodeError as error:
        raise UnreadableAnswer(path, f"not JSON ({error})") from error
    if not isinstance(document, kind):
        raise UnreadableAnswer(path, f"a {kind.__name__} was expected, not a {type(document).__name__}")
    return document


def model_cards(documents: Mapping[str, bytes], path: str) -> list[dict[str, object]]:
    """The entries of an OpenAI model list that have an `id`. Raises `UnreadableAnswer` when there are none."""
    data = json_document(documents, path, dict).get("data")
    if not isinstance(data, list):
        raise UnreadableAnswer(path, "has no list `data`")
    cards = [card for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)]
    if not cards:
        raise UnreadableAnswer(path, "lists no model")
    return cards


def flags(*pairs: tuple[str, object]) -> tuple[str, ...]:
    """Command-line options for the pairs whose value is not None."""
    return tuple(part for name, value in pairs if value is not None for part in (name, str(value)))


def switch(name: str, on: bool | None) -> tuple[str, ...]:
    """`--NAME`, `--no-NAME`, or nothing where the choice is the engine's."""
    return () if on is None else (f"--{name}" if on else f"--no-{name}",)


def _first(samples: Samples, names: Sequence[str]) -> list[Sample]:
    return next((samples[name] for name in names if name in samples), [])


def _whole(value: float, path: str, most: int) -> int:
    if not 0 <= value <= most:
        raise UnreadableAnswer(path, f"a count of {value:g}")
    return int(value)
