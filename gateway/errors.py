"""What the gateway says when it says no: one closed table from code to status, type and retry advice.

`429` means contended or over a limit, `503` nothing there or draining, `504` time ran out. Every `429` and `503`
carries `Retry-After` within [1, 60] s (OpenAI's clients ignore more than 120), and every error carries
`x-should-retry`, because those clients otherwise retry 408, 409, 429 and 5xx twice on their own.
`docs/errors.md` is the table: `python -m gateway.errors`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from enum import StrEnum

import orjson

from gateway.error_codes import ERRORS, OUTCOME_TO_CODE, REASON_TO_CODE, ErrorCode
from gateway.scheduling.model import OutcomeKind, Reason

__all__ = [
    "ERRORS",
    "OUTCOME_TO_CODE",
    "REASON_TO_CODE",
    "Dialect",
    "ErrorAnswer",
    "ErrorCode",
    "answer_for",
    "dialect_of",
    "reference",
    "retry_after",
    "shown",
    "sse_error_event",
]

RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 60
MAX_VALUE_CHARS = 80
"""Longest piece of a caller's own value that a message repeats."""


class Dialect(StrEnum):
    """Whose shape an error body has."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


def dialect_of(path: str) -> Dialect:
    """The shape that clients of this path parse: Anthropic's below `/v1/messages`, OpenAI's elsewhere."""
    return Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 and status != 505 else "invalid_request_error")


def retry_after(seconds: float) -> int:
    """Whole seconds for `Retry-After`, within [1, 60]: rounded up, so that no client returns early."""
    if not seconds > RETRY_AFTER_MIN_S:  # also NaN
        return RETRY_AFTER_MIN_S
    return math.ceil(min(seconds, RETRY_AFTER_MAX_S))


def shown(value: object) -> str:
    """A caller's value as a message repeats it: short, on one line; of arrays and objects only what they are."""
    if isinstance(value, (str, bytes)):
        text = repr(value[: MAX_VALUE_CHARS + 1])
    elif isinstance(value, list):
        text = f"an array of {len(value)}"
    elif isinstance(value, dict):
        text = "an object"
    else:
        text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """One error as it is told to the client.

    `message` names the value, the limit, the place and the cure. `retry_after_s` (seconds, measured) replaces the
    table's default; it is sent only with 429 and 503. `should_retry` overrides the table, for instance while most
    requests are shed. `headers` are further response fields (`allow`, `www-authenticate`).
    """

    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    should_retry: bool | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    dialect: Dialect = Dialect.OPENAI

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return ERRORS[self.code].status

    def head_fields(self) -> list[tuple[bytes, bytes]]:
        """The response fields that belong to the error, lower-case names: content type, retry advice, extras."""
        row = ERRORS[self.code]
        should_retry = row.should_retry if self.should_retry is None else self.should_retry
        fields = [
            (b"content-type", b"application/json"),
            (b"x-should-retry", b"true" if should_retry else b"false"),
        ]
        if row.retry_after_s is not None:
            wait = row.retry_after_s if self.retry_after_s is None else self.retry_after_s
            fields.append((b"retry-after", b"%d" % retry_after(wait)))
        fields.extend(self.headers)
        return fields

    def body(self) -> bytes:
        """The JSON body, in the caller's dialect."""
        row = ERRORS[self.code]
        message = self.message if self.message.isascii() else _encodable(self.message)
        if self.dialect is Dialect.ANTHROPIC:
            error = {"type": _anthropic_type(row.status), "message": message}
            return orjson.dumps({"type": "error", "error": error})
        return orjson.dumps(
            {"error": {"message": message, "type": row.type, "param": self.param, "code": self.code.value}}
        )

    def in_dialect(self, dialect: Dialect) -> ErrorAnswer:
        """The same error in the shape of another API; the same object where nothing changes."""
        return self if dialect is self.dialect else replace(self, dialect=dialect)


