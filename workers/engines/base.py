"""What an agent and a supervisor must know about a kind of engine, as data and a few pure functions.

Engines differ only here: paths, metric names, what their documents mean, how they are started. An adapter does no
I/O; the agent fetches what it names and hands the bytes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from workers.scrape import Sample

MOST_REQUESTS = 1_000_000
MOST_TOKENS = 2**53

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


@dataclass(frozen=True, slots=True)
class Card:
    """What an engine says of itself that rarely changes."""

    models: tuple[str, ...]
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    version: str = ""


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


def total(samples: Samples, *names: str) -> float:
    """Sum over all series of the first of `names` (newest name first) that the engine has; 0 when it has none."""
    return sum(sample.value for sample in _first(samples, names))


def mean(samples: Samples, *names: str) -> float | None:
    """Mean over all series of the first of `names` that the engine has; None when it has none."""
    series = _first(samples, names)
    return sum(sample.value for sample in series) / len(series) if series else None


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


def _first(samples: Samples, names: Sequence[str]) -> list[Sample]:
    return next((samples[name] for name in names if name in samples), [])


def _whole(value: float, path: str, most: int) -> int:
    if not 0 <= value <= most:
        raise UnreadableAnswer(path, f"a count of {value:g}")
    return int(value)
