"""Workers that fail before anything of their answer went out: fault matrix rows 1-13, 19-24 and 34."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import pytest
from data_plane import STREAM, plane, request
from fault_server import (
    ANSWER,
    DONE,
    ERROR_EVENT,
    STREAM_HEAD,
    WHOLE_STREAM,
    FaultServer,
    answers,
    chunked,
    closed_port,
    closes,
    hangs,
    http,
    ok,
    resets,
    streams,
)

from gateway.http.answers import HEARTBEAT
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind

SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{}"
CL_AND_TE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"

BEFORE_THE_FIRST_BYTE = [
    ("row 5: RST before any byte", resets(), OutcomeKind.RESET),
    ("row 6: FIN before any byte", closes(), OutcomeKind.RESET),
    ("row 9: FIN after a stream's head", answers(STREAM_HEAD, then_close=True), OutcomeKind.RESET),
    (
        "row 10: comments only, then FIN",
        answers(STREAM_HEAD + chunked(b": hi\n\n"), then_close=True),
        OutcomeKind.RESET,
    ),
    ("a stream that ends empty", answers(STREAM_HEAD + chunked(b"")), OutcomeKind.RESET),
    ("row 11: 500", answers(http(500, b"secret stack")), OutcomeKind.SERVER_ERROR),
    ("row 11: 500 cut short", answers(http(500, b"secret")[:-3], then_close=True), OutcomeKind.SERVER_ERROR),
    ("row 12: 503", answers(http(503, b"", "retry-after: 5")), OutcomeKind.BUSY),
    ("row 13: 429", answers(http(429, b"{}")), OutcomeKind.BUSY),
    ("row 19: garbage", answers(b"\x15\x03\x01\x00\x02\x02\x16", then_close=True), OutcomeKind.PROTOCOL),
    ("row 19: bad status", answers(b"HTTP/1.1 OK fine\r\n\r\n"), OutcomeKind.PROTOCOL),
    ("row 19: status 000", answers(b"HTTP/1.1 000 X\r\ncontent-length: 0\r\n\r\n"), OutcomeKind.PROTOCOL),
    ("row 19: HTTP/2.0", answers(b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n"), OutcomeKind.PROTOCOL),
    ("row 20: short length", answers(SHORT, then_close=True), OutcomeKind.RESET),
    ("row 23: length and chunks", answers(CL_AND_TE), OutcomeKind.PROTOCOL),
    ("row 23: NUL in a field", answers(b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n"), OutcomeKind.PROTOCOL),
    ("row 23: CR in a field", answers(b"HTTP/1.1 200 OK\r\nx: a\rb\r\n\r\n"), OutcomeKind.PROTOCOL),
    ("row 23: bad chunk", answers(STREAM_HEAD + b"zz\r\n"), OutcomeKind.PROTOCOL),
    ("row 24: endless head", answers(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000), OutcomeKind.PROTOCOL),
    ("row 24: long head at once", answers(http(200, ANSWER, f"x: {'a' * 100_000}")), OutcomeKind.PROTOCOL),
    ("row 24: 1xx flood", answers(b"HTTP/1.1 103 Early\r\n\r\n" * 50), OutcomeKind.PROTOCOL),
    (
        "switching protocols",
        answers(b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
        OutcomeKind.PROTOCOL,
    ),
    ("row 34: redirect", answers(http(307, b"", "location: http://127.0.0.1:1/")), OutcomeKind.PROTOCOL),
    ("503 in a 200 stream", streams([ERROR_EVENT, DONE]), OutcomeKind.BUSY),
    ("the engine gave up", answers(http(200, ANSWER.replace(b'"stop"', b'"abort"'))), OutcomeKind.SERVER_ERROR),
]


@pytest.mark.parametrize(("name", "script", "kind"), BEFORE_THE_FIRST_BYTE, ids=[x[0] for x in BEFORE_THE_FIRST_BYTE])
async def test_another_worker_answers(name, script, kind):
    async with FaultServer(script) as bad, FaultServer(ok()) as good, plane(bad, good) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert (answer.status, answer.body) == (200, ANSWER)
        assert answer.value(b"x-headrace-worker") == b"w1"
        assert answer.value(b"x-headrace-attempts") == b"2"
        assert p.outcomes == [("w0", kind), ("w1", OutcomeKind.OK)]
        assert len(bad.requests) == len(good.requests) == 1
        assert bad.requests[0].values(b"x-request-id") == good.requests[0].values(b"x-request-id")
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.attempts, record.worker) == (Terminal.OK, 2, "w1")
        # A connection on which anything was odd is gone; only whole answers leave one behind.
        whole = kind in (OutcomeKind.BUSY, OutcomeKind.SERVER_ERROR) or "empty" in name
        await bad.until(lambda: whole or bad.open_connections == 0)


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (resets(), 502, "upstream_reset"),
        (answers(http(500, b"secret stack at /srv/x.py")), 500, "upstream_error"),
        (answers(http(502, b"<html>secret</html>", content_type="text/html")), 502, "upstream_error"),
        (answers(http(503, b"", "retry-after: 5")), 429, "queue_full"),
        (answers(http(429, b"{}", "retry-after: 5000")), 429, "queue_full"),
        (answers(b"nonsense", then_close=True), 502, "upstream_protocol_error"),
        (answers(http(307, b"", "location: http://127.0.0.1:1/")), 502, "upstream_redirect"),
        (streams([ERROR_EVENT, DONE]), 429, "queue_full"),
    ],
)
@pytest.mark.parametrize("body", [STREAM, b"{}"])
async def test_when_every_worker_fails_so(script, status, code, body):
    """Rows 3, 11, 14; BR-01-13: a status at once, our own words, never the engine's."""
    async with FaultServer(script) as one, FaultServer(script) as two, plane(one, two) as p, p.client() as client:
        answer = await client.post(body)
        assert answer.status == status
        assert answer.error["code"] == code
        assert b"secret" not in answer.body
        assert answer.value(b"content-type") == b"application/json"
        assert answer.value(b"x-should-retry") == (b"true" if status == 429 else b"false")
        assert answer.value(b"x-request-id")
        if status == 429:
            expected = {b"5", b"60", b"2"}
            assert answer.value(b"retry-after") in expected
        assert len(p.outcomes) == 2
        (record,) = await p.notes.until(1)
        assert record.outcome is (Terminal.REJECTED if status == 429 else Terminal.UPSTREAM_ERROR)
        # The connection is still good for the next request.
        one.script = ok()
        assert (await client.post()).status == 200


