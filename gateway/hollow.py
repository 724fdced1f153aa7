"""A large body is decoded around its long plain strings, which are read at memory speed instead.

A JSON parser looks at every byte of a string for what may not stand there. Of a string that is nothing but ASCII
letters, signs and spaces (an encoded image, a long text without a line break) both can be known for less: that it is
ASCII, by decoding it, and that nothing in it would have to be escaped, by writing it as JSON, which makes it longer if
there is. So such strings are cut out, the rest is parsed with a mark in the place of each, and they are put back.

Whatever is odd is left to the parser: it gets the whole body then, and says what is wrong with it and where.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import orjson

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
_encode: Final = orjson.dumps


def cut(body: bytes) -> tuple[bytes, dict[str, str]] | None:
    """The body with a mark for each long plain string, and these strings by their marks; None: it is not like that."""
    texts: dict[str, str] = {}
    parts: list[bytes] = []
    size, kept, kept_from, quotes = len(body), 0, 0, 0
    start = body.find(b'"') + 1
    while start > 0:
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
        if end - start >= LONG_BYTES:
            text = _plain(body, start, end)
            if text is not None:
                mark = f"{_SECRET}{len(texts)}"
                texts[mark] = text
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


def filled(frame: bytes, texts: dict[str, str]) -> Any:
    """What `frame` says, with the texts in the place of their marks; None where that is not all that is to say.

    A mark may also be a key, or the value of one of several like keys: then it cannot be put back.
    """
    try:
        value = _decode(frame)
    except orjson.JSONDecodeError:
        return None
    found = 0
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if type(holder) is dict:
            for key, one in holder.items():
                if type(one) is str:
                    text = texts.get(one)
                    if text is not None:
                        holder[key] = text
                        found += 1
                elif type(one) is dict or type(one) is list:
                    waiting.append(one)
        elif type(holder) is list:
            for at, one in enumerate(holder):
                if type(one) is str:
                    text = texts.get(one)
                    if text is not None:
                        holder[at] = text
                        found += 1
                elif type(one) is dict or type(one) is list:
                    waiting.append(one)
    return value if found == len(texts) else None


def _backslashes(body: bytes, start: int, quote: int) -> int:
    """How many stand before this quote, at most one more than is read; the string began at `start`."""
    at = quote
    while at > start and body[at - 1] == _BACKSLASH and quote - at <= MAX_BACKSLASHES:
        at -= 1
    return quote - at


def _plain(body: bytes, start: int, end: int) -> str | None:
    """The text of a string that is ASCII and has nothing escaped or to be escaped."""
    if body.find(b"\\", start, end) >= 0:
        return None
    try:
        text = str(memoryview(body)[start:end], "ascii")
    except UnicodeDecodeError:
        return None
    return text if len(_encode(text)) == len(text) + 2 else None
