"""What parts of a stream's events say: whether a text ends, whether there is a token, which status an error names.

A piece of several events is looked at as a whole, by counts: what these say of it has to be true of each of them.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mypy_extensions import i64


def ends_text(piece: bytes, at: i64, end: i64) -> bool:
    """Whether a quote, CR or LF is in these bytes."""
    while at < end:
        character: i64 = piece[at]
        if character < 35 and (character == 34 or character == 13 or character == 10):
            return True
        at += 1
    return False


SHORT_TEXT_BYTES: Final = 12 if isinstance(ends_text, FunctionType) else 40
"""Texts up to this length, which is most tokens, are looked at character by character: that makes no objects."""


def has_token(choice: dict[str, Any]) -> bool:
    """Whether a choice of a stream's event brings anything that was generated: text of any kind, a tool call."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value and name != "role" for name, value in delta.items())


def lacks_choices(piece: bytes) -> bool:
    """Whether an event says that it has no choices. No text can look so: its quotes are escaped."""
    return piece.find(b'"choices":[]') >= 0 or piece.find(b'"choices": []') >= 0


def one_by_one(piece: bytes, events: int) -> bool:
    """Whether so many data lines are as many events: none has several."""
    if piece.count(b"\n\ndata:") + piece.startswith(b"data:") == events:
        return True
    return all(event.count(b"\ndata:") + event.startswith(b"data:") < 2 for event in piece.split(b"\n\n"))


def is_choiceless(event: bytes) -> bool:
    """The same of one event, unless it has a finish reason all the same: such a one is counted without being read."""
    ends = event.find(b'"finish_reason":null') >= 0 or event.find(b'"finish_reason": null') >= 0
    return not ends and lacks_choices(event)


def status_of(error: dict[str, Any]) -> int | None:
    """The status an error object names: `code` as a number (vLLM) or as digits."""
    for key in ("code", "status", "status_code"):
        value = error.get(key)
        if isinstance(value, str) and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    return None
