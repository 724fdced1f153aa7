"""What an engine says it used, found in the bytes of an answer without parsing the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

_decode: Final = orjson.loads

MAX_USAGE_BYTES: Final = 4096
"""Longest `usage` object that is looked at; engines write a few hundred bytes."""

MAX_CANDIDATES: Final = 8
"""How many places that look like a `usage` member are tried, from the end."""


@dataclass(slots=True)
class Usage:
    """Tokens of one answer, as the engine counted them. `cached_tokens` is part of `prompt_tokens`."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def usage_from(value: object) -> Usage | None:
    """The counts of a decoded `usage` object of any of the APIs; None where it is not one.

    Chat and completions say `prompt_tokens` and `completion_tokens`, Responses and Anthropic messages
    `input_tokens` and `output_tokens`; embeddings and their like have no output. Anthropic's `input_tokens` leave out
    what was cached, so that is added.
    """
    if not isinstance(value, dict):
        return None
    output = _count(value.get("completion_tokens", value.get("output_tokens", 0)))
    prompt = _count(value.get("prompt_tokens"))
    if prompt is not None:
        details = value.get("prompt_tokens_details")
        if details is None:
            return Usage(prompt, output or 0)
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    else:
        prompt = _count(value.get("input_tokens"))
        if prompt is None:
            return None
        details = value.get("input_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        apart = _count(value.get("cache_read_input_tokens"))
        if cached is None and apart is not None:
            cached, prompt = apart, prompt + apart
    return Usage(prompt, output or 0, cached)


def usage_of(body: bytes) -> Usage | None:
    """The usage of a whole answer that is not a stream; None where it says nothing.

    Searches from the end, where engines put it. Inside a JSON string a quote is escaped, so text that merely talks
    about `"usage"` is never taken for it.
    """
    end = len(body)
    for _ in range(MAX_CANDIDATES):
        at = body.rfind(b'"usage"', 0, end)
        if at < 0:
            return None
        found = _object_after(body, at + len(b'"usage"'))
        if found is not None:
            return usage_from(found)
        end = at
    return None


def _object_after(body: bytes, at: int) -> object:
    """The object that is the value of the member whose name ends at `at`; None where it is not an object."""
    piece = body[at : at + MAX_USAGE_BYTES]
    if piece.startswith(b":{"):
        if piece.endswith(b"}}"):  # most often it is the last member
            try:
                return _decode(piece[1:-1])
            except orjson.JSONDecodeError:
                pass
        piece = piece[1:]
    else:
        piece = piece.lstrip()
        if piece[:1] != b":":
            return None
        piece = piece[1:].lstrip()
        if piece[:1] != b"{":
            return None
    close = 0
    for _ in range(16):  # the object ends at its last brace: some of the first few belong to objects inside it
        close = piece.find(b"}", close) + 1
        if not close:
            return None
        try:
            return _decode(piece[:close])
        except orjson.JSONDecodeError:
            continue  # that brace closed an inner object
    return None
