"""One request through the data plane: bytes, heads, streams, retries before the first byte, breaks after it."""

from __future__ import annotations

import asyncio
import gc

import pytest
from data_plane import STREAM, plane, request
from fault_server import (
    ANSWER,
    DONE,
    WHOLE_STREAM,
    FaultServer,
    answers,
    event,
    http,
    ok,
    streams,
)

from gateway.http.attempt import Attempt
from gateway.http.relay import Exchange
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


async def test_a_whole_answer_passes_with_our_fields():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(b'{"a": 1}', fields=b"X-Request-Id: mine-1\r\n")
        assert answer.status == 200
        assert answer.body == ANSWER
        assert answer.value(b"x-request-id") == b"mine-1"
        assert answer.value(b"x-headrace-pool") == b"pool-a"
        assert answer.value(b"x-headrace-worker") == b"w0"
        assert answer.value(b"x-headrace-class") == b"standard"
        assert answer.value(b"x-headrace-reason") == b"first pool that fits"
        assert answer.value(b"x-headrace-queue-ms") == b"1"
        assert answer.value(b"x-headrace-attempts") == b"1"
        assert answer.value(b"x-headrace-revision") == b"7"
        assert answer.value(b"server") is None
        assert engine.requests[0].line == b"POST /v1/chat/completions HTTP/1.1"
        assert engine.requests[0].body == b'{"a": 1}'
        assert engine.requests[0].values(b"host") == [f"127.0.0.1:{engine.port}".encode()]
        assert engine.requests[0].values(b"x-request-id") == [b"mine-1"]
        (record,) = await p.notes.until(1)
        assert record.outcome is Terminal.OK
        assert (record.status, record.prompt_tokens, record.output_tokens) == (200, 5, 2)
        assert (record.bytes_in, record.bytes_out) == (8, len(ANSWER))
        assert p.outcomes == [("w0", OutcomeKind.OK)]


@pytest.mark.parametrize("bytewise", [False, True])
async def test_a_stream_passes_byte_for_byte(bytewise: bool):
    events = [event("Hel"), event("你好😀"), event("", finish="stop"), event(usage=USAGE), DONE]
    script = streams(events, bytewise=bytewise)
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert answer.complete
        assert answer.body == b"".join(events)
        assert answer.value(b"content-type") == b"text/event-stream; charset=utf-8"
        (record,) = await p.notes.until(1)
        assert record.outcome is Terminal.OK
        assert record.finish_reason == "stop"
        assert (record.prompt_tokens, record.output_tokens) == (11, 3)
        assert record.ttft_s is not None
        assert p.dispatcher.first_tokens == 1
        assert p.dispatcher.tokens == len(events) - 1


async def test_connections_are_kept_on_both_sides():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for number in range(5):
            engine.scripts = [streams()] if number % 2 else []
            answer = await client.post(STREAM)
            assert answer.body == (b"".join(WHOLE_STREAM) if number % 2 else ANSWER)
        assert len(engine.connections) == 1
        assert p.pools["w0"].idle_connections == 1


async def test_a_request_sent_byte_by_byte_is_whole():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for byte in request(b'{"prompt":"x"}'):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).body == ANSWER
        assert engine.requests[0].body == b'{"prompt":"x"}'


async def test_a_chunked_request_is_forwarded_by_length():
    """BR-04-09."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + b"1\r\n{\r\n")
        await client.send(b'3\r\n"a"\r\n')
        await client.send(b"3\r\n:1}\r\n0\r\n\r\n")
        assert (await client.answer()).body == ANSWER
        assert engine.requests[0].body == b'{"a":1}'
        assert engine.requests[0].values(b"content-length") == [b"7"]


async def test_expect_100_continue():
    """BR-04-09."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{}")
        assert (await client.answer()).status == 200
        assert engine.requests[0].values(b"expect") == []


async def test_pipelined_requests_are_answered_in_order():
    scripts = [answers(http(200, b"[%d]" % number)) for number in range(3)]
    async with FaultServer(ok(), scripts) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(b"0") + request(b"1") + request(b"2"))
        assert [(await client.answer()).body for _ in range(3)] == [b"[0]", b"[1]", b"[2]"]
        assert [one.body for one in engine.requests] == [b"0", b"1", b"2"]
        assert p.server.stats().connections == 1


async def test_a_thousand_pipelined_requests_end_after_a_few():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(path="/livez", method="GET", body=b"") * 1000)
        data = await client.closed()
        count = data.count(b"HTTP/1.1 200 ")
        assert 1 <= count < 40
        assert data.count(b"connection: close") == 1
        assert p.server.stats().connections == 0


@pytest.mark.parametrize("size", [65535, 131073, 1048577, 8388608])
async def test_large_bodies_pass_both_ways(size: int):
    """BR-04-05; the answer is longer than what is held."""
    body = b'{"x":"' + b"y" * size + b'"}'
    async with FaultServer(answers(http(200, body))) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(body)
        assert answer.status == 200
        assert answer.body == body
        assert engine.requests[0].body == body
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_http_10_gets_an_unframed_stream_and_a_close():
    async with FaultServer(streams()) as engine, plane(engine) as p, p.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 15\r\n\r\n" + STREAM)
        answer = await client.answer()
        assert answer.value(b"transfer-encoding") is None
        assert answer.value(b"connection") == b"close"
        assert answer.body == b"".join(WHOLE_STREAM)


async def test_head_and_local_answers():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(b"", "/livez", method="HEAD"))
        answer = await client.answer(bodyless=True)
        assert answer.value(b"content-length") == b"15"
        answer = await client.post(path="/refused")
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found"
        assert answer.value(b"x-should-retry") == b"false"
        answer = await client.post(path="/broken")
        assert answer.status == 500
        assert answer.error["code"] == "internal"
        assert len(p.errors) == 1
        assert engine.requests == []


async def test_nothing_of_a_finished_request_waits_for_the_collector():
    """No circle of references is left, so memory stays flat and the collector has nothing to do."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        gc.collect()
        earlier = {id(one) for one in gc.get_objects() if isinstance(one, Exchange | Attempt)}
        gc.disable()
        try:
            for script in (ok(), streams(), answers(http(400, b"{}"))):
                engine.script = script
                await client.post(STREAM)
            made = [one for one in gc.get_objects() if isinstance(one, Exchange | Attempt)]
            left = [one for one in made if id(one) not in earlier]
        finally:
            gc.enable()
        assert left == []
