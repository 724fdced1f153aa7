"""Watching a server-sent event stream without touching it: events, finish reason, usage, errors, `[DONE]`.

Lines end at CR, LF or CRLF only, wherever the network cut the bytes (WHATWG HTML §9.2). The common piece is one event
like the one before with another text in it, which costs a comparison; the next common, whole events that say nothing
new, a handful of `bytes.count`; only pieces with a marker in them are decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from gateway.usage import Usage, usage_from
from policies.endpoints import Endpoint

from .event_parts import SHORT_TEXT_BYTES, ends_text, has_token, is_choiceless, lacks_choices, one_by_one, status_of

MAX_LINE_BYTES: Final = 1 << 20
"""What is kept of one unfinished line, and of one event. Longer ones pass unread."""

MAX_TEXT_BYTES: Final = 256
"""Texts longer than this, in one piece, are not looked for in events like the one before."""
LESSONS: Final = 4
"""So often a stream may show what its events are like: engines that change more than the text do so in each."""

_TEXT_NAMES: Final = (b'content":"', b'text":"')
_ENDS_TEXT: Final = bytes(character in b'"\r\n' for character in range(256))
_NO_END: Final = [bytes(size) for size in range(MAX_TEXT_BYTES + 1)]
"""What is left of a text of each size in which nothing ends it."""

_decode: Final = orjson.loads
_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class StreamKind(StrEnum):
    """Which API's events a stream carries; decides the markers that make a piece worth decoding."""

    CHOICES = "choices"  # chat, completions, transcriptions: `choices` and `[DONE]`
    RESPONSES = "responses"  # OpenAI Responses: typed events
    MESSAGES = "messages"  # Anthropic messages: typed events


STREAM_KINDS: Final = {Endpoint.RESPONSES: StreamKind.RESPONSES, Endpoint.MESSAGES: StreamKind.MESSAGES}
"""Endpoints with streams of their own kind; all others' are `CHOICES`."""

