"""What an engine says it used, found in the bytes of an answer without parsing the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

MAX_USAGE_BYTES: Final = 4096
"""Longest `usage` object that is looked at; engines write a few hundred bytes."""

_NAME: Final = b'"usage"'

NEAR_BYTES: Final = 1024
"""Where engines write it: this near the answer's end it is looked for first."""

MAX_BRACES: Final = 16
"""The object ends at its last brace: some of the first few belong to objects inside it."""

MAX_CANDIDATES: Final = 8
"""How many places that look like a `usage` member are tried, from the end."""

_loads: Final = orjson.loads


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
    _, name, behind = body[-NEAR_BYTES:].rpartition(_NAME)
    found = _object_in(behind) if name else None
    if found is not None:
        return usage_from(found)
    end = len(body)
    for _ in range(MAX_CANDIDATES):
        end = body.rfind(_NAME, 0, end)
        if end < 0:
            return None
        at = end + len(_NAME)
        found = _object_in(body[at : at + MAX_USAGE_BYTES])
        if found is not None:
            return usage_from(found)
    return None


def _object_in(piece: bytes) -> object:
    """The object that is the value of the member whose name ends where `piece` begins; None where it is not one."""
    if piece.startswith(b":{"):
        piece = piece[1:]
    else:
        piece = piece.lstrip()
        if piece[:1] != b":":
            return None
        piece = piece[1:].lstrip()
        if piece[:1] != b"{":
            return None
    end = 0
    for part in piece.split(b"}", MAX_BRACES)[:MAX_BRACES]:
        end += len(part) + 1
        if end > len(piece):
            return None
        try:
            return orjson.loads(piece[:end])
        except orjson.JSONDecodeError:
            continue  # that brace closed an object inside
    return None