async def test_refused_connections():
    """Rows 1 and 3."""
    dead = f"http://127.0.0.1:{closed_port()}"
    async with FaultServer(ok()) as good, plane(dead, good) as p, p.client() as client:
        assert (await client.post()).body == ANSWER
        assert p.outcomes == [("w0", OutcomeKind.CONNECT_FAILED), ("w1", OutcomeKind.OK)]
        assert p.notes.attempts[0] == ("pool-a", "w0", "connect_refused")
    async with plane(dead) as p, p.client() as client:
        answer = await client.post()
        assert (answer.status, answer.error["code"]) == (503, "no_healthy_worker")
        assert answer.value(b"retry-after")
        assert answer.value(b"x-should-retry") == b"true"


async def test_a_connection_that_never_opens():
    """Row 2: the accept queue is full and nobody accepts."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for one in fillers:
            one.setblocking(False)
            one.connect_ex(hole.getsockname())
        try:
            url = f"http://127.0.0.1:{hole.getsockname()[1]}"
            async with FaultServer(ok()) as good, plane(url, good) as p, p.client() as client:
                p.pools["w0"].connect_s = 0.2
                assert (await client.post()).body == ANSWER
                assert p.notes.attempts[0] == ("pool-a", "w0", "connect_timeout")
        finally:
            for one in fillers:
                one.close()


@pytest.mark.parametrize("body", [STREAM, b"{}"])
@pytest.mark.parametrize("script", [hangs(), streams([], end=False), streams([b": PROCESSING\n\n"], end=False)])
async def test_no_first_token_in_time(script, body):
    """Row 4, BR-03-05: a head or a comment does not stop the clock."""
    async with FaultServer(script) as bad, plane(bad, ttft_s=0.2) as p, p.client() as client:
        answer = await client.post(body)
        assert (answer.status, answer.error["code"]) == (504, "ttft_timeout")
        assert "within 0.2" in answer.error["message"]
        assert "(timeouts.ttft_s" in answer.error["message"]
        assert p.outcomes == [("w0", OutcomeKind.TTFT_TIMEOUT)]
        await bad.until(lambda: bad.open_connections == 0)
        (record,) = await p.notes.until(1)
        assert record.outcome is Terminal.TIMEOUT


async def test_the_deadline_of_a_request():
    async with FaultServer(hangs()) as bad, plane(bad) as p, p.client() as client:
        p.gate.deadline_s = 0.2
        answer = await client.post(STREAM)
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
        assert p.outcomes == [("w0", OutcomeKind.DEADLINE)]


@pytest.mark.parametrize(
    "surplus",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nWRONG", b"garbage", b"HTTP/1.1 200", b"\0" * 10],
)
async def test_bytes_behind_an_answer(surplus: bytes):
    """Row 21: delivered, and the connection never used again."""
    async with FaultServer(answers(http(200, ANSWER) + surplus)) as engine, plane(engine) as p, p.client() as client:
        for number in range(3):
            assert (await client.post()).body == ANSWER
            assert len(engine.connections) == number + 1
        assert p.pools["w0"].idle_connections == 0


async def test_a_late_answer_that_nobody_asked_for():
    """Row 22: it arrives on an idle connection, right before the next request, time and again."""
    late = http(200, b"WRONG")
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for _ in range(300):
            assert (await client.post()).body == ANSWER
            connection = engine.connections[-1]
            connection.transport.write(late)
        assert {kind for _, kind in p.outcomes} == {OutcomeKind.OK}
        assert all(b"WRONG" not in one.body for one in engine.requests)


async def test_an_idle_connection_is_asked_about_before_it_is_used():
    """Row 22, the narrow part: the bytes are in the kernel, the loop has not seen them yet."""
    for late in (http(200, b"WRONG"), b"\0"):
        async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
            await client.post()
            assert p.pools["w0"].idle_connections == 1
            os.write(engine.connections[-1].transport.get_extra_info("socket").fileno(), late)
            assert p.pools["w0"].take() is None
            assert (await client.post()).body == ANSWER


async def test_a_stale_connection_is_replaced_for_free():
    """BR-03-01: the worker closes idle connections; no attempt is spent and nothing is held against it."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for _ in range(3):
            assert (await client.post()).body == ANSWER
            engine.connections[-1].transport.close()
        # The worker reads the request and resets: on a reused connection that looks the same from here.
        engine.scripts = [ok(), resets(), ok()]
        assert (await client.post()).body == ANSWER
        answer = await client.post()
        assert answer.value(b"x-headrace-attempts") == b"1"
        assert {kind for _, kind in p.outcomes} == {OutcomeKind.OK}


