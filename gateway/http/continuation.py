"""A stream whose worker dies goes on at another one, from the text so far: a pause instead of a broken answer.

By policy (`retries.continue_streams`), for chat and completions that are plain text: no tools, no logprobs, one answer.
While the first worker streams, its bytes pass untouched and the text is kept. When it ends before it has finished, the
question is asked again with that text at its end (`continued_body`), and what the next worker sends is fitted to what
the client has seen: the same `id` and `created`, no second role, usage summed. A comment marks the seam. What may not
be repeated, breaks a second time or finds no worker ends as any broken stream: with an error event, without `[DONE]`.

How many tokens the first worker made is known by its events only, one a token on the engines that do this. The sum of
prompt and output is exact all the same: what is taken from one is added to the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.admission import Admitted
from gateway.errors import ErrorCode
from gateway.facts import COMPLETION_DEFAULT_TOKENS
from gateway.scheduling.model import OutcomeKind
from gateway.splice import members, splice
from gateway.usage import Usage, usage_from
from policies.endpoints import Endpoint

from .answers import chunk
from .attempt import Attempt
from .event_parts import has_token, status_of
from .hidden_usage import HidingEvents, data_of, events_of, without_usage
from .verdicts import Failure, Reading, refusal_kind
from .whole_events import WholeEvents

if TYPE_CHECKING:
    from .known_heads import AnswerHead

KEPT_CHARACTERS: Final = 1 << 20
"""Text kept of one stream; a longer one cannot be continued any more."""

SEAM: Final = b": continued on another worker\n\n"

CONTINUED_AFTER: Final = frozenset(
    {OutcomeKind.RESET, OutcomeKind.PROTOCOL, OutcomeKind.SERVER_ERROR, OutcomeKind.BUSY, OutcomeKind.GAP_TIMEOUT}
)
"""Ends of a stream that are the worker's: somebody else may do better."""

_NEVER: Final = frozenset(
    {
        "tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "use_beam_search",
        "continue_final_message", "prompt_embeds", "structured_outputs", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar", "return_token_ids", "return_tokens_as_token_ids",
    }
)  # fmt: skip
"""Fields that, set, make an answer more than text, or make its second half depend on how the first was made."""


def edits_of(admitted: Admitted) -> WholeEvents | None:
    """What a stream's events go through on their way to the client; None: nothing, the bytes pass as they are."""
    if admitted.continue_stream:
        return Continuation(admitted)
    return HidingEvents() if admitted.usage_injected else None


class Continuation(WholeEvents):
    """One client's stream over the workers that make it.

    `tokens`: events with text that the workers before the present one sent. `failed`: the present one said that it
    gives up, and this has been kept from the client.
    """

    __slots__ = (
        "_admitted", "_body", "_characters", "_continued", "_created", "_done", "_events", "_id", "_plain", "_texts",
        "failed", "tokens",
    )  # fmt: skip

    def __init__(self, admitted: Admitted) -> None:
        super().__init__()
        self._admitted = admitted
        self._plain = True  # so far nothing but text has come, and it is all here
        self._continued = False
        self._done = False  # a finish reason has gone out
        self._texts: list[str] = []
        self._characters = self._events = 0
        self._id: object = None
        self._created: object = None
        self._body: list[bytes] | None = None
        self.failed = False
        self.tokens = 0

    @property
    def empty(self) -> bool:
        """Never: later pieces have to come by here too."""
        return False

    def take(self, piece: bytes, boundary: int, *, unfinished: bool) -> bytes:
        """As for any stream; one with an event too long to be kept is not read any more."""
        ready = super().take(piece, boundary, unfinished=unfinished)
        if self.torn:
            self._plain = False
        return ready

    def resume(self) -> bool:
        """The present worker is lost: whether another one can go on. If so, the body to ask it with is in place."""
        if not self._possible():
            return False
        assert self._body is not None
        self._admitted.body_parts = self._body
        self._kept, self._bytes, self.torn = [], 0, False
        self.tokens = self._events
        self.failed = False
        self._continued = True
        self._texts.clear()
        return True

    def sum_up(self, usage: Usage) -> Usage:
        """The counts of the last worker, with what the ones before made counted as output instead of as prompt."""
        made = min(self.tokens, usage.prompt_tokens)
        return replace(usage, prompt_tokens=usage.prompt_tokens - made, output_tokens=usage.output_tokens + made)

    def _possible(self) -> bool:
        if self._continued or self._done or not self._plain:
            return False
        if self._body is None:
            admitted, text = self._admitted, "".join(self._texts)
            self._body = continued_body(admitted.endpoint, b"".join(admitted.body_parts), text, self._events)
            self._plain = self._body is not None
        return self._plain

    # -- events -----------------------------------------------------------------------------------------------------

    def _out(self, piece: bytes) -> bytes:
        out = b"".join(self._event(event) for event in events_of(super()._out(piece)))
        return without_usage(out) if self._admitted.usage_injected and out.find(b'"usage"') >= 0 else out

    def _event(self, event: bytes) -> bytes:
        if self.failed:
            return b""
        data = data_of(event)
        if not data or data == b"[DONE]":
            return event
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            self._plain = False
            return event
        if _gives_up(value) and self._possible():
            self.failed = True
            return b""
        if self._continued:
            return self._fitted(value)
        self._read(value)
        return event

    def _read(self, value: dict[str, Any]) -> None:
        """Keep what the first worker's event says."""
        if self._id is None:
            self._id, self._created = value.get("id"), value.get("created")
        choices = value.get("choices")
        if not choices:
            return
        text = _text_of(choices)
        if text is None or self._characters + len(text) > KEPT_CHARACTERS:
            self._plain = False
            self._texts.clear()
            return
        self._body = None
        if text:
            self._events += 1
            self._characters += len(text)
            if self._plain:
                self._texts.append(text)
        self._done = self._done or choices[0].get("finish_reason") is not None

    def _fitted(self, value: dict[str, Any]) -> bytes:
        """A later worker's event, as a part of the stream that the client knows."""
        for name, known in (("id", self._id), ("created", self._created)):
            if name in value and known is not None:
                value[name] = known
        choices = value.get("choices")
        if choices and all(isinstance(choice, dict) for choice in choices):
            for choice in choices:
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    delta.pop("role", None)
            if not any(has_token(choice) or choice.get("finish_reason") for choice in choices):
                return b""
        usage, found = value.get("usage"), usage_from(value.get("usage"))
        if isinstance(usage, dict) and found is not None:
            summed = self.sum_up(found)
            usage |= {"prompt_tokens": summed.prompt_tokens, "completion_tokens": summed.output_tokens}
        return b"data: " + orjson.dumps(value) + b"\n\n"


