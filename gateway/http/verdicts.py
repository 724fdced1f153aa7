"""What an engine's answer means: how its body is read, whether another worker may be tried, what the client is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from types import FunctionType
from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import ErrorCode
from gateway.scheduling.model import OutcomeKind, Reason

from .answer_fields import Fields
from .sse import StreamWatcher

if TYPE_CHECKING:
    from mypy_extensions import i64

_ABOUT_MODEL = re.compile(r"\W*(?:the |no |no such |unknown )?(?:lora |base )?(?:model|adapter)\b", re.IGNORECASE)
"""How a message begins whose subject is the model; further behind stands what the client wrote."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed with nothing sent downstream: another worker may be tried."""

    kind: OutcomeKind
    detail: str
    status: int | None = None
    retry_after_s: float | None = None
    code: ErrorCode | None = None


class Reading(Enum):
    """How the body behind a head is read."""

    ERROR = auto()  # collected, then passed on or taken as a failure
    EVENTS = auto()  # a stream: held until its first data event, then watched while it passes
    OPAQUE = auto()  # a stream in a coding: relayed as it is, its framing alone tells whether it is whole
    WHOLE = auto()  # held to its end while it is short
    REDIRECT = auto()  # never followed


def reading_of(status: int, fields: Fields) -> Reading:
    """How to read the body of a final answer."""
    if status >= 400:
        return Reading.ERROR
    if status >= 300 and status != 304:
        return Reading.REDIRECT
    stream = coded = False
    for name, value in fields:
        if name == b"content-type":
            stream = value[:17].lower() == b"text/event-stream"
        elif name == b"content-encoding":
            coded = value.strip().lower() != b"identity"
    if not stream:
        return Reading.WHOLE
    return Reading.OPAQUE if coded else Reading.EVENTS


def failure_kind(status: int) -> OutcomeKind:
    """What an engine's status of 400 and more means for the worker."""
    if status in (429, 503):
        return OutcomeKind.BUSY
    if status == 404:
        return OutcomeKind.MISROUTED
    if status >= 500 or status == 408:
        return OutcomeKind.SERVER_ERROR
    return OutcomeKind.CLIENT_ERROR


def refusal_kind(status: int, body: bytes) -> OutcomeKind:
    """What an engine's refusal means for the worker, its body considered.

    Only a 404 about the model says that the worker lacks it. Engines answer 404 as well for paths they do not serve
    and for things that a client names (an earlier response): no client may take a model off a worker with those.
    """
    kind = failure_kind(status)
    if kind is OutcomeKind.MISROUTED and not _names_model(body):
        return OutcomeKind.CLIENT_ERROR
    return kind


def _names_model(body: bytes) -> bool:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    error = value.get("error", value) if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return isinstance(error, str) and _ABOUT_MODEL.match(error) is not None
    if error.get("param") == "model" or error.get("code") == "model_not_found":
        return True
    message = error.get("message")
    return error.get("param") is None and isinstance(message, str) and _ABOUT_MODEL.match(message) is not None


def gave_up(body: bytes) -> bool:
    """Whether a whole answer says that the engine stopped in the middle (vLLM, on its way down)."""
    if _COMPILED:
        return _abort_in(body)
    # `in` would first raise and catch an error within: CPython takes what is looked for for a number. Backwards it
    # looks at fewer bytes of such a short word.
    return body.rfind(b'"abort"') >= 0 and (body.find(_ABORT) >= 0 or body.find(_SPACED_ABORT) >= 0)


_ABORT: Final = b'"finish_reason":"abort"'
_SPACED_ABORT: Final = b'"finish_reason": "abort"'


def _steps() -> bytes:
    """How far one of these may end behind each character, if it does not end with it."""
    words = (_ABORT[:-1], _SPACED_ABORT[:-1])
    return bytes(min(*(len(word) - word.rfind(one) for word in words), len(_ABORT)) for one in range(256))


_STEPS: Final = _steps()


