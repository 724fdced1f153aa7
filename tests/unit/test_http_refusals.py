"""What a client hears of its own request when there is no place for it."""

from __future__ import annotations

import pytest

from gateway.errors import Dialect, ErrorCode
from gateway.http.refusals import context_words, particular_of, refusal_of
from gateway.http.verdicts import Failure
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind, Reached, Reason, Refuse, Request, Ticket

ESTIMATED, COUNTED = (
    Request("r", "t", 0, "m", ("p",), 20_000, None, queue_timeout_s=120.0, prompt_exact=exact)
    for exact in (False, True)
)

SAID: dict[Reason, tuple[Reached | None, str]] = {
    Reason.QUEUE_FULL: (
        Reached("admission.max_queued", 1024, 1025),
        (
            "All workers that fit are busy and the queue is full. Retry later. "
            "(admission.max_queued: 1024, with this request 1025)"
        ),
    ),
    Reason.QUEUE_TIMEOUT: (
        None,
        "The request waited in the queue as long as its class may. Retry later. (class low: queue_timeout_s 120)",
    ),
    Reason.DEADLINE: (
        None,
        (
            "The request's time ran out before a worker was free. Allow more time. "
            "(it had 2.5 s: X-Headrace-Timeout-Ms, a rule's deadline_s, timeouts.total_s)"
        ),
    ),
    Reason.HOPELESS: (
        Reached("admission.reject_when_hopeless", 7.25, 9.0),
        (
            "The queue is too long for the request to get a place in time. Retry later or allow more time. "
            "(9 places would have to become free in the time it may wait, 7.2 do at most)"
        ),
    ),
    Reason.SHED: (
        Reached("pools.p.max_queued_bytes", 1000, 1200),
        (
            "The request gave way to those of a higher class or of tenants with less waiting. Retry later. "
            "(pools.p.max_queued_bytes: 1000, with a newer request 1200)"
        ),
    ),
    Reason.QUEUE_NEVER: (
        None,
        "No slot is free now and the request must not wait (X-Headrace-Queue: never). Send it without that header.",
    ),
    Reason.TENANT_IN_FLIGHT: (
        Reached("this gateway's share of tenants.t.max_in_flight (4)", 2, 3),
        (
            "The tenant has as many requests running as it may. Retry later. "
            "(this gateway's share of tenants.t.max_in_flight (4): 2, with this request 3)"
        ),
    ),
    Reason.TENANT_QUEUED: (
        Reached("tenants.default.max_queued", 8, 9),
        (
            "The tenant has as many requests waiting as it may. Send fewer at once. "
            "(tenants.default.max_queued: 8, with this request 9)"
        ),
    ),
    Reason.NO_WORKER: (None, "No worker that serves this request can be reached now. Retry later."),
    Reason.MODEL_NOT_FOUND: (
        None,
        "No worker serves this model. GET /v1/models lists those that exist. (asked for: 'm')",
    ),
    Reason.CONTEXT_TOO_LONG: (
        None,
        (
            "The prompt is longer than the context of every worker of this model. Shorten it. "
            "(This model's maximum context length is 16384 tokens. The prompt has 20000 tokens.)"
        ),
    ),
    Reason.ATTEMPTS_EXHAUSTED: (
        Reached("retries.max_attempts", 3, 3),
        (
            "Every worker that was tried failed the request. Report its id if that happens again. "
            "(tried 3, retries.max_attempts: 3)"
        ),
    ),
    Reason.RETRY_BUDGET: (
        Reached("retries.budget_ratio", 0.1, 0.25),
        (
            "A worker failed the request, and too many retries run already to try another. Retry later. "
            "(the pool has 0.25 of a retry left, each success earns 0.1: retries.budget_ratio)"
        ),
    ),
    Reason.SHUTTING_DOWN: (None, "This gateway is shutting down. Retry; another process answers."),
}
"""Value, limit, place and cure of each."""


def refused(reason: Reason, reached: Reached | None = None, *, exact: bool = True, evicted: bool = False) -> Refuse:
    ticket = Ticket(COUNTED if exact else ESTIMATED, None, 0.0, 1.0)
    return Refuse(ticket, reason, 1.0, evicted, reached)


def said(reason: Reason, failure: Failure | None = None) -> str:
    one = refused(reason, SAID[reason][0])
    particular = particular_of(one, "low", 2.5, lambda model: {"m": 16_384}.get(model))
    return refusal_of(one, failure, Dialect.OPENAI, particular)[0].message


@pytest.mark.parametrize("reason", list(Reason))
def test_each_refusal_names_the_value_the_limit_the_place_and_the_cure(reason: Reason) -> None:
    assert said(reason) == SAID[reason][1]


def test_the_last_failure_stands_behind_the_limit() -> None:
    assert said(Reason.ATTEMPTS_EXHAUSTED, Failure(OutcomeKind.SERVER_ERROR, "status 500", 500)).endswith(
        "(tried 3, retries.max_attempts: 3; status 500)"
    )


def test_busy_workers_are_not_said_to_have_failed() -> None:
    one = refused(Reason.ATTEMPTS_EXHAUSTED, SAID[Reason.ATTEMPTS_EXHAUSTED][0])
    particular = particular_of(one, "low", 2.5, lambda model: None)
    answer, status, outcome = refusal_of(one, Failure(OutcomeKind.BUSY, "", 503, 7.0), Dialect.OPENAI, particular)
    assert (answer.code, status, outcome, answer.retry_after_s) == (ErrorCode.QUEUE_FULL, 429, Terminal.REJECTED, 7.0)
    assert answer.message == (
        "Every worker that was tried said that it is busy. Retry later. (tried 3, retries.max_attempts: 3)"
    )


@pytest.mark.parametrize(
    ("exact", "longest", "words"),
    [
        (True, 16384, "This model's maximum context length is 16384 tokens. The prompt has 20000 tokens."),
        (False, 16384, "This model's maximum context length is 16384 tokens. The prompt has about 20000 tokens."),
        (False, None, "The prompt has about 20000 tokens."),
    ],
)
def test_a_prompt_too_long_is_named_with_its_limit(exact: bool, longest: int | None, words: str) -> None:
    assert context_words(refused(Reason.CONTEXT_TOO_LONG, exact=exact).ticket.request, longest) == words


def test_what_is_particular_stands_behind_the_reason() -> None:
    answer, status, outcome = refusal_of(
        refused(Reason.CONTEXT_TOO_LONG), None, Dialect.OPENAI, "The prompt has 9 tokens."
    )
    assert (answer.code, status, outcome) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400, Terminal.CLIENT_ERROR)
    assert answer.message.endswith("(The prompt has 9 tokens.)")


@pytest.mark.parametrize("evicted", [False, True])
def test_who_had_been_queued_was_evicted(evicted: bool) -> None:
    outcome = refusal_of(refused(Reason.SHED, evicted=evicted), None, Dialect.OPENAI)[2]
    assert outcome is (Terminal.EVICTED if evicted else Terminal.REJECTED)
