"""What a client reads in a streamed chat completion: tokens and their times, usage, the end, an error. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from loadtest.live_figures import Spread

MAX_LINE_BYTES: Final = 1 << 20
_TEXTS: Final = ("content", "reasoning_content", "reasoning")


class StreamError(ValueError):
    """Bytes that are no stream of events. The message is a code for counting."""


@dataclass(slots=True)
class Answer:
    """One answer as it comes; times are seconds on the caller's clock."""

    gaps: Spread  # between tokens, of all answers of a run
    first_s: float | None = None
    last_s: float | None = None
    events: int = 0  # with text
    tokens_in: int | None = None  # what the engine counted
    tokens_out: int | None = None
    finished: bool = False  # a choice said why it ended
    done: bool = False  # [DONE]
    error: dict[str, Any] | None = None
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes, now: float) -> None:
        """Bytes of the body, read at `now`. Raises `StreamError`."""
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise StreamError("line_too_long")
        self._rest = bytearray(rest)
        before = self.events
        for line in lines:
            if line.startswith(b"data:") and (payload := bytes(line[5:]).strip()):
                self._event(payload)
        self._timed(self.events - before, now)

    def _event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            raise StreamError("not_json") from None
        if type(value) is not dict:
            raise StreamError("not_an_event")
        error = value.get("error")
        if error:
            self.error = error if type(error) is dict else {"message": str(error)}
        usage = value.get("usage")
        if type(usage) is dict:
            self.tokens_in, self.tokens_out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        choices = value.get("choices")
        for choice in choices if type(choices) is list else ():
            if type(choice) is not dict:
                continue
            delta = choice.get("delta")
            if type(delta) is dict and (any(delta.get(name) for name in _TEXTS) or delta.get("tool_calls")):
                self.events += 1
            if choice.get("finish_reason"):
                self.finished = True

    def _timed(self, fresh: int, now: float) -> None:
        """So many events with text came at once."""
        if not fresh:
            if self.finished and self.first_s is None:
                self.first_s = self.last_s = now  # an answer without a word is all there at its end
            return
        if self.first_s is None:
            self.first_s = now
            fresh -= 1
        elif self.last_s is not None:
            # Read in one piece, they came within that time: none of them came after no time at all.
            for _ in range(fresh):
                self.gaps.add((now - self.last_s) / fresh)
        self.last_s = now

    @property
    def tpot_s(self) -> float | None:
        """Mean time for each token after the first; None for fewer than two."""
        tokens = self.made
        if self.first_s is None or self.last_s is None or tokens < 2:
            return None
        return (self.last_s - self.first_s) / (tokens - 1)

    @property
    def made(self) -> int:
        """Tokens of the answer: what the engine counted, else the events that had text."""
        return self.events if self.tokens_out is None else self.tokens_out


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and value >= 0 else None
