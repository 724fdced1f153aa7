"""What a client hears when the scheduler has no place, or no further one, for its request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import Dialect, ErrorAnswer, ErrorCode, answer_for
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind, Reason, Request

from .verdicts import CLIENTS_FAULT, TRIED, Failure


def refusal_of(
    reason: Reason,
    retry_after_s: float,
    failure: Failure | None,
    dialect: Dialect,
    *,
    evicted: bool,
    particular: str = "",
) -> tuple[ErrorAnswer, int, Terminal]:
    """The answer, its status, and how the request ended. `failure`: what became of the last try, if there was one.

    `particular`: what is to be said of this very request behind the reason's own sentence.
    """
    answer = answer_for(
        reason,
        retry_after_s=retry_after_s,
        last=failure.kind if failure else None,
        detail=particular or (failure.detail if failure else ""),
        dialect=dialect,
    )
    status = answer.status
    if failure is not None and reason in TRIED:
        outcome = Terminal.UPSTREAM_ERROR
        if failure.kind is OutcomeKind.BUSY:
            outcome = Terminal.REJECTED
            if failure.retry_after_s is not None:
                retry_after_s = failure.retry_after_s
            answer = ErrorAnswer(answer.code, answer.message, None, retry_after_s, dialect=dialect)
        elif failure.code is not None and answer.code is not ErrorCode.UPSTREAM_ERROR:
            answer = ErrorAnswer(failure.code, answer.message, dialect=dialect)
            status = answer.status
        elif failure.kind is OutcomeKind.SERVER_ERROR and failure.status is not None and failure.status >= 500:
            status = failure.status  # the engine's own status, under a body of ours
    elif reason is Reason.DEADLINE:
        outcome = Terminal.TIMEOUT
    elif reason in CLIENTS_FAULT:
        outcome = Terminal.CLIENT_ERROR
    else:
        outcome = Terminal.EVICTED if evicted else Terminal.REJECTED
    return answer, status, outcome


def particular_of(
    reason: Reason, request: Request, class_name: str, longest_context: Callable[[str], int | None]
) -> str:
    """What is to be said of this very request; empty where the reason says all."""
    if reason is Reason.CONTEXT_TOO_LONG:
        return context_words(request, longest_context(request.model))
    if reason is Reason.MODEL_NOT_FOUND:
        return f"asked for: {request.model[:128]!r}"
    if reason is Reason.QUEUE_TIMEOUT:
        return f"class {class_name}: queue_timeout_s {request.queue_timeout_s:g}"
    return ""


def context_words(request: Request, longest: int | None) -> str:
    """The value and the limit behind "the prompt is too long". `longest`: context of the model's largest worker."""
    about = "" if request.prompt_exact else "about "
    limit = "" if longest is None else f"This model's maximum context length is {longest} tokens. "
    return f"{limit}The prompt has {about}{request.prompt_tokens} tokens."
