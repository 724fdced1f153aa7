"""What a client hears when the scheduler has no place, or no further one, for its request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import Dialect, ErrorAnswer, ErrorCode, answer_for
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind, Reason, Refuse, Request

from .verdicts import CLIENTS_FAULT, TRIED, Failure


def refusal_of(
    refused: Refuse, failure: Failure | None, dialect: Dialect, particular: str = ""
) -> tuple[ErrorAnswer, int, Terminal]:
    """The answer, its status, and how the request ended. `failure`: what became of the last try, if there was one.

    `particular`: what is to be said of this very request behind the reason's own sentence.
    """
    reason, retry_after_s = refused.reason, refused.retry_after_s
    answer = answer_for(
        reason,
        retry_after_s=retry_after_s,
        last=failure.kind if failure else None,
        detail="; ".join(part for part in (particular, failure.detail if failure else "") if part),
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
        outcome = Terminal.EVICTED if refused.evicted else Terminal.REJECTED
    return answer, status, outcome


_SUMS = "{place}: {limit:g}, with this request {value:g}"
_WORDS = {
    Reason.QUEUE_FULL: _SUMS,
    Reason.SHED: "{place}: {limit:g}, with a newer request {value:g}",
    Reason.HOPELESS: "{value:.0f} places would have to become free in the time it may wait, {limit:.1f} do at most",
    Reason.TENANT_IN_FLIGHT: _SUMS,
    Reason.TENANT_QUEUED: _SUMS,
    Reason.ATTEMPTS_EXHAUSTED: "tried {value:g}, {place}: {limit:g}",
    Reason.RETRY_BUDGET: "the pool has {value:.2g} of a retry left, each success earns {limit:g}: {place}",
}
"""How a limit that was reached is told: where it is set, what it is, what it came to."""


def particular_of(
    refused: Refuse, class_name: str, deadline_s: float, longest_context: Callable[[str], int | None]
) -> str:
    """What is to be said of this very request; empty where the reason says all. `deadline_s`: the time it had."""
    reason, request, reached = refused.reason, refused.ticket.request, refused.reached
    if reached is not None and reason in _WORDS:
        return _WORDS[reason].format(place=reached.place, limit=reached.limit, value=reached.value)
    if reason is Reason.DEADLINE:
        return f"it had {deadline_s:g} s: X-Headrace-Timeout-Ms, a rule's deadline_s, timeouts.total_s"
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