def _encodable(text: str) -> str:
    """`text` without lone surrogates, which no UTF-8 body can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def sse_error_event(answer: ErrorAnswer) -> bytes:
    """The event that ends a broken stream; no `[DONE]` follows it, so that no client takes the end for a success."""
    if answer.dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + answer.body() + b"\n\n"
    return b"data: " + answer.body() + b"\n\n"


_REASON_MESSAGES: dict[Reason, str] = {
    Reason.QUEUE_FULL: "All workers that fit are busy and the queue is full. Retry later.",
    Reason.QUEUE_TIMEOUT: "The request waited in the queue as long as its class may. Retry later.",
    Reason.DEADLINE: "The request's time ran out before a worker was free. Allow more time.",
    Reason.HOPELESS: "The queue is too long for the request to get a place in time. Retry later or allow more time.",
    Reason.SHED: "The request gave way to those of a higher class or of tenants with less waiting. Retry later.",
    Reason.QUEUE_NEVER: (
        "No slot is free now and the request must not wait (X-Headrace-Queue: never). Send it without that header."
    ),
    Reason.TENANT_IN_FLIGHT: "The tenant has as many requests running as it may. Retry later.",
    Reason.TENANT_QUEUED: "The tenant has as many requests waiting as it may. Send fewer at once.",
    Reason.NO_WORKER: "No worker that serves this request can be reached now. Retry later.",
    Reason.MODEL_NOT_FOUND: "No worker serves this model. GET /v1/models lists those that exist.",
    Reason.CONTEXT_TOO_LONG: "The prompt is longer than the context of every worker of this model. Shorten it.",
    Reason.ATTEMPTS_EXHAUSTED: "Every worker that was tried failed the request. Report its id if that happens again.",
    Reason.RETRY_BUDGET: ("A worker failed the request, and too many retries run already to try another. Retry later."),
    Reason.SHUTTING_DOWN: "This gateway is shutting down. Retry; another process answers.",
}


_BUSY = "Every worker that was tried said that it is busy. Retry later."


def answer_for(
    reason: Reason,
    *,
    retry_after_s: float | None = None,
    last: OutcomeKind | None = None,
    detail: str = "",
    dialect: Dialect = Dialect.OPENAI,
) -> ErrorAnswer:
    """The answer for a scheduler's refusal.

    `last` is how the last attempt ended, where there was one: it tells why retrying came to nothing. `detail` says
    what is particular (the value, the limit, where it is set) and is put behind the reason's own sentence.
    """
    code = REASON_TO_CODE[reason]
    if last is not None and code is ErrorCode.UPSTREAM_ERROR:
        code = OUTCOME_TO_CODE[last] or code
    message = _BUSY if code is not REASON_TO_CODE[reason] and last is OutcomeKind.BUSY else _REASON_MESSAGES[reason]
    param = "model" if code is ErrorCode.MODEL_NOT_FOUND else None
    return ErrorAnswer(code, f"{message} ({detail})" if detail else message, param, retry_after_s, dialect=dialect)


def reference() -> str:
    """`docs/errors.md`: the table as operators and client authors read it."""
    lines = [
        "# Errors",
        "",
        "Generated by `python -m gateway.errors`; the table itself is `gateway/error_codes.py`.",
        "",
        'The body is `{"error": {"message", "type", "param", "code"}}`; under `/v1/messages` it has the Anthropic',
        'shape, `{"type": "error", "error": {"type", "message"}}`. `429` means contended or over a limit, `503`',
        "nothing there or draining, `504` time ran out. Every `429` and `503` carries `Retry-After` between 1 and 60",
        "seconds; a measured drain rate takes the place of the default below. Every error carries `x-should-retry`.",
        "A message names the value, the limit that it met, where that is set, and what helps.",
        "A stream that breaks after its first event ends with the same body as an event and without `[DONE]`.",
        "",
        "| code | status | type | retry | Retry-After | what it means | what to do |",
        "|---|---|---|---|---|---|---|",
    ]
    for code, row in ERRORS.items():
        wait = "" if row.retry_after_s is None else f"{retry_after(row.retry_after_s)} s"
        retry = "yes" if row.should_retry else "no"
        lines.append(
            f"| `{code.value}` | {row.status} | `{row.type}` | {retry} | {wait} | {row.meaning} | {row.cure} |"
        )
    lines += [
        "",
        "Why the scheduler refused or evicted a request, and the code it is told as:",
        "",
        "| reason | code |",
        "|---|---|",
        *(f"| `{reason.value}` | `{code.value}` |" for reason, code in REASON_TO_CODE.items()),
        "",
        "Where workers were tried before, the way the last attempt ended decides:",
        "",
        "| last attempt | code |",
        "|---|---|",
        *(f"| `{kind.value}` | `{code.value}` |" for kind, code in OUTCOME_TO_CODE.items() if code is not None),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
