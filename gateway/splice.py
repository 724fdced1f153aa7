"""Change single top-level fields of a JSON body in place: the bytes around them stay as the client sent them.

Re-serialising would cost more than everything else that is done with a request, and would change what was signed,
cached or simply meant (number formats, duplicate keys, escapes). The body has to be valid JSON, an object: the
caller has decoded it before.

How a field is found without walking through megabytes of text:

1. In valid JSON an unescaped `"name"` with a colon behind it is a key, wherever it stands; a pattern finds all of
   them, spelled with escapes or not, because an engine decodes those too.
2. A key is top-level where the brackets before it leave one open. Brackets are counted between candidates, from
   the nearer end of the body, so a `model` in front of a long prompt costs nothing.
3. The value behind it is measured: a string, a plain word, or brackets up to their match.

Of duplicate keys every one is changed: engines differ in which of them they obey.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

_BACKSLASH = ord("\\")
_COMMA = ord(",")
_SPACE = b" \t\r\n"

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_PLAIN = re.compile(_STRING + rb"|[^,}\]\s\[{\"]++", re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*+")


def splice(body: bytes, changes: Mapping[str, bytes | None], fields: Collection[str]) -> list[bytes]:
    """The body with `changes` made, as parts to be sent one after the other; `[body]` itself where nothing changes.

    `changes` maps a top-level name (ASCII letters, digits, `_`) to its new value in JSON, or to None to take it out.
    A new value for an absent field is added. `fields` are the top-level names that `body` has.
    """
    present = tuple(name for name in changes if name in fields)
    absent = [(name, value) for name, value in changes.items() if value is not None and name not in fields]
    if not present and not absent:
        return [body]
    edits: list[tuple[int, int, bytes]] = []
    if absent:
        brace = body.index(b"{") + 1
        added = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in absent)
        rest = any(changes.get(name, b"") is not None for name in fields)
        edits.append((brace, brace, added + b"," if rest else added))
    removed: list[tuple[int, int]] = []
    for name, key, start, end in members(body, present):
        value = changes[name]
        if value is None:
            removed.append((key, end))
        elif body[start:end] != value:
            edits.append((start, end, value))
    edits.extend((start, end, b"") for start, end in _with_commas(body, removed))
    edits.sort()
    return _apply(body, edits)


def members(body: bytes, names: tuple[str, ...]) -> list[tuple[str, int, int, int]]:
    """Each top-level member with one of these names: (name, start of its key, start and end of its value), in order."""
    if not names:
        return []
    candidates = [match for match in _keys(names).finditer(body) if not _escaped(body, match.start())]
    middle = len(body) // 2
    top: list[re.Match[bytes]] = []
    at, depth = 0, 0
    for match in candidates:
        if match.start() > middle:
            break
        depth += _opened(body[at : match.start()])
        at = match.start()
        if depth == 1:
            top.append(match)
    behind: list[re.Match[bytes]] = []
    at, depth = len(body), 0
    for match in reversed(candidates):
        if match.start() <= middle:
            break
        depth -= _opened(body[match.start() : at])
        at = match.start()
        if depth == 1:
            behind.append(match)
    found = []
    for match in top + behind[::-1]:
        start = match.end()
        found.append((names[(match.lastindex or 1) - 1], match.start(), start, _value_end(body, start)))
    return found


@lru_cache(maxsize=64)
def _keys(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Matches any of these names as a key up to its value; group n is the n-th name."""
    spelled = ("".join(_letter(letter) for letter in name) for name in names)
    return re.compile(('"(?:' + "|".join(f"({one})" for one in spelled) + ')"[ \t\r\n]*:[ \t\r\n]*').encode())


def _letter(letter: str) -> str:
    """A letter, or its escape with hexadecimal digits in either case."""
    digits = "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{ord(letter):04x}")
    return rf"(?:{letter}|\\u{digits})"


def _escaped(body: bytes, quote: int) -> bool:
    """Whether the quote at this place belongs to a string's text: an odd number of backslashes stands before it."""
    at = quote
    while at and body[at - 1] == _BACKSLASH:
        at -= 1
    return (quote - at) % 2 == 1


def _opened(piece: bytes) -> int:
    """Brackets opened less brackets closed in a piece that begins and ends outside of strings."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(piece.split(b'"')[::2])
    return outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")


def _value_end(body: bytes, start: int) -> int:
    plain = _PLAIN.match(body, start)
    if plain is not None:
        return plain.end()
    depth = 0
    for token in _TOKEN.finditer(body, start):
        kind = token[0]
        if kind in (b"{", b"["):
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError("the body is not valid JSON")


def _with_commas(body: bytes, removed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches to take out: members with the comma behind them, or, at the end of the object, the one before."""
    runs: list[tuple[int, int]] = []
    for key, end in removed:
        stop = _skip_blank(body, end)
        followed = body[stop] == _COMMA
        stop = _skip_blank(body, stop + 1) if followed else end
        start = key
        if runs and runs[-1][1] == key:
            start = runs.pop()[0]
        if not followed:
            before = _last_not_blank(body, start)
            if body[before] == _COMMA:
                start = before
        runs.append((start, stop))
    return runs


def _skip_blank(body: bytes, at: int) -> int:
    match = _BLANK.match(body, at)
    return match.end() if match else at


def _last_not_blank(body: bytes, before: int) -> int:
    at = before - 1
    while body[at] in _SPACE:
        at -= 1
    return at


def _apply(body: bytes, edits: list[tuple[int, int, bytes]]) -> list[bytes]:
    if not edits:
        return [body]
    parts: list[bytes] = []
    at = 0
    for start, end, new in edits:
        parts.append(body[at:start])
        if new:
            parts.append(new)
        at = end
    parts.append(body[at:])
    return [part for part in parts if part]
