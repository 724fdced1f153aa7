"""Streams after their first event: cut, stalled, garbled or strange ones. Rows 7-10, 17, 18, 25-27; cases BR-01-*."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from data_plane import STREAM, plane, request
from fault_server import (
    DONE,
    ERROR_EVENT,
    STREAM_HEAD,
    WHOLE_STREAM,
    FaultServer,
    answers,
    chunked,
    event,
    http,
    streams,
    streams_then,
)

from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind

TWO = [event("Hel"), event("lo")]
UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


def last_event(body: bytes) -> dict[str, object]:
    """The error that ends a broken stream."""
    assert body.endswith(b"\n\n")
    assert b"[DONE]" not in body
    line = body.rstrip(b"\n").split(b"\n\n")[-1]
    assert line.startswith(b"data: ")
    found: dict[str, object] = json.loads(line[6:])["error"]
    return found


@pytest.mark.parametrize(
    ("ending", "kind", "code"),
    [
        (lambda call: call.reset(), OutcomeKind.RESET, "upstream_reset"),
        (lambda call: call.close(), OutcomeKind.RESET, "upstream_reset"),
        (lambda call: call.half_close(), OutcomeKind.RESET, "upstream_reset"),
        (lambda call: call.write(b"zz\r\nabc"), OutcomeKind.PROTOCOL, "upstream_protocol_error"),
    ],
    ids=["row 7: RST", "row 8: FIN", "row 10: half-close", "row 23: bad chunk"],
)
async def test_a_cut_stream_ends_with_an_error(ending, kind, code):
    """BR-01-05, BR-01-07: what came before is intact; an error event, no [DONE], no final chunk; no retry."""
    async with FaultServer(streams_then(TWO, ending)) as engine, plane(engine, engine) as p, p.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n" + STREAM)
        status, _ = await client.head()
        assert status == 200
        chunks = client.chunks()
        body = b""
        while len(body) < sum(map(len, TWO)):
            body += await anext(chunks)
        (await engine.call()).gate.set()
        try:
            async for piece in chunks:
                body += piece
        except (asyncio.IncompleteReadError, ConnectionError):
            complete = False
        else:
            complete = True
        assert not complete
        assert body.startswith(b"".join(TWO))
        assert last_event(body)["code"] == code
        assert p.outcomes == [("w0", kind)]
        (record,) = await p.notes.until(1)
        assert record.outcome is Terminal.UPSTREAM_ERROR
        assert record.output_tokens == 2


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (STREAM_HEAD + chunked(TWO[0]) + b"5\r\nabc", OutcomeKind.RESET),
        (STREAM_HEAD + chunked(TWO[0]) + chunked(b""), OutcomeKind.RESET),
        (UNFRAMED + TWO[0], OutcomeKind.RESET),
        (UNFRAMED.replace(b"\r\n\r\n", b"\r\ncontent-length: 9999\r\n\r\n") + TWO[0], OutcomeKind.RESET),
    ],
    ids=["row 25: in a chunk", "no finish, no [DONE]", "row 9: no length", "short length"],
)
async def test_an_incomplete_stream_is_not_a_success(data: bytes, kind: OutcomeKind):
    async with FaultServer(answers(data, then_close=True)) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.status == 200
        assert not answer.complete
        assert answer.body.startswith(TWO[0])
        assert last_event(answer.body)["type"] == "server_error"
        assert p.outcomes == [("w0", kind)]


async def test_a_stream_without_length_that_says_it_is_done():
    script = answers(UNFRAMED + b"".join(WHOLE_STREAM), then_close=True)
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == b"".join(WHOLE_STREAM)
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_an_unfinished_event_is_not_in_the_way_of_the_error():
    """Half an event would swallow the error event behind it."""
    data = STREAM_HEAD + chunked(TWO[0] + TWO[1][:20])
    async with FaultServer(answers(data, then_close=True)) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.body.startswith(TWO[0] + b"data: {")
        assert last_event(answer.body)["code"] == "upstream_reset"


@pytest.mark.parametrize("cut", [0, 1, 20])
@pytest.mark.parametrize("apart", [False, True], ids=["at once", "apart"])
async def test_an_unfinished_event_is_dropped_from_a_stream_that_ends_unfinished(cut: int, apart: bool):
    """Complete by its framing, but neither finish reason nor [DONE]: whole events, then the error event."""

    async def script(call):
        await call.send(STREAM_HEAD + chunked(TWO[0]))
        if apart:
            await call.gate.wait()
        last = chunked(TWO[1] + TWO[0][:cut])
        await call.send(last + (b"" if apart else chunked(b"")))
        if apart:
            await asyncio.sleep(0.05)
            await call.send(chunked(b""))

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(STREAM))
        (await engine.call()).gate.set()
        answer = await client.answer()
        assert not answer.complete
        assert answer.body.startswith(b"".join(TWO) + b'data: {"error"')
        assert last_event(answer.body)["code"] == "upstream_reset"


async def test_an_error_event_in_the_middle_is_an_error():
    """Row 27: forwarded, and no success, [DONE] or not."""
    events = [TWO[0], ERROR_EVENT, DONE]
    async with FaultServer(streams(events)) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == b"".join(events)
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.reason) == (Terminal.UPSTREAM_ERROR, "error_event")
        assert p.outcomes == [("w0", OutcomeKind.BUSY)]


async def test_done_alone_is_not_success():
    async with FaultServer(streams([*TWO, DONE])) as engine, plane(engine) as p, p.client() as client:
        assert (await client.post(STREAM)).complete
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.reason) == (Terminal.UPSTREAM_ERROR, "no_finish_reason")
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_a_stream_that_stands_still():
    """Row 18."""
    async with (
        FaultServer(streams(TWO, end=False)) as engine,
        plane(engine, token_gap_s=0.2) as p,
        p.client() as client,
    ):
        answer = await client.post(STREAM)
        assert not answer.complete
        assert answer.body.startswith(b"".join(TWO))
        assert last_event(answer.body)["code"] == "gap_timeout"
        assert "nothing for 0.2 s (timeouts.token_gap_s)" in last_event(answer.body)["message"]
        assert p.outcomes == [("w0", OutcomeKind.GAP_TIMEOUT)]
        await engine.until(lambda: engine.open_connections == 0)


@pytest.mark.parametrize(
    "script",
    [answers(STREAM_HEAD + chunked(b"".join(WHOLE_STREAM)), then_close=True), streams(end=False)],
    ids=["closed", "stands still"],
)
async def test_a_stream_that_lacks_nothing_but_its_last_chunk_is_whole(script):
    """Its client has [DONE]: an error behind it would be an error in vain."""
    async with FaultServer(script) as engine, plane(engine, token_gap_s=0.2) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == b"".join(WHOLE_STREAM)
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.finish_reason) == (Terminal.OK, "stop")
        assert p.outcomes == [("w0", OutcomeKind.OK)]
        await engine.until(lambda: engine.open_connections == 0)


async def test_a_slow_stream_is_kept():
    """Row 17: longer in all than the gap, never as long between two events."""

    async def script(call):
        await call.send(STREAM_HEAD)
        for _ in range(8):
            await call.send(chunked(event("x")))
            await asyncio.sleep(0.1)
        await call.send(chunked(event("", finish="stop") + DONE) + chunked(b""))

    async with FaultServer(script) as engine, plane(engine, token_gap_s=0.4) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body.count(b"data:") == 10
        assert p.dispatcher.tokens == 9
        assert p.notes.gaps
        assert all(0.02 < gap < 0.4 for gap in p.notes.gaps)


async def test_the_total_time_of_a_stream():
    async with FaultServer(streams(TWO, end=False)) as engine, plane(engine, total_s=0.2) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert last_event(answer.body)["code"] == "deadline_exceeded"
        assert p.outcomes == [("w0", OutcomeKind.DEADLINE)]


async def test_comments_pass_and_are_no_token():
    """BR-01-03."""
    comment = b": PROCESSING\n\n"
    first_due = asyncio.Event()

    async def script(call):
        await call.send(STREAM_HEAD + chunked(comment) + chunked(comment))
        await first_due.wait()
        await call.send(
            chunked(event("a")) + chunked(comment) + chunked(event("", finish="stop") + DONE) + chunked(b"")
        )

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n" + STREAM)
        await engine.call()
        await asyncio.sleep(0.05)
        assert p.dispatcher.first_tokens == 0
        first_due.set()
        answer = await client.answer()
        assert answer.body == comment * 2 + event("a") + comment + event("", finish="stop") + DONE
        assert p.dispatcher.tokens == 2


def beside(chunk: bytes, usage: object) -> bytes:
    """The same chunk with a usage member."""
    return chunk.replace(b'"object"', b'"usage":%b,"object"' % json.dumps(usage).encode())


STOP = event("", finish="stop")
VARIANTS = {
    "A: usage in a last chunk": [TWO[0], STOP, event(usage=USAGE), DONE],
    "B: usage beside the finish reason": [TWO[0], beside(STOP, USAGE), DONE],
    "C: usage null everywhere": [beside(TWO[0], None), beside(STOP, None), event(usage=USAGE), DONE],
}


@pytest.mark.parametrize("name", list(VARIANTS))
async def test_usage_is_read_in_every_place(name: str):
    """BR-01-09."""
    events = VARIANTS[name]
    async with FaultServer(streams(events)) as engine, plane(engine) as p, p.client() as client:
        assert (await client.post(STREAM)).body == b"".join(events)
        (record,) = await p.notes.until(1)
        assert (record.prompt_tokens, record.output_tokens, record.outcome) == (11, 3, Terminal.OK)


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
async def test_line_ends_and_characters_that_look_like_them(ends: bytes, bytewise: bool):
    """BR-01-11."""
    odd = event("a\u2028b\u2029c\u0085d", finish="stop").replace(b"data: ", b"data:")
    events = [one.replace(b"\n", ends) for one in (event("x"), odd, event(usage=USAGE), DONE)]
    script = streams(events, bytewise=bytewise)
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.body == b"".join(events)
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.output_tokens) == (Terminal.OK, 3)


async def test_an_event_of_many_megabytes():
    """Row 26, BR-01-02: it passes, in pieces, and is not kept."""
    huge = event("y" * (8 << 20))
    events = [event("x"), huge, event("", finish="stop"), DONE]
    async with FaultServer(streams(events)) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == b"".join(events)
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_garbage_in_a_stream_passes():
    events = [b"\xff\xfe\x00nonsense\n\n", b"data: not json\n\n", event("", finish="stop"), DONE]
    async with FaultServer(streams(events)) as engine, plane(engine) as p, p.client() as client:
        assert (await client.post(STREAM)).body == b"".join(events)
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_a_coded_stream_passes_unread():
    """BR-09-01."""
    body = gzip.compress(b"".join(WHOLE_STREAM))
    head = STREAM_HEAD.replace(b"server: uvicorn", b"content-encoding: gzip")
    async with (
        FaultServer(answers(head + chunked(body) + chunked(b""))) as engine,
        plane(engine) as p,
        p.client() as client,
    ):
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == body
        assert answer.value(b"content-encoding") == b"gzip"
        assert p.outcomes == [("w0", OutcomeKind.OK)]


@pytest.mark.parametrize("status", [200, 400])
async def test_a_coded_body_keeps_its_coding(status: int):
    """BR-09-01."""
    body = gzip.compress(b'{"error": {"message": "readable"}}')
    script = answers(http(status, body, "content-encoding: gzip"))
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post()
        assert (answer.status, answer.body) == (status, body)
        assert answer.value(b"content-encoding") == b"gzip"
        assert answer.value(b"content-length") == str(len(body)).encode()


def typed_event(kind: str, **members: object) -> bytes:
    data = json.dumps({"type": kind, **members}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


async def test_other_apis_have_other_ends():
    typed = [
        typed_event("response.created", response={"error": None}),
        typed_event("response.output_text.delta", delta="hi"),
        typed_event("response.completed", response={"usage": {"input_tokens": 4, "output_tokens": 2}}),
    ]
    messages = [
        typed_event("message_start", message={"usage": {"input_tokens": 4, "output_tokens": 1}}),
        typed_event("content_block_delta", delta={"text": "hi"}),
        typed_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        typed_event("message_stop"),
    ]
    for path, events in (("/v1/responses", typed), ("/v1/messages", messages)):
        async with FaultServer(streams(events)) as engine, plane(engine) as p, p.client() as client:
            assert (await client.post(STREAM, path)).body == b"".join(events)
            (record,) = await p.notes.until(1)
            assert (record.outcome, record.prompt_tokens, record.output_tokens) == (Terminal.OK, 4, 2)
    async with FaultServer(streams(messages[:2])) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM, "/v1/messages")
        assert not answer.complete
        assert answer.body.split(b"\n\n")[-2].startswith(b"event: error\n")


async def test_comments_alone_do_not_keep_a_stream_from_its_gap_limit():
    """Heartbeats of an engine that makes nothing any more: the client would wait for ever."""

    async def script(call):
        await call.send(STREAM_HEAD + chunked(event("a")))
        while not call.gone.is_set():
            await call.send(chunked(b": ping\n\n"))
            await asyncio.sleep(0.02)

    async with FaultServer(script) as engine, plane(engine, token_gap_s=0.3) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert not answer.complete
        assert answer.body.startswith(event("a") + b": ping\n\n")
        assert last_event(answer.body)["code"] == "gap_timeout"
        assert p.outcomes == [("w0", OutcomeKind.GAP_TIMEOUT)]


async def test_a_long_event_that_comes_slowly_is_progress():
    async def script(call):
        await call.send(STREAM_HEAD + chunked(event("a")))
        await call.send(chunked(b"data: {"))
        for _ in range(20):
            await call.send(chunked(b'"x":1,'))
            await asyncio.sleep(0.05)
        await call.send(chunked(b'"y":1}\n\n' + event("", finish="stop") + DONE) + chunked(b""))

    async with FaultServer(script) as engine, plane(engine, token_gap_s=0.5) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert p.outcomes == [("w0", OutcomeKind.OK)]
