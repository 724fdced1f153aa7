"""The simulated engine as an embedding model: prefill only, vectors made from the text."""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from workers.engines.simulator_http import Exchange
from workers.engines.simulator_requests import ApiError, parse_object
from workers.engines.simulator_text import fingerprint, pieces_of, prefix_hashes
from workers.engines.timing import Sequence

if TYPE_CHECKING:
    from workers.engines.simulator import Simulator

DIMENSIONS: Final = 64


@lru_cache(maxsize=4096)
def _direction(word: str) -> tuple[float, ...]:
    rng = Random(fingerprint((word,)))
    return tuple(rng.gauss(0, 1) for _ in range(DIMENSIONS))


def embed(pieces: tuple[str, ...]) -> list[float]:
    """A unit vector, the same for the same text; texts that share words point in similar directions."""
    total = [0.0] * DIMENSIONS
    for piece in pieces:
        total = [value + part for value, part in zip(total, _direction(piece.strip().lower()), strict=True)]
    length = math.sqrt(sum(value * value for value in total)) or 1.0
    return [value / length for value in total]


@dataclass(slots=True, eq=False)
class _Batch:
    """The texts of one request, and what to make of their vectors."""

    exchange: Exchange
    model: str
    texts: list[tuple[str, ...]]
    answer: Callable[[_Batch], dict[str, Any]]
    id: str
    sequences: list[Sequence] = field(default_factory=list)
    left: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)


class Pooling:
    """The paths of `--runner pooling`."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def routes(self) -> dict[str, Callable[[Exchange], None]]:
        """Path to handler, all POST."""
        embeddings = partial(self._handle, self._embedding_texts, self._embeddings)
        pooling = partial(self._handle, self._embedding_texts, self._pooling)
        score = partial(self._handle, self._score_texts, self._scores)
        rerank = partial(self._handle, self._rerank_texts, self._ranking)
        return {
            "/v1/embeddings": embeddings,
            "/pooling": pooling,
            **dict.fromkeys(("/score", "/v1/score"), score),
            **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), rerank),
        }

    def finished(self, seq: Sequence) -> None:
        """One text has been computed."""
        batch = seq.owner
        if isinstance(batch, _Batch):
            batch.left -= 1
            if batch.left == 0:
                batch.exchange.respond(200, orjson.dumps(batch.answer(batch)))
                self._simulator.metrics.count_http(batch.exchange.path, batch.exchange.method, 200)

    def _handle(
        self,
        texts_of: Callable[[dict[str, Any]], list[tuple[str, ...]]],
        answer: Callable[[dict[str, Any], _Batch], dict[str, Any]],
        exchange: Exchange,
    ) -> None:
        simulator = self._simulator
        data = parse_object(exchange.body, exchange.header(b"content-type") or "")
        texts = texts_of(data)
        model = simulator.parser.model_of(data)
        request_id = simulator.request_id(exchange)
        for text in texts:
            simulator.parser.check_length(len(text))
        batch = _Batch(exchange, model, texts, partial(answer, data), request_id, left=len(texts))
        size = simulator.config.block_size
        batch.sequences = [
            Sequence(f"{request_id}-{index}", max(1, len(text)), 0, hashes=prefix_hashes(text, size), owner=batch)
            for index, text in enumerate(texts)
        ]
        simulator.submit(batch.sequences)
        exchange.on_gone = partial(self._gone, batch)

    def _gone(self, batch: _Batch) -> None:
        self._simulator.withdraw([seq for seq in batch.sequences if seq.finished_at is None])

    def _texts(self, value: object, name: str) -> list[tuple[str, ...]]:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            value = [value]
        if not isinstance(value, list) or not value:
            raise ApiError(400, f"{name} must be a text or a list of texts", param=name)
        decode = self._simulator.vocabulary.decode
        return [
            tuple(decode([token for token in item if isinstance(token, int)]))
            if isinstance(item, list)
            else tuple(pieces_of(str(item)))
            for item in value
        ]

    def _embedding_texts(self, data: dict[str, Any]) -> list[tuple[str, ...]]:
        if data.get("messages") is not None:
            return [self._simulator.parser.chat_pieces(data)]
        return self._texts(data.get("input"), "input")

    def _score_texts(self, data: dict[str, Any]) -> list[tuple[str, ...]]:
        return self._texts(data.get("text_1"), "text_1") + self._texts(data.get("text_2"), "text_2")

    def _rerank_texts(self, data: dict[str, Any]) -> list[tuple[str, ...]]:
        return self._texts(data.get("query"), "query")[:1] + self._texts(data.get("documents"), "documents")

    @staticmethod
    def _usage(batch: _Batch) -> dict[str, Any]:
        return {
            "prompt_tokens": batch.tokens,
            "total_tokens": batch.tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }

    def _listed(self, batch: _Batch, prefix: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{batch.id}",
            "object": "list",
            "created": int(time.time()),
            "model": batch.model,
            "data": rows,
            "usage": self._usage(batch),
        }

    def _embeddings(self, data: dict[str, Any], batch: _Batch) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for index, text in enumerate(batch.texts):
            vector: list[float] | str = embed(text)
            if data.get("encoding_format") == "base64":
                vector = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
            rows.append({"index": index, "object": "embedding", "embedding": vector})
        return self._listed(batch, "embd", rows)

    def _pooling(self, data: dict[str, Any], batch: _Batch) -> dict[str, Any]:
        rows = [{"index": index, "object": "pooling", "data": embed(text)} for index, text in enumerate(batch.texts)]
        return self._listed(batch, "pool", rows)

    def _similarities(self, first: int, batch: _Batch) -> list[float]:
        """Of each text from `first` on to its partner before it; a single one is everyone's partner."""
        vectors = [embed(text) for text in batch.texts]
        queries = vectors[:first]
        return [
            sum(a * b for a, b in zip(queries[index if len(queries) > 1 else 0], vector, strict=True))
            for index, vector in enumerate(vectors[first:])
        ]

    def _scores(self, data: dict[str, Any], batch: _Batch) -> dict[str, Any]:
        first = 1 if isinstance(data.get("text_1"), str) else len(data["text_1"])
        if first > 1 and len(batch.texts) != 2 * first:
            first = 1
        rows = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(self._similarities(first, batch))
        ]
        return self._listed(batch, "score", rows)

    def _ranking(self, data: dict[str, Any], batch: _Batch) -> dict[str, Any]:
        scored = sorted(enumerate(self._similarities(1, batch)), key=lambda pair: -pair[1])
        most = data.get("top_n")
        documents = data.get("documents") or []
        results = [
            {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": score}
            for index, score in scored[: most if isinstance(most, int) and most > 0 else None]
        ]
        usage = {"prompt_tokens": batch.tokens, "total_tokens": batch.tokens}
        return {"id": f"rerank-{batch.id}", "model": batch.model, "usage": usage, "results": results}