async def test_a_fresh_connection_is_not_resent():
    async with FaultServer(resets()) as engine, plane(engine) as p, p.client() as client:
        assert (await client.post()).status == 502
        assert len(engine.requests) == 1
        assert p.outcomes == [("w0", OutcomeKind.RESET)]


async def test_idle_connections_are_closed_before_the_worker_would():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        p.pools["w0"].idle_s = 0.05
        await client.post()
        assert p.pools["w0"].idle_connections == 1
        await engine.until(lambda: engine.open_connections == 0)
        assert p.pools["w0"].idle_connections == 0


@pytest.mark.parametrize("field", ["connection: close", "Connection: keep-alive, Close"])
async def test_a_connection_that_will_close_is_not_kept(field: str):
    async with FaultServer(answers(http(200, ANSWER, field))) as engine, plane(engine) as p, p.client() as client:
        await client.post()
        assert p.pools["w0"].idle_connections == 0
        await engine.until(lambda: engine.open_connections == 0)


async def test_an_answer_before_the_question_was_read():
    """It is passed on; half a request in the pipe makes the connection useless."""

    async def early(call):
        raise AssertionError("the body never comes whole")

    body = b"x" * (8 << 20)
    async with FaultServer(early) as engine, plane(engine) as p, p.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        client.writer.write(body)
        await engine.until(lambda: len(engine.connections) == 1 and len(engine.connections[0].everything) > 0)
        engine.connections[0].transport.pause_reading()
        engine.connections[0].transport.write(http(400, b'{"error": {"message": "too long"}}'))
        answer = await client.answer()
        assert answer.status == 400
        assert p.pools["w0"].idle_connections == 0


