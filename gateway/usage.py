"""What an engine says it used, found in the bytes of an answer without parsing the rest."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from mypy_extensions import i64

_decode: Final = orjson.loads
_NAME: Final = b'"usage"'

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
    at = _last_name(body) if _COMPILED else body.rfind(_NAME)
    if at >= 0 and _COMPILED:
        plain = _plain_after(body, at + len(_NAME))
        if plain is not None:
            return plain
    for _ in range(MAX_CANDIDATES):
        if at < 0:
            return None
        found = _object_after(body, at + len(_NAME))
        if found is not None:
            return usage_from(found)
        at = body.rfind(_NAME, 0, at)
    return None


def _steps() -> bytes:
    """How far `_NAME` may begin before each character, if it does not begin with it."""
    return bytes(max(_NAME.find(character, 1), 0) or len(_NAME) for character in range(256))


_STEPS: Final = _steps()


def _last_name(body: bytes) -> int:
    """Where `_NAME` is last; -1: nowhere. In plain Python slower than `rfind`, compiled several times faster: it looks
    at few characters, and no call of a method is as cheap."""
    steps, name = _STEPS, _NAME
    at: i64 = len(body) - 7
    while at >= 0:
        here: i64 = body[at]
        if here == 34 and body[at + 1] == 117 and body[at : at + 7] == name:
            return at
        at -= steps[here]
    return -1


def _stands(body: bytes, at: i64, word: bytes) -> bool:
    """Whether `word` is what begins there."""
    size: i64 = len(word)
    if at + size > len(body):
        return False
    place: i64 = 0
    while place < size:
        if body[at + place] != word[place]:
            return False
        place += 1
    return True


def _plain_after(body: bytes, at: i64) -> Usage | None:
    """The usage behind its name, as chat and completions most often have it: an object of whole numbers and nulls,
    without spaces. None: it is not that, or not surely."""
    prompt: i64 = -1
    output: i64 = -1
    begin: i64 = at
    end: i64 = len(body)
    here: i64 = 0
    if not _stands(body, at, b":{"):
        return None
    at += 2
    while True:
        if at >= end or body[at] != 34:
            return None
        at += 1
        first: i64 = body[at] if at < end else 0
        is_prompt = first == 112 and _stands(body, at, b'prompt_tokens"')
        is_output = first == 99 and _stands(body, at, b'completion_tokens"')
        if (is_prompt and prompt >= 0) or (is_output and output >= 0):
            return None
        if is_prompt:
            at += 13
        elif is_output:
            at += 17
        elif first == 111:
            return None  # it may be `output_tokens`
        else:
            here = first
            while 95 <= here <= 122:  # underscores, small letters, and what no name has
                at += 1
                here = body[at] if at < end else 0
        if not _stands(body, at, b'":'):
            return None
        at += 2
        start: i64 = at
        number: i64 = 0
        here = body[at] if at < end else 0
        while 48 <= here <= 57:
            number = number * 10 + here - 48
            at += 1
            here = body[at] if at < end else 0
            if at - start > 15:
                return None
        if at == start:
            if is_prompt or is_output or not _stands(body, at, b"null"):
                return None
            at += 4
            here = body[at] if at < end else 0
        elif body[start] == 48 and at - start > 1:
            return None  # no number has a zero before others
        if is_prompt:
            prompt = number
        elif is_output:
            output = number
        at += 1
        if here == 125:  # a closing brace
            break
        if here != 44:  # a comma
            return None
    return None if prompt < 0 or at - begin > MAX_USAGE_BYTES else Usage(prompt, max(output, 0))


_COMPILED: Final = not isinstance(_stands, FunctionType)


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
