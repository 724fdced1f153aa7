"""The closed table of error answers: complete, honest about retrying, and shaped as the clients parse it."""

import json
from pathlib import Path

import httpx2
import openai
import pytest

from gateway.errors import (
    ERRORS,
    OUTCOME_TO_CODE,
    REASON_TO_CODE,
    Dialect,
    ErrorAnswer,
    ErrorCode,
    answer_for,
    dialect_of,
    reference,
    retry_after,
    shown,
    sse_error_event,
)
from gateway.scheduling.model import OutcomeKind, Reason

ROOT = Path(__file__).parents[2]

CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def head(answer: ErrorAnswer) -> dict[str, str]:
    pairs = [(name.decode(), value.decode()) for name, value in answer.head_fields()]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def test_every_code_has_a_row_and_every_reason_and_outcome_a_code():
    assert set(ERRORS) == set(ErrorCode)
    assert set(REASON_TO_CODE) == set(Reason)
    assert set(OUTCOME_TO_CODE) == set(OutcomeKind)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_retry_advice_is_deliberate(code: ErrorCode):
    fields = head(ErrorAnswer(code, "m"))
    status = ERRORS[code].status
    assert fields["x-should-retry"] in ("true", "false")
    if status in (429, 503):
        assert 1 <= int(fields["retry-after"]) <= 60
    else:
        assert "retry-after" not in fields
        assert fields["x-should-retry"] == "false"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_the_official_client_raises_the_class_of_the_status(code: ErrorCode):
    answer = ErrorAnswer(code, "what went wrong", "model")

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(answer.status, headers=answer.head_fields(), content=answer.body())

    transport = httpx2.Client(transport=httpx2.MockTransport(respond))
    with openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=transport, max_retries=0) as client:
        expected = CLASSES.get(
            answer.status, openai.InternalServerError if answer.status >= 500 else openai.APIStatusError
        )
        with pytest.raises(expected) as caught:
            client.models.list()
    assert type(caught.value) is expected
    assert caught.value.code == code.value
    assert caught.value.param == "model"
    assert caught.value.type == ERRORS[code].type


@pytest.mark.parametrize("code", [ErrorCode.QUEUE_FULL, ErrorCode.INVALID_JSON, ErrorCode.UPSTREAM_RESET])
def test_the_official_client_retries_only_what_it_is_told_to(code: ErrorCode):
    calls = []
    answer = ErrorAnswer(code, "m", retry_after_s=1)

    def respond(request: httpx2.Request) -> httpx2.Response:
        calls.append(1)
        fields = [(n, v) for n, v in answer.head_fields() if n != b"retry-after"] + [(b"retry-after-ms", b"1")]
        return httpx2.Response(answer.status, headers=fields, content=answer.body())

    transport = httpx2.Client(transport=httpx2.MockTransport(respond))
    with (
        openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=transport, max_retries=2) as client,
        pytest.raises(openai.APIStatusError),
    ):
        client.models.list()
    assert len(calls) == (3 if ERRORS[code].should_retry else 1)


def test_a_measured_wait_and_a_shed_storm_override_the_table():
    fields = head(ErrorAnswer(ErrorCode.SHED, "m", retry_after_s=12.2, should_retry=False))
    assert fields["retry-after"] == "13"
    assert fields["x-should-retry"] == "false"
    assert "retry-after" not in head(ErrorAnswer(ErrorCode.INTERNAL, "m", retry_after_s=3))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, 1), (0, 1), (1, 1), (1.01, 2), (59.5, 60), (1e9, 60), (float("inf"), 60), (float("nan"), 1)],
)
def test_retry_after_is_whole_seconds_within_a_minute(seconds: float, expected: int):
    assert retry_after(seconds) == expected


def test_extra_fields_are_sent():
    answer = ErrorAnswer(ErrorCode.METHOD_NOT_ALLOWED, "m", headers=((b"allow", b"GET, HEAD"),))
    assert head(answer)["allow"] == "GET, HEAD"


def test_the_bodies_shape_follows_the_path():
    assert dialect_of("/v1/chat/completions") is Dialect.OPENAI
    assert dialect_of("/v1/messages") is Dialect.ANTHROPIC
    answer = ErrorAnswer(ErrorCode.MODEL_NOT_FOUND, "no such model", "model")
    assert json.loads(answer.body()) == {
        "error": {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert answer.in_dialect(Dialect.OPENAI) is answer
    other = answer.in_dialect(Dialect.ANTHROPIC)
    assert json.loads(other.body()) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "no such model"},
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.INTERNAL, "api_error"),
        (ErrorCode.INVALID_JSON, "invalid_request_error"),
        (ErrorCode.HTTP_VERSION_NOT_SUPPORTED, "invalid_request_error"),
        (ErrorCode.QUEUE_FULL, "rate_limit_error"),
        (ErrorCode.UPSTREAM_RESET, "api_error"),
    ],
)
def test_anthropic_types(code: ErrorCode, expected: str):
    body = json.loads(ErrorAnswer(code, "m", dialect=Dialect.ANTHROPIC).body())
    assert body["error"]["type"] == expected


def test_an_unencodable_message_is_still_json():
    body = json.loads(ErrorAnswer(ErrorCode.INVALID_JSON, "lone \ud800 here, and é").body())
    assert body["error"]["message"] == "lone ? here, and é"


def test_the_event_that_ends_a_stream():
    event = sse_error_event(ErrorAnswer(ErrorCode.UPSTREAM_RESET, "gone"))
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert b"[DONE]" not in event
    assert json.loads(event[6:])["error"]["code"] == "upstream_reset"
    event = sse_error_event(ErrorAnswer(ErrorCode.GAP_TIMEOUT, "still", dialect=Dialect.ANTHROPIC))
    assert event.startswith(b'event: error\ndata: {"type":"error"')


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_an_answer(reason: Reason):
    answer = answer_for(reason, retry_after_s=7, detail="pool short-chat, waited 10 s")
    assert answer.code is REASON_TO_CODE[reason]
    assert answer.message.endswith("(pool short-chat, waited 10 s)")
    assert (answer.param == "model") == (reason is Reason.MODEL_NOT_FOUND)
    assert "(pool" not in answer_for(reason).message


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (OutcomeKind.CONNECT_FAILED, ErrorCode.NO_HEALTHY_WORKER),
        (OutcomeKind.BUSY, ErrorCode.QUEUE_FULL),
        (OutcomeKind.RESET, ErrorCode.UPSTREAM_RESET),
        (OutcomeKind.OK, ErrorCode.UPSTREAM_ERROR),
        (None, ErrorCode.UPSTREAM_ERROR),
    ],
)
def test_the_last_attempt_tells_why_retrying_ended(last: OutcomeKind | None, code: ErrorCode):
    assert answer_for(Reason.ATTEMPTS_EXHAUSTED, last=last).code is code
    assert answer_for(Reason.DEADLINE, last=last).code is ErrorCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("value", "expected"),
    [("abc", "'abc'"), (10**9, "1000000000"), ("a\nb\x1b", r"'a\nb\x1b'"), (None, "None"), (b"k\x00", r"b'k\x00'")],
)
def test_values_are_shown_safely(value: object, expected: str):
    assert shown(value) == expected


def test_a_long_value_is_cut():
    assert len(shown("x" * 10_000_000)) == 80
    assert shown("x" * 1000).endswith("...")
    assert shown("\u2028" * 3).isascii()


def test_the_reference_page_is_current():
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == reference()
