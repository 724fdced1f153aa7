"""Heads of answers, what answers mean, and events kept until they are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ERRORS
from gateway.http.answer_fields import UNKNOWN
from gateway.http.answers import (
    MAX_ROUTES,
    Routes,
    answer_head,
    at_once,
    chunk,
    route_fields,
    status_line,
    timing_fields,
)
from gateway.http.sse import StreamWatcher
from gateway.http.verdicts import (
    CLIENTS_FAULT,
    FAILURE_CODES,
    MESSAGES,
    RETRYABLE,
    TIMEOUTS,
    TRIED,
    Reading,
    _abort_in,
    failure_kind,
    gave_up,
    reading_of,
    refusal_kind,
    verdict_of,
)
from gateway.http.whole_events import HOLD_EVENT_BYTES, WholeEvents
from gateway.scheduling.model import OutcomeKind


def head(**changes: object) -> bytes:
    options: dict[str, object] = {"length": 2, "chunked": False, "keep_alive": True, "http10": False, **changes}
    return answer_head(200, b"vary: x\r\n", b"r1", b"own: 1\r\n", **options)  # type: ignore[arg-type]


def test_one_framing_field():
    start = b"HTTP/1.1 200 OK\r\nvary: x\r\nx-request-id: r1\r\nown: 1\r\n"
    assert head() == start + b"content-length: 2\r\n\r\n"
    assert head(chunked=True, length=UNKNOWN) == start + b"transfer-encoding: chunked\r\n\r\n"
    assert head(length=UNKNOWN, keep_alive=False) == start + b"connection: close\r\n\r\n"
    assert head(http10=True) == start + b"content-length: 2\r\nconnection: keep-alive\r\n\r\n"
    assert head(length=123_456).endswith(b"\r\ncontent-length: 123456\r\n\r\n")
    no_content = answer_head(204, b"", b"r2", length=0, chunked=False, keep_alive=True, http10=False)
    assert no_content == b"HTTP/1.1 204 No Content\r\nx-request-id: r2\r\n\r\n"


def test_our_own_lines():
    assert status_line(599) == b"HTTP/1.1 599 \r\n"
    assert route_fields("", "", "", 3, "") == b"x-headrace-revision: 3\r\n"
    assert route_fields("p", "w", "c", 3, "").count(b"\r\n") == 4
    assert route_fields("", "", "", 3, "why\n").endswith(b"\r\nx-headrace-reason: why?\r\n")


def test_where_requests_go_is_kept_until_anything_of_it_changes():
    routes = Routes()
    for said in (
        ("p", "w", "c", 3, "why"),
        ("p", "w", "c", 4, "why"),
        ("q", "w", "c", 4, "why"),
        ("q", "w", "c", 4, ""),
        ("q", "w", "d", 4, ""),
        ("q", "w", "c", 4, ""),
    ):
        for _ in range(2):
            route = routes.of(*said)
            assert route.lines == route_fields(*said)
            assert route.at_once == route.lines + timing_fields(0.0, 1)
    for number in range(2 * MAX_ROUTES):
        routes.of("p", "w", f"c{number}", 3, "")
    assert len(routes) <= MAX_ROUTES
    assert at_once(0.0009, 1)
    assert not at_once(0.001, 1)
    assert not at_once(0.0, 2)
    assert timing_fields(1.2345, 2) == b"x-headrace-queue-ms: 1234\r\nx-headrace-attempts: 2\r\n"
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


SSE = (b"content-type", b"Text/Event-Stream; charset=utf-8")


@pytest.mark.parametrize(
    ("status", "fields", "reading"),
    [
        (200, [], Reading.WHOLE),
        (200, [SSE], Reading.EVENTS),
        (200, [SSE, (b"content-encoding", b"identity")], Reading.EVENTS),
        (200, [(b"content-encoding", b"gzip"), SSE], Reading.OPAQUE),
        (200, [(b"content-encoding", b"gzip"), (b"content-type", b"application/json")], Reading.WHOLE),
        (204, [], Reading.WHOLE),
        (304, [], Reading.WHOLE),
        (301, [], Reading.REDIRECT),
        (400, [SSE], Reading.ERROR),
        (599, [], Reading.ERROR),
    ],
)
def test_how_a_body_is_read(status: int, fields: list[tuple[bytes, bytes]], reading: Reading):
    assert reading_of(status, fields) is reading


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, OutcomeKind.CLIENT_ERROR),
        (401, OutcomeKind.CLIENT_ERROR),
        (404, OutcomeKind.MISROUTED),
        (408, OutcomeKind.SERVER_ERROR),
        (422, OutcomeKind.CLIENT_ERROR),
        (429, OutcomeKind.BUSY),
        (500, OutcomeKind.SERVER_ERROR),
        (503, OutcomeKind.BUSY),
        (504, OutcomeKind.SERVER_ERROR),
    ],
)
def test_what_a_status_says_about_a_worker(status: int, kind: OutcomeKind):
    assert failure_kind(status) is kind


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}',
        b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":null,"code":404}}',
        b'{"error":{"message":"gone","code":"model_not_found"}}',
        b'{"object":"error","message":"LoRA adapter x was not found","code":404}',
        b'{"error":"model \'x\' not found"}',
        b'{"error":{"message":"No such model: x"}}',
    ],
)
def test_a_404_that_is_about_the_model(body: bytes):
    assert refusal_kind(404, body) is OutcomeKind.MISROUTED
    assert refusal_kind(400, body) is OutcomeKind.CLIENT_ERROR


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>no model here</html>",
        b'{"detail":"Not Found"}',
        b'{"error":{"message":"Response with id \'model\' not found.","param":"response_id","code":404}}',
        b'{"error":{"message":"Response with id \'the model\' not found.","param":null,"code":404}}',
        b'{"error":{"message":"Model Response 5 not found.","param":"response_id","code":404}}',
        b'{"error":null}',
        b'{"error":{"message":null}}',
        b'["model"]',
    ],
)
def test_a_404_about_something_else_says_nothing_about_the_worker(body: bytes):
    assert refusal_kind(404, body) is OutcomeKind.CLIENT_ERROR


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', (OutcomeKind.OK, "")),
        (b"data: [DONE]\n\n", (OutcomeKind.OK, "no_finish_reason")),
        (b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', (OutcomeKind.SERVER_ERROR, "engine_abort")),
        (b'data: {"error":{"code":503}}\n\n', (OutcomeKind.BUSY, "error_event")),
        (b'data: {"error":"x"}\n\ndata: [DONE]\n\n', (OutcomeKind.SERVER_ERROR, "error_event")),
        (b'data: {"choices":[]}\n\n', None),
    ],
)
def test_how_a_stream_went(data: bytes, verdict: tuple[OutcomeKind, str] | None):
    watcher = StreamWatcher()
    watcher.feed(data)
    assert verdict_of(watcher) == verdict


def test_the_tables_fit_together():
    assert not RETRYABLE & TIMEOUTS
    assert not TRIED & CLIENTS_FAULT
    assert set(FAILURE_CODES.values()) | set(MESSAGES) <= set(ERRORS)
    # What is neither retried nor the engine's own answer needs a code of its own.
    ended_here = set(OutcomeKind) - RETRYABLE - {OutcomeKind.OK, OutcomeKind.CLIENT_ERROR, OutcomeKind.MISROUTED}
    assert ended_here - {OutcomeKind.CLIENT_GONE, OutcomeKind.GAP_TIMEOUT} == set(FAILURE_CODES)
    assert gave_up(b'{"finish_reason":"abort"}')
    assert gave_up(b'{"finish_reason": "abort"}')
    assert not gave_up(b'{"finish_reason":"stop"}')


ABORTS = (b'"finish_reason":"abort"', b'"finish_reason": "abort"')


@given(st.lists(st.sampled_from([*ABORTS, *(word[1:] for word in ABORTS), b'"', b"x", b" ", b"abort", b"reason"])))
def test_an_answer_that_was_given_up_is_found_wherever_it_says_so(parts: list[bytes]):
    body = b"".join(parts)
    assert _abort_in(body) == gave_up(body) == any(body.find(word) >= 0 for word in ABORTS)


@given(st.lists(st.sampled_from([b"data: x\n\n", b"data: yy\n", b"\n", b"z", b"\r\n"]), max_size=12), st.integers(1, 9))
def test_whole_events_keep_bytes_and_order(pieces: list[bytes], size: int):
    """Nothing is lost or moved, and what went out ends with a whole event."""
    data = b"".join(pieces)
    watcher, tail, out = StreamWatcher(), WholeEvents(), b""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        watcher.feed(piece)
        out += tail.take(piece, watcher.boundary, unfinished=watcher.open)
        assert data.startswith(out)
        assert not out or StreamWatcher().feed(out) >= 0
        check = StreamWatcher()
        check.feed(out)
        assert not check.open
    assert out + tail.rest() == data
    assert tail.empty


def test_long_events_are_torn():
    tail = WholeEvents()
    assert tail.take(b"ab", 0, unfinished=True) == b""
    assert not tail.empty
    long = b"x" * HOLD_EVENT_BYTES
    assert tail.take(long, 0, unfinished=True) == b"ab" + long
    assert tail.torn
    assert not tail.empty
    assert tail.take(b"more", 0, unfinished=True) == b"more"
    assert tail.take(b"\n\nnext", 2, unfinished=True) == b"\n\n"
    assert not tail.torn
    assert tail.take(b"\n\n", 2, unfinished=False) == b"next\n\n"
    assert tail.empty
    assert tail.take(b"\n\n" + long + b"y", 2, unfinished=True) == b"\n\n" + long + b"y"
    assert tail.torn
    assert tail.take(b"\n\n", 2, unfinished=False) == b"\n\n"
    assert not tail.torn