class ContinuedAttempt(Attempt):
    """Reads the answer of a worker that goes on with a stream: its head went out long ago, only events may follow."""

    __slots__ = ()

    def on_head(self, head: AnswerHead, length: int | None) -> None:
        """Only a stream can go on with a stream."""
        if head.reading in (Reading.EVENTS, Reading.ERROR):
            super().on_head(head, length)
        else:
            self.give_up(OutcomeKind.PROTOCOL, f"status {head.status} is no stream", ErrorCode.UPSTREAM_PROTOCOL_ERROR)

    def _head(self) -> bytes:
        return chunk(SEAM) if self._chunked else SEAM

    def _relay(self) -> None:
        self._drop()
        self._engine_refused(self.status, b"")

    def _engine_refused(self, status: int, body: bytes) -> None:
        """Its own answer has no place any more, even where it is about the client's input."""
        self.abort()
        kind = refusal_kind(status, body)
        self.exchange.attempt_failed(Failure(kind, f"status {status}", status, code=ErrorCode.UPSTREAM_RESET))


def _text_of(choices: object) -> str | None:
    """The text of the one choice there is; None where there is more to it than text."""
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    if choice.get("index") or choice.get("logprobs"):
        return None
    text = choice.get("text")
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if any(value and name not in ("role", "content") for name, value in delta.items()):
            return None
        text = delta.get("content")
    return text if isinstance(text, str) else "" if text is None else None


def _gives_up(value: dict[str, Any]) -> bool:
    """Whether an event says that the worker will not finish: an error that is not the request's, or an abort."""
    error = value.get("error")
    if error or value.get("type") == "error":
        return (status_of(error if isinstance(error, dict) else value) or 500) >= 500
    choices = value.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )


def continued_body(endpoint: Endpoint, body: bytes, text: str, tokens: int) -> list[bytes] | None:
    """The question of `body`, asked so that the answer goes on behind `text` (`tokens` long); None: it cannot be.

    The client's bytes stay as they are around what has to change.
    """
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(asked, dict) or any(asked.get(name) for name in _NEVER):
        return None
    form = asked.get("response_format")
    if form and (not isinstance(form, dict) or form.get("type") != "text"):
        return None
    changes = _less(endpoint, asked, tokens)
    if changes is None:
        return None
    if text:
        name = "messages" if endpoint is Endpoint.CHAT else "prompt"
        places = members(body, (name,))
        if len(places) != 1:
            return None
        end = places[0][3] - 1  # of the list's bracket, or of the string's quote
        quoted = orjson.dumps(text)
        if endpoint is Endpoint.CHAT:
            if not isinstance(asked["messages"], list) or not asked["messages"]:
                return None
            added = b',{"role":"assistant","content":%b}' % quoted
            changes |= {"continue_final_message": b"true", "add_generation_prompt": b"false"}
        elif isinstance(asked["prompt"], str):
            added = quoted[1:-1]
        else:
            return None
        body = body[:end] + added + body[end:]
    return splice(body, changes, frozenset(asked))


def _less(endpoint: Endpoint, asked: dict[str, Any], tokens: int) -> dict[str, bytes | None] | None:
    """The limits that what was made already counts against; None where nothing is left to be made."""
    limits = {name: asked[name] for name in ("max_completion_tokens", "max_tokens") if asked.get(name) is not None}
    if endpoint is Endpoint.COMPLETIONS and not limits:
        limits["max_tokens"] = COMPLETION_DEFAULT_TOKENS
    changes: dict[str, bytes | None] = {}
    for name, limit in limits.items():
        if type(limit) is not int or limit <= tokens:
            return None
        changes[name] = b"%d" % (limit - tokens)
    least = asked.get("min_tokens")
    if type(least) is int and least > 0:
        changes["min_tokens"] = b"%d" % max(least - tokens, 0)
    return changes if tokens else {}