_MARKERS: Final[dict[StrEnum, tuple[bytes, ...]]] = {
    StreamKind.CHOICES: (b"[DONE]", b'"error"'),
    StreamKind.RESPONSES: (
        b"[DONE]",
        b'"error"',
        b'"response.completed"',
        b'"response.incomplete"',
        b'"response.failed"',
    ),
    StreamKind.MESSAGES: (b"[DONE]", b'"error"', b'"message_start"', b'"message_delta"', b'"message_stop"'),
}


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error event inside a stream: its JSON as sent, and its status where it names one."""

    payload: bytes
    status: int | None


class StreamWatcher:
    """Reads one stream as it passes. Never raises on what an engine sends.

    `finished` is success: a finish reason was seen. `done` alone (`[DONE]`) is not. `aborted`: the engine said that
    it gave the request up (`finish_reason: "abort"`). `error`: the first error event; `error_first` when no other
    data event came before it. `usage`: the last counts the engine sent. `open`: the last piece ended inside an
    event; `boundary` is then the offset in that piece behind its last whole event. `silent`: data events that are no
    tokens: all before the first one (roles), `[DONE]`, errors, and those without text that say how it ended, how much
    was used, or have no choices. Others without text count: their token is no whole character yet.

    However the bytes are cut, the tokens are the same: an event that is not decoded is never one of the silent ones.
    """

    __slots__ = (
        "_after_cr", "_any", "_before", "_begun", "_behind", "_data", "_data_bytes", "_first_line", "_kind",
        "_lessons", "_line", "_markers", "_overlong", "_plain", "aborted", "boundary", "done", "error",
        "error_first", "finish_reason", "finished", "invalid", "open", "silent", "usage",
    )  # fmt: skip

    def __init__(self, kind: StreamKind = StreamKind.CHOICES) -> None:
        self._kind = kind
        self._markers = _MARKERS[kind]
        # Between two events, and not before the first token: what comes before it is looked at, event by event.
        self._plain = False
        self._begun = False  # the first token has come; of typed events, the first of any kind
        self._first_line = True
        # The last event that was seen to be like most, around its text; nothing in between can change what it says.
        self._before = self._behind = b""
        self._lessons = LESSONS
        self._after_cr = False  # the last byte was CR: an LF that follows belongs to it
        self._line = bytearray()
        self._overlong = False
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._any = False
        self.open = False
        self.boundary = 0
        self.finished = False
        self.finish_reason: str | None = None
        self.aborted = False
        self.done = False
        self.error: StreamError | None = None
        self.error_first = False
        self.usage: Usage | None = None
        self.silent = 0
        self.invalid = 0  # data events that are not JSON objects

    @property
    def in_data(self) -> bool:
        """The last piece ended inside an event that has data, however long it is: more of it is progress."""
        return self._data_bytes > 0 or self._line.startswith(b"data")

    @property
    def complete(self) -> bool:
        """All has come that a success has: nothing is missing but the end of its framing."""
        return self.done and self.finished

    def feed(self, piece: bytes) -> int:
        """Read the next piece of the stream; returns how many data events ended in it."""
        if self._plain:
            events = self._like_the_last(piece)
            if events:
                return events
        # Not `in`: that takes what is looked for for a number first, and so raises and catches an error within.
        if self._plain and piece.endswith(b"\n\n") and piece.find(b"\r") < 0:
            events = piece.count(b"\ndata:") + piece.startswith(b"data:")
            # By far the most pieces are chat chunks as vLLM writes them, with nothing in them but text.
            if (
                self._kind is StreamKind.CHOICES
                and events <= piece.count(b'"finish_reason":null') == piece.count(b'"finish_reason"')
                and piece.find(b'"usage"') < 0
                and piece.find(b'"error"') < 0
                and piece.find(b"[DONE]") < 0
                # An event without choices hides from these counts only behind others that have several.
                and (events < 2 or (one_by_one(piece, events) and not lacks_choices(piece)))
            ) or self._says_nothing_new(piece, events):
                if events == 1 and self._lessons:
                    self._learn(piece)
                return events
        elif not piece:
            self.boundary = 0
            return 0
        events = self._read(piece)
        self._plain = self._begun and not self.open and not self._after_cr
        return events

    def _like_the_last(self, piece: bytes) -> int:
        """How many events these are, if each is the last one with another text, without quotes and ends of lines."""
        before, behind = self._before, self._behind
        if len(before) == 0 or not piece.startswith(before) or not piece.endswith(behind):
            return 0
        start = len(before)
        size = len(piece) - start - len(behind)
        if 0 <= size <= SHORT_TEXT_BYTES:
            return 0 if ends_text(piece, start, start + size) else 1
        if size >= start + len(behind):
            return self._many_like_the_last(piece)
        if not 0 <= size <= MAX_TEXT_BYTES:
            return 0
        text = piece[start : start + size]
        return 1 if text.translate(_ENDS_TEXT) == _NO_END[size] else 0

    def _many_like_the_last(self, piece: bytes) -> int:
        before, behind = self._before, self._behind
        start, less = len(before), len(behind)
        # Searching for all that is between two texts would cost more: CPython prepares long searches at length.
        # And one slice of a slice: mypyc makes none that would end before it begins.
        texts = [event[start:][: 2 - less] for event in piece[:-2].split(b"\n\n")]
        if (behind + before).join(texts) != piece[start : len(piece) - less]:
            return 0
        text = b"".join(texts)
        return len(texts) if len(text) <= MAX_TEXT_BYTES and text.translate(_ENDS_TEXT) == _NO_END[len(text)] else 0

    def _learn(self, piece: bytes) -> None:
        """What is around the text of an event that says nothing new."""
        for name in _TEXT_NAMES:
            at = piece.find(name) + len(name)
            if at >= len(name):
                end = piece.find(b'"', at)
                before, behind = piece[:at], piece[end:]
                if end > 0 and piece[end - 1 : end] != b"\\" and (before != self._before or behind != self._behind):
                    self._before, self._behind = before, behind
                    self._lessons -= 1
                return

    def _says_nothing_new(self, piece: bytes, events: int) -> bool:
        for marker in self._markers:
            if piece.find(marker) >= 0:
                return False
        if events > 1 and not one_by_one(piece, events):
            return False
        if self._kind is not StreamKind.CHOICES:
            return True
        # The text itself can hold these words only with its quotes escaped, so that it makes a count larger and the
        # piece is decoded: never the other way round.
        finish = piece.count(b"finish_reason")
        if finish and finish != piece.count(b'"finish_reason":null') + piece.count(b'"finish_reason": null'):
            return False
        if (events > 1 or not finish) and lacks_choices(piece):
            return False
        usage = piece.count(b'"usage"')
        return not usage or usage == piece.count(b'"usage":null') + piece.count(b'"usage": null')

    def end(self) -> None:
        """The stream is over: what stands unfinished is read as a line and an event, but not counted as one."""
        silent = self.silent
        if self._line and not self._overlong:
            self._field(bytes(self._line))
            self._line.clear()
        self._end_event()
        self.silent = silent

    # -- line by line ---------------------------------------------------------------------------------------------

    def _read(self, piece: bytes) -> int:
        events = 0
        self.boundary = 0
        start = 1 if self._after_cr and piece[:1] == b"\n" else 0
        if start and not self.open:
            self.boundary = 1
        self._after_cr = piece.endswith(b"\r")
        if start == 0 and piece.find(b"\r") < 0:
            lines = piece.split(b"\n")
            rest = lines.pop()
            for line in lines:
                start += len(line) + 1
                events += self._line_ended(line, start)
        else:
            for match in _LINE_END.finditer(piece, start):
                line = piece[start : match.start()]
                start = match.end()
                events += self._line_ended(line, start)
            rest = piece[start:]
        if len(rest) != 0:
            self.open = True
            self._keep(rest)
        return events

    def _line_ended(self, line: bytes, behind: int) -> int:
        """What has come last of a line ends before `behind`; how many events that ends."""
        if len(self._line) != 0 or self._overlong or len(line) > MAX_LINE_BYTES:
            whole = self._take_line(line)
            if whole is None:
                self.open = True
                return 0
            line = whole
        if len(line) != 0:
            self.open = True
            self._field(line)
            return 0
        self.open = False
        self.boundary = behind
        return self._end_event()

    def _take_line(self, end: bytes) -> bytes | None:
        """The whole line that ends so; None if it was too long to keep."""
        if not self._overlong and len(end) + len(self._line) > MAX_LINE_BYTES:
            self._skip_line(end)
        if self._overlong:
            self._overlong = False
            return None
        self._line += end
        line = bytes(self._line)
        self._line.clear()
        return line

    def _keep(self, begun: bytes) -> None:
        if self._overlong:
            return
        if len(begun) + len(self._line) > MAX_LINE_BYTES:
            self._skip_line(begun)
        else:
            self._line += begun

    def _skip_line(self, more: bytes) -> None:
        """Read nothing of this line; if it is data, its event still counts as one."""
        if bytes(self._line[:5] + more[:5]).startswith(b"data:"):
            self._data.clear()
            self._data_bytes = MAX_LINE_BYTES + 1
        self._line.clear()
        self._overlong = True

    def _field(self, line: bytes) -> None:
        if self._first_line:  # nowhere else is a byte order mark one
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line.startswith(b"data:"):
            return  # a comment, `event:`, `id:`, `retry:` or what nobody knows
        value = line[6:] if line[5:6] == b" " else line[5:]
        self._data_bytes += len(value) + 1
        if self._data_bytes <= MAX_LINE_BYTES:
            self._data.append(value)
        else:
            self._data.clear()

    def _end_event(self) -> int:
        if not self._data_bytes:
            return 0
        data = b"\n".join(self._data) if self._data_bytes <= MAX_LINE_BYTES else b""
        self._data.clear()
        self._data_bytes = 0
        if data:
            self._event(data)
        return 1

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.done = True
            self.silent += 1
            return
        try:
            event = _decode(data)
        except orjson.JSONDecodeError:
            self.invalid += 1
            return
        if not isinstance(event, dict):
            self.invalid += 1
            return
        error = event.get("error")
        kind = event.get("type")
        if error or kind == "error" or (kind == "response.failed" and self._kind is StreamKind.RESPONSES):
            self.silent += 1
            if self.error is None:
                self.error = StreamError(data, status_of(error if isinstance(error, dict) else event))
                self.error_first = not self._any
            return
        self._any = True
        if self._kind is not StreamKind.CHOICES:
            self._begun = True
            if isinstance(kind, str):
                self._typed_event(kind, event)
            return
        choices, usage = event.get("choices"), event.get("usage")
        spoken = ended = False
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict):
                    spoken = spoken or has_token(choice)
                    if isinstance(choice.get("finish_reason"), str):
                        ended = True
                        self._finish(choice["finish_reason"])
        if spoken:
            self._begun = True
        elif not self._begun or ended or usage is not None or is_choiceless(data):
            self.silent += 1
        self._count(usage)

    def _typed_event(self, kind: str, event: dict[str, Any]) -> None:
        if self._kind is StreamKind.RESPONSES:
            if kind == "response.completed" or kind == "response.incomplete":
                self._finish(kind.removeprefix("response."))
                self.done = True
                response = event.get("response")
                if isinstance(response, dict):
                    self._count(response.get("usage"))
        elif kind == "message_start":
            message = event.get("message")
            if isinstance(message, dict):
                self._count(message.get("usage"))
        elif kind == "message_delta":
            delta = event.get("delta")
            if isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
                self._finish(delta["stop_reason"])
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        if reason == "abort":
            self.aborted = True
        else:
            self.finished = True

    def _count(self, value: object) -> None:
        usage = usage_from(value)
        if usage is not None:
            self.usage = usage
        elif self.usage is not None and isinstance(value, dict) and type(value.get("output_tokens")) is int:
            self.usage = replace(self.usage, output_tokens=value["output_tokens"])  # Anthropic's later counts
