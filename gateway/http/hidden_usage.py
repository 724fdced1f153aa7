"""Takes the usage event that we asked for out of a stream whose client did not; every other byte stays as it is.

Engines send it as an event of its own, with no choices (OpenAI's reference). Counts that ride on an event with
choices, as some engines send them, stay there: taking them out would change what the client did ask for.
"""

from __future__ import annotations

import re

import orjson

from gateway.usage import usage_from

from .whole_events import WholeEvents

_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class HidingEvents(WholeEvents):
    """Lets whole events go out, but not the one with the usage alone. Every piece of the stream goes through it."""

    __slots__ = ("_after_cr",)

    def __init__(self) -> None:
        super().__init__()
        self._after_cr = False  # a hidden event ended with CR: an LF that follows belongs to it

    @property
    def empty(self) -> bool:
        """Never: later pieces have to come by here too."""
        return False

    def _out(self, piece: bytes) -> bytes:
        data = super()._out(piece)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if data.find(b'"usage"') < 0:
            return data
        kept = without_usage(data)
        self._after_cr = data.endswith(b"\r") and not kept.endswith(b"\r")
        return kept


def events_of(data: bytes) -> list[bytes]:
    """Whole events as their bytes, blank line included; the last one may lack it."""
    found, start = [], 0
    for match in _EVENT_END.finditer(data):
        found.append(data[start : match.end()])
        start = match.end()
    if start < len(data):
        found.append(data[start:])
    return found


def data_of(event: bytes) -> bytes:
    """What an event's `data` lines say."""
    lines = (line.removeprefix(b"\xef\xbb\xbf") for line in _LINE_END.split(event))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def without_usage(data: bytes) -> bytes:
    """Whole events, less those that bring nothing but the usage."""
    # Empty lines before an event are nobody's: they stay.
    return b"".join(event[: -len(event.lstrip(b"\r\n"))] if _only_usage(event) else event for event in events_of(data))


def _only_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    try:
        value = orjson.loads(data_of(event))
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("choices") == [] and usage_from(value.get("usage")) is not None
