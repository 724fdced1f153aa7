"""From body bytes to one JSON object, at a bounded cost.

Python pays for objects, not for bytes: a mebibyte of `[],[],` costs a hundred times what a mebibyte of text does.
So what will become objects is counted first, by passes that run at memory speed:

1. Empty, marked with a byte order, or not UTF-8 text at all: said so.
2. Few brackets and quotes: nothing in the body can exceed a limit, go on with 5. Looking for the first few of a
   sign is forty times faster than counting all of them.
3. Otherwise strings are taken out, because prose and code are full of brackets that nest nothing.
4. What is left is counted and its depth measured: refused beyond the limits.
5. Decode strictly: UTF-8, no NaN, no lone surrogates, nothing behind the object.

Of a body with long plain strings all this is done with what is around them (`hollow`), as long as nothing is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.hollow import cut, filled
from policies.tokens import LongText

MAX_CONTAINERS: Final = 30_000
"""Arrays and objects in one body: decoded, read and dropped they cost up to half a microsecond each."""

MAX_STRINGS: Final = 100_000
"""Strings in one body, keys included."""

MAX_VALUES: Final = 1_000_000
"""Commas in one body, as a measure of plain values: token ids come by the hundred thousand."""

FREE_BYTES: Final = 2048
"""A body this small cannot hold enough of anything to matter but depth."""

FREE_QUOTES: Final = 256
"""So many are looked for one by one before all are counted."""

_decode: Final = orjson.loads

_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACE: Final = 0x7B
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")

_MARKS = (
    (b"\xef\xbb\xbf", "it starts with a UTF-8 byte order mark"),
    (b"\xff\xfe", "it looks like UTF-16"),
    (b"\xfe\xff", "it looks like UTF-16"),
    (b"{\x00", "it looks like UTF-16"),
    (b"\x00", "it looks like UTF-16 or UTF-32"),
)


def read_object(body: bytes, max_depth: int, long: dict[str, LongText] | None = None) -> dict[str, Any] | ErrorAnswer:
    """The JSON object in `body`, or the 400 that says what is wrong with it. Never raises.

    Contents of `messages` that are long may be left where they are: they are in `long` then, by the marks in their
    places. Without it nothing is left out.
    """
    refused = None
    if len(body) < 2 or body[0] != _BRACE or body[1] == 0:  # nearly every body starts with its brace
        refused = _unreadable(body)
    if refused is None and long is not None:
        around = cut(body)
        if around is not None and too_large(around[0], max_depth) is None:
            whole = filled(around[0], around[1], long)
            if whole is not None:
                return whole
    if refused is None:
        refused = too_large(body, max_depth)
    if refused is not None:
        return refused
    try:
        value = _decode(body)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        return ErrorAnswer(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {error.msg} ({where}).")
    if type(value) is not dict:
        kind = _KINDS[type(value)]
        return ErrorAnswer(ErrorCode.INVALID_JSON, f"The body has to be a JSON object, not {kind}.")
    return value


_KINDS: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _unreadable(body: bytes) -> ErrorAnswer | None:
    """What the first bytes already say of a body that is no text, or none at all."""
    if not body or body.isspace():
        return ErrorAnswer(ErrorCode.INVALID_JSON, "The body is empty; it has to be a JSON object.")
    for mark, what in _MARKS:
        if body.startswith(mark):
            message = f"The body is not plain UTF-8 JSON: {what}. Send UTF-8 without a mark."
            return ErrorAnswer(ErrorCode.INVALID_JSON, message)
    return None


def too_large(body: bytes, max_depth: int) -> ErrorAnswer | None:
    """The refusal where `body` would build more, or deeper, than is allowed. Says nothing about validity."""
    size = len(body)
    if size <= FREE_BYTES:
        if _few_opened(body, max_depth):
            return None
    elif _at_most(max_depth, body, b"[", b"{"):
        strings = 0
        # Each takes three bytes and more.
        if size > 3 * MAX_STRINGS and not _at_most(FREE_QUOTES, body, b'"'):
            strings = body.count(b'"') // 2
        values = body.count(b",") if size > MAX_VALUES else 0
        if strings <= MAX_STRINGS and values <= MAX_VALUES:
            return None
    # Only escaped quotes stand inside strings; a backslash pair hides none.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    strings = bare.count(b'"') // 2
    if strings > MAX_STRINGS:
        return _over("strings and keys", strings, MAX_STRINGS)
    outside = b"".join(bare.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > MAX_CONTAINERS:
        return _over("arrays and objects", containers, MAX_CONTAINERS)
    values = outside.count(b",")
    if values > MAX_VALUES:
        return _over("values", values, MAX_VALUES)
    if containers > max_depth and deeper_than(outside, max_depth):
        message = f"The body is nested deeper than {max_depth} levels (limits.json_depth). Flatten it."
        return ErrorAnswer(ErrorCode.LIMIT_EXCEEDED, message)
    return None


def _few_opened(body: bytes, most: int) -> bool:
    """Whether a small body opens no more arrays and objects than that, what stands in its strings included.

    As text, because compiled code searches that without a call of Python's: a few searches that jump from one sign to
    the next are five times faster than a look at every byte.
    """
    text = body.decode("latin-1")
    at = 0 if body and body[0] == _BRACE else text.find("{")
    while at >= 0:
        if most == 0:
            return False
        most -= 1
        at = text.find("{", at + 1)
    at = text.find("[")
    while at >= 0:
        if most == 0:
            return False
        most -= 1
        at = text.find("[", at + 1)
    return True


def _at_most(most: int, body: bytes, *signs: bytes) -> bool:
    """Whether `body` has no more than `most` of these signs together."""
    for sign in signs:
        at = body.find(sign)
        while at >= 0:
            if most == 0:
                return False
            most -= 1
            at = body.find(sign, at + 1)
    return True


def _over(what: str, count: int, limit: int) -> ErrorAnswer:
    return ErrorAnswer(
        ErrorCode.LIMIT_EXCEEDED,
        f"The body holds {count} {what}; {limit} (a fixed limit) are allowed. Split the request.",
    )


def deeper_than(outside: bytes, max_depth: int) -> bool:
    """Whether brackets nest deeper than `max_depth`; `outside` is the body without its strings.

    Each round takes the innermost pairs away, so a body of depth d is gone after d rounds.
    """
    brackets = outside.translate(_SQUARE, _OTHERS)
    for _ in range(max_depth):
        shorter = brackets.replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return brackets.count(b"[") > max_depth or b"[]" in brackets
