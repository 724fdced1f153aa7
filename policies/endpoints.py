"""The client paths that Headrace serves, by name."""

from __future__ import annotations

from enum import StrEnum


class Endpoint(StrEnum):
    """What a request asks for. `gateway/openai.py` maps paths to these."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    CLASSIFY = "classify"
    POOLING = "pooling"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TRANSCRIPTIONS = "transcriptions"
    TRANSLATIONS = "translations"
    MODELS = "models"

    __hash__ = str.__hash__  # Enum's own is a Python call; these are looked up several times a request


GENERATING = frozenset(
    {
        Endpoint.CHAT,
        Endpoint.COMPLETIONS,
        Endpoint.RESPONSES,
        Endpoint.MESSAGES,
        Endpoint.TRANSCRIPTIONS,
        Endpoint.TRANSLATIONS,
    }
)
"""Endpoints whose answers are made token by token: they decode, the others only prefill."""

TEXT_ONLY = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE, Endpoint.MODELS})
"""Endpoints that need the model's tokenizer or its name, not its weights: any pool of the model serves them."""