def _abort_in(body: bytes) -> bool:
    """Whether one of these is there. In plain Python slower than `find`, compiled several times faster: of such long
    words it looks at few characters."""
    steps = _STEPS
    size: i64 = len(body)
    at: i64 = 22
    while at < size:
        here: i64 = body[at]
        if here == 34 and body[at - 1] == 116:  # a quote behind a `t`
            said = body[at - 22 : at + 1]
            if said == _ABORT or (said == _SPACED_ABORT[1:] and at > 22 and body[at - 23] == 34):
                return True
        at += steps[here]
    return False


_COMPILED: Final = not isinstance(_abort_in, FunctionType)


def verdict_of(watcher: StreamWatcher) -> tuple[OutcomeKind, str] | None:
    """How a stream went that was complete by its framing, and why where it was no success; None: it broke off.

    `[DONE]` without a finish reason is no success, but nothing against the worker either.
    """
    if watcher.error is not None:
        return refusal_kind(watcher.error.status or 500, watcher.error.payload), "error_event"
    if watcher.finished:
        return OutcomeKind.OK, ""
    if watcher.aborted:
        return OutcomeKind.SERVER_ERROR, "engine_abort"
    return (OutcomeKind.OK, "no_finish_reason") if watcher.done else None


RETRYABLE = frozenset(
    {
        OutcomeKind.CONNECT_FAILED,
        OutcomeKind.RESET,
        OutcomeKind.PROTOCOL,
        OutcomeKind.SERVER_ERROR,
        OutcomeKind.BUSY,
        OutcomeKind.LOCAL,
    }
)
"""Failures after which another worker may be tried. One that let the first-token time pass is not among them: the
client's patience is spent, and the next worker would need as long."""

PASSED_ON = frozenset({OutcomeKind.CLIENT_ERROR, OutcomeKind.MISROUTED})
"""Refusals that concern the client's input: the engine's own answer goes to the client."""
TIMEOUTS = frozenset({OutcomeKind.TTFT_TIMEOUT, OutcomeKind.GAP_TIMEOUT, OutcomeKind.DEADLINE})
TRIED = frozenset({Reason.ATTEMPTS_EXHAUSTED, Reason.RETRY_BUDGET})
"""Refusals behind which the last attempt's failure is what the client should hear."""
CLIENTS_FAULT = frozenset({Reason.MODEL_NOT_FOUND, Reason.CONTEXT_TOO_LONG})

FAILURE_CODES = {
    OutcomeKind.TTFT_TIMEOUT: ErrorCode.TTFT_TIMEOUT,
    OutcomeKind.DEADLINE: ErrorCode.DEADLINE_EXCEEDED,
}

DEADLY = "Two workers were lost while they had this request; it is not tried on a third one."

MESSAGES = {
    ErrorCode.UPSTREAM_RESET: "The worker's connection ended before its answer did.",
    ErrorCode.UPSTREAM_PROTOCOL_ERROR: "What the worker sent is not HTTP as it should be.",
    ErrorCode.UPSTREAM_REDIRECT: (
        "The worker answered with a redirect, which is never followed: {detail}. "
        "Report the request's id: a worker's URL is wrong."
    ),
    ErrorCode.GAP_TIMEOUT: (
        "The worker's answer brought nothing for {seconds:g} s (timeouts.token_gap_s). "
        "What came before is intact; ask again if the work may be done twice."
    ),
    ErrorCode.TTFT_TIMEOUT: (
        "The first token did not come within {seconds:g} s (timeouts.ttft_s). Shorten the prompt, or ask for more time."
    ),
    ErrorCode.DEADLINE_EXCEEDED: (
        "The request was not done in the {seconds:g} s that it had "
        "(X-Headrace-Timeout-Ms, a rule's deadline_s, timeouts.total_s). Give it more time, or ask for less output."
    ),
    ErrorCode.SHUTTING_DOWN: "This gateway is shutting down. Retry; another process answers.",
}
WHOLE_LATE = (
    "The answer did not come within {seconds:g} s (timeouts.ttft_s, and again for each 512 tokens of output). "
    "Ask for less output, or for more time."
)


def message_of(code: ErrorCode, detail: str, seconds: float, *, stream: bool) -> str:
    """What is told of an attempt that ended so. `seconds`: the limit that was reached, if one was."""
    told = WHOLE_LATE if code is ErrorCode.TTFT_TIMEOUT and not stream else MESSAGES.get(code)
    return detail if told is None else told.format(seconds=seconds, detail=detail)
