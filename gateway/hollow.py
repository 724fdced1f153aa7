"""A large body is decoded around its long plain strings, which are read at memory speed instead.

A JSON parser looks at every byte of a string for what may not stand there, and makes a copy of it. Of a string that is
nothing but ASCII letters, signs and spaces (an encoded image, a long text without a line break) the first can be known
for less (`long_bytes`). So such strings are cut out, the rest is parsed with a mark in the place of each, and they are
put back; but not the contents of messages, which are only looked at here and there: for them the marks stay.

Whatever is odd is left to the parser: it gets the whole body then, and says what is wrong with it and where.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import orjson

from gateway.long_bytes import plain_end
from policies.tokens import LongText

LONG_BYTES: Final = 8192
"""Shorter strings cost less where they are."""

FRAME_BYTES: Final = 16_384
"""The rest may not be longer: all of it is searched for the marks."""

MAX_QUOTES: Final = 512
"""Quotes that are looked for, one by one; of those that are text, each counts."""

MAX_BACKSLASHES: Final = 64
"""Before one quote."""

_SECRET: Final = secrets.token_hex(12)  # so that nobody can send a mark
_BACKSLASH: Final = 0x5C

_decode: Final = orjson.loads


def cut(body: bytes) -> tuple[bytes, dict[str, LongText]] | None:
    """The body with a mark for each long plain string, and these strings by their marks; None: it is not like that."""
    texts: dict[str, LongText] = {}
    parts: list[bytes] = []
    size, kept, kept_from, quotes = len(body), 0, 0, 0
    start = body.find(b'"') + 1
    while start > 0:
        end = plain_end(body, start, LONG_BYTES)
        plain = end >= 0
        if not plain:
            end = body.find(b'"', start)
            while end > start and body[end - 1] == _BACKSLASH:
                behind = _backslashes(body, start, end)
                quotes += 1
                if behind > MAX_BACKSLASHES or quotes > MAX_QUOTES:
                    return None
                if behind % 2 == 0:
                    break
                end = body.find(b'"', end + 1)
        quotes += 2
        if end < 0 or quotes > MAX_QUOTES:
            return None
        if plain:
            mark = f"{_SECRET}{len(texts)}"
            texts[mark] = LongText(body, start, end)
            parts.append(body[kept_from:start])
            parts.append(mark.encode())
            kept += start - kept_from
            kept_from = end
        elif kept + end - kept_from > FRAME_BYTES:
            return None
        start = body.find(b'"', end + 1) + 1
    if not texts or kept + size - kept_from > FRAME_BYTES:
        return None
    parts.append(body[kept_from:])
    return b"".join(parts), texts


def filled(frame: bytes, texts: dict[str, LongText], long: dict[str, LongText]) -> dict[str, Any] | None:
    """The object that `frame` says with the texts in it, or with their marks for those that are in `long` then.

    None where that is not all that is to say. A mark may also be a key, or the value of one of several like keys: then
    it cannot be put back.
    """
    try:
        value = _decode(frame)
    except orjson.JSONDecodeError:
        return None
    if type(value) is not dict:
        return None
    left = len(texts) - _contents(value, texts, long)
    if left:
        left -= _put_back(value, {mark: text for mark, text in texts.items() if mark not in long})
    if left:
        long.clear()
        return None
    return value


def _contents(value: dict[str, Any], texts: dict[str, LongText], long: dict[str, LongText]) -> int:
    """How many of the texts are contents of messages; they are in `long` then."""
    messages = value.get("messages")
    if type(messages) is list:
        for message in messages:
            content = message.get("content") if type(message) is dict else None
            if type(content) is str:
                text = texts.get(content)
                if text is not None:
                    long[content] = text
    return len(long)


def _put_back(value: dict[str, Any], texts: dict[str, LongText]) -> int:
    """Put the texts in the place of their marks; how many were found."""
    found = 0
    waiting: list[Any] = [value]
    while waiting:
        holder = waiting.pop()
        places: Any = holder.items() if type(holder) is dict else enumerate(holder)
        for place, one in places:
            if type(one) is str:
                text = texts.get(one)
                if text is not None:
                    holder[place] = text.piece(0, text.size).decode()
                    found += 1
            elif type(one) is dict or type(one) is list:
                waiting.append(one)
    return found


def _backslashes(body: bytes, start: int, quote: int) -> int:
    """How many stand before this quote, at most one more than is read; the string began at `start`."""
    at = quote
    while at > start and body[at - 1] == _BACKSLASH and quote - at <= MAX_BACKSLASHES:
        at -= 1
    return quote - at