async def test_the_engines_own_4xx_pass_byte_for_byte():
    """BR-09-03, BR-01-13: relayed, no retry, no harm to the worker."""
    words, model = b"its own words", b"The model `tiny` does not exist."
    cases = [(status, words, "client_error") for status in (400, 401, 404, 422)]
    for status, message, kind in (*cases, (404, model, "misrouted")):
        body = b'{"error":{"message":"%b","type":"BadRequestError","param":null,"code":%d}}' % (message, status)
        async with FaultServer(answers(http(status, body))) as engine, plane(engine) as p, p.client() as client:
            answer = await client.post(STREAM)
            assert (answer.status, answer.body) == (status, body)
            assert answer.value(b"x-should-retry") == b"false"
            assert len(engine.requests) == 1
            assert [str(k) for _, k in p.outcomes] == [kind]
            (record,) = await p.notes.until(1)
            assert record.outcome is Terminal.CLIENT_ERROR
            assert p.pools["w0"].idle_connections == 1


async def test_a_4xx_of_another_type_and_length():
    page = b"<html>" + b"x" * 300_000 + b"</html>"
    script = answers(http(404, page, content_type="text/html"))
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert (answer.status, answer.body) == (404, page)
        assert answer.value(b"content-type") == b"text/html"


async def test_an_error_event_that_blames_the_client():
    payload = b'{"error": {"message": "no such thing", "type": "BadRequestError", "param": null, "code": 400}}'
    script = streams([b"data: " + payload + b"\n\n", DONE])
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post(STREAM)
        assert (answer.status, answer.body) == (400, payload)
        assert answer.value(b"content-type") == b"application/json"
        assert p.outcomes == [("w0", OutcomeKind.CLIENT_ERROR)]


async def test_a_worker_that_is_gone_from_the_registry():
    async with FaultServer(ok()) as good, plane(good, good) as p, p.client() as client:
        gone = p.pools.pop("w0")
        assert (await client.post()).body == ANSWER
        assert p.outcomes[0] == ("w0", OutcomeKind.LOCAL)
        gone.close()


@pytest.mark.parametrize("early", [b"", b": comment\n\n", b": comment\n\ndata: {"])
async def test_the_head_is_held_no_longer_than_told(early: bytes):
    """After head_hold_s a comment goes out; then what came, and the first event, as if nothing had been."""
    events = early + (b'"a":1}\n\n' if early.endswith(b"{") else b"") + b"".join(WHOLE_STREAM)

    async def late(call):
        await call.send(STREAM_HEAD + (chunked(early) if early else b""))
        await call.gate.wait()
        await call.send(chunked(events[len(early) :]) + chunked(b""))

    async with FaultServer(late) as engine, plane(engine, head_hold_s=0.1) as p, p.client() as client:
        await client.send(request(STREAM))
        status, _ = await client.head()
        assert status == 200
        chunks = client.chunks()
        assert await anext(chunks) == HEARTBEAT
        assert p.dispatcher.first_tokens == 0
        (await engine.call()).gate.set()
        assert b"".join([piece async for piece in chunks]) == events
        assert p.dispatcher.first_tokens == 1
        assert p.outcomes == [("w0", OutcomeKind.OK)]


async def test_many_at_once_over_few_slots():
    """Everything queued is served, in its turn, and the books are even."""
    async with FaultServer(streams()) as engine, plane(engine, slots=3) as p:

        async def one() -> None:
            async with p.client() as client:
                assert (await client.post(STREAM)).body == b"".join(WHOLE_STREAM)

        async with asyncio.timeout(20):
            await asyncio.gather(*(one() for _ in range(60)))
        assert len(engine.connections) <= 3
        assert len(await p.notes.until(60)) == 60


async def test_our_own_lack_of_descriptors_is_not_the_workers_fault():
    """BR-12-03."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        assert (await client.post(path="/livez")).status == 200
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            answer = await client.post()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (answer.status, answer.error["code"]) == (503, "gateway_overloaded")
        assert p.outcomes == [("w0", OutcomeKind.LOCAL)]
        assert (await client.post()).body == ANSWER
