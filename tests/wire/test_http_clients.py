"""Clients that leave, stall or send too much: rows 37-48 and 52 of the fault matrix; BR-02-*, BR-04-*, BR-12-*."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct

import pytest
from data_plane import STREAM, Client, Plane, plane, request, until
from fault_server import DONE, STREAM_HEAD, FaultServer, answers, chunked, event, floods, hangs, http, ok, streams

from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind


def leave(client: Client, how: str) -> None:
    """Go away by FIN, RST or closing only the sending side."""
    transport = client.writer.transport
    if how == "half-close":
        client.writer.write_eof()
        return
    if how == "RST":
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def gone(p: Plane, terminal: Terminal = Terminal.CANCELLED) -> None:
    """The request has ended as a cancelled one, and nothing of it is left."""
    (record,) = await p.notes.until(1)
    assert record.outcome is terminal
    assert not p.dispatcher.held
    assert not p.dispatcher.queue


HOW = pytest.mark.parametrize("how", ["FIN", "RST", "half-close"])


@HOW
async def test_leaving_while_queued(how: str):
    """Row 40, BR-02-01: no byte reaches a worker."""
    async with FaultServer(hangs()) as engine, plane(engine, slots=0) as p, p.client() as client:
        await client.send(request())
        await until(lambda: len(p.dispatcher.queue) == 1)
        leave(client, how)
        await gone(p)
        assert engine.connections == []
        assert p.notes.records[0].status == 499


@HOW
async def test_leaving_while_connecting(how: str):
    async with FaultServer(hangs()) as engine, plane(engine) as p, p.client() as client:
        opened = asyncio.Event()
        connect = p.pools["w0"].connect

        def held(sink):
            opened.set()

            async def later():
                await asyncio.Event().wait()

            return asyncio.get_running_loop().create_task(later())

        p.pools["w0"].connect = held
        await client.send(request())
        await opened.wait()
        leave(client, how)
        await gone(p)
        assert p.outcomes == [("w0", OutcomeKind.CLIENT_GONE)]
        p.pools["w0"].connect = connect


@HOW
@pytest.mark.parametrize("body", [b"{}", STREAM])
async def test_leaving_before_the_first_token(how: str, body: bytes):
    """Row 41 and 44."""
    async with FaultServer(hangs()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(body))
        call = await engine.call()
        leave(client, how)
        async with asyncio.timeout(1):
            await call.gone.wait()
        await gone(p)
        assert p.outcomes == [("w0", OutcomeKind.CLIENT_GONE)]


@HOW
async def test_leaving_in_the_middle_of_a_stream(how: str):
    """Row 42."""
    async with FaultServer(streams([event("x")], end=False)) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(STREAM))
        await client.head()
        await anext(client.chunks())
        leave(client, how)
        async with asyncio.timeout(1):
            await (await engine.call()).gone.wait()
        await gone(p)
        assert p.outcomes == [("w0", OutcomeKind.CLIENT_GONE)]
        assert p.notes.records[0].output_tokens == 1


@HOW
@pytest.mark.parametrize("count", [1, 40, 5000])
async def test_leaving_behind_pipelined_requests(how: str, count: int):
    """Row 43: reading never stops, so the end is seen behind any number of bytes."""
    async with FaultServer(hangs()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request())
        call = await engine.call()
        await client.send(request() * count)
        leave(client, how)
        async with asyncio.timeout(1):
            await call.gone.wait()
        await until(lambda: not p.dispatcher.held)
        assert len(engine.requests) == 1


async def test_leaving_behind_an_unread_body():
    async with FaultServer(hangs()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request())
        call = await engine.call()
        client.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n" + b"x" * 10_000_000)
        await client.writer.drain()
        leave(client, "FIN")
        async with asyncio.timeout(1):
            await call.gone.wait()


async def test_leaving_in_the_middle_of_a_request():
    """BR-04-07 (a): nothing was asked, nothing is sent."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(b"x" * 100)[:-50])
        leave(client, "FIN")
        await until(lambda: p.server.stats().connections == 0)
        assert p.notes.records == []
        assert p.gate.seen == []
        assert engine.connections == []


async def test_many_leave_at_once():
    """BR-02-05: everything is free at once and the loop goes on."""
    async with FaultServer(streams([event("x" * 5000)], end=False)) as engine, plane(engine) as p:
        clients = [await p.client().__aenter__() for _ in range(200)]
        for client in clients:
            await client.send(request(STREAM))
        await until(lambda: p.dispatcher.first_tokens == 200)
        for client in clients:
            leave(client, "FIN")
        await p.notes.until(200)
        assert {kind for _, kind in p.outcomes} == {OutcomeKind.CLIENT_GONE}
        await engine.until(lambda: engine.open_connections == 0)
        assert p.pools["w0"].open_connections == 0


async def test_a_reader_that_does_not_read():
    """Row 37, BR-02-03: the engine is slowed down, little is kept, and in the end the client is cut off."""
    script = floods(event("x" * 4000), 50_000)
    async with FaultServer(script) as engine, plane(engine, write_stall_s=0.5) as p:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", p.port))
            sock.sendall(request(STREAM))
            async with asyncio.timeout(10):
                await p.notes.until(1, 10)
        assert engine.sent < 30 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000
        assert p.notes.records[0].reason == "write_stall"
        assert p.outcomes == [("w0", OutcomeKind.CLIENT_GONE)]
        await engine.until(lambda: engine.open_connections == 0)


async def test_a_reader_that_did_not_read_the_answer_before():
    """The buffer is full when the second answer begins: that one is slowed down just as well."""
    scripts = [answers(http(200, b"[" + b"1," * 120_000 + b"1]"))] * 6
    script = floods(event("x" * 4000), 50_000)
    async with FaultServer(script, scripts) as engine, plane(engine, write_stall_s=0.5) as p:
        # Accepted sockets inherit it: the kernel takes little, so that it is the gateway's buffer that fills.
        p.server._servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", p.port))
            sock.sendall(request() * 6 + request(STREAM))
            await p.notes.until(7, 10)
        assert len(engine.requests) == 7
        assert engine.sent < 10 << 20
        assert p.outcomes[-1] == ("w0", OutcomeKind.CLIENT_GONE)


async def test_a_reader_that_pauses_and_goes_on_gets_everything():
    script = floods(event("x" * 4000), 3000)
    async with (
        FaultServer(script) as engine,
        plane(engine, write_stall_s=5, token_gap_s=1.0) as p,
        p.client() as client,
    ):
        client.writer.transport.pause_reading()
        await client.send(request(STREAM))
        await until(lambda: any(c.paused_at is not None for c in p.server._connections))
        await asyncio.sleep(1.3)  # longer than the gap: it is the client who is slow, not the worker
        client.writer.transport.resume_reading()
        answer = await client.answer()
        assert answer.complete
        assert answer.body == event("x" * 4000) * 3000 + DONE
        assert engine.sent == len(event("x" * 4000)) * 3000


@pytest.mark.parametrize("part", [b"POST /v1/chat", b"POST / HTTP/1.1\r\nHost: a\r\n"])
async def test_a_head_that_does_not_end(part: bytes):
    """Row 38, BR-02-07: the time runs over all of it, not over each byte."""
    async with FaultServer(ok()) as engine, plane(engine, header_s=0.3) as p, p.client() as client:
        await client.send(part)

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.05)
                client.writer.write(b"X")

        task = asyncio.create_task(drip())
        answer = await client.answer()
        task.cancel()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.value(b"connection") == b"close"
        assert engine.connections == []


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_does_not_end(framing: bytes):
    """Row 39."""
    async with FaultServer(ok()) as engine, plane(engine, body_s=0.3) as p, p.client() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n2\r\n")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert p.gate.seen == []
        assert engine.connections == []


async def test_a_connection_without_a_request():
    async with FaultServer(ok()) as engine, plane(engine, header_s=0.1, idle_s=0.2) as p:
        async with p.client() as client:
            assert await client.closed() == b""
        async with p.client() as client:
            assert (await client.post()).status == 200
            assert await client.closed() == b""


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
async def test_a_body_over_the_limit(framing: str):
    """Row 47: refused as soon as it is known, without reading on."""
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=100_000) as p, p.client() as client:
        if framing == "chunked":
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.writer.write(chunked(b"x" * 60_000) * 2)
        else:
            expect = b"Expect: 100-continue\r\n" if framing == "expect" else b""
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n" + expect + b"\r\n")
        async with asyncio.timeout(1):
            answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert answer.value(b"connection") == b"close"
        assert p.gate.seen == []
        await client.closed()
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=100_000) as p, p.client() as client:
        assert (await client.post(b"x" * 100_000)).status == 200


async def test_the_answer_survives_a_client_that_is_still_sending():
    """Row 47: closing with unread bytes would destroy the answer on its way."""
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=1000) as p, p.client() as client:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000)
        await asyncio.sleep(0.1)
        assert (await client.answer()).status == 413
        assert await client.closed() == b""


async def test_too_many_connections():
    """Row 52: the excess is closed at once; those that are there go on."""
    async with FaultServer(ok()) as engine, plane(engine, connections=3) as p:
        clients = [await p.client().__aenter__() for _ in range(3)]
        for client in clients:
            assert (await client.post()).status == 200
        async with p.client() as excess:
            assert await excess.closed() == b""
        assert p.server.stats().refused == 1
        leave(clients.pop(), "FIN")
        await until(lambda: p.server.stats().connections == 2)
        async with p.client() as client:
            assert (await client.post()).status == 200
        for client in clients:
            leave(client, "FIN")


async def test_draining_lets_streams_end():
    """BR-12-01."""

    async def script(call):
        await call.send(STREAM_HEAD + chunked(event("a")))
        await call.gate.wait()
        await call.send(chunked(event("", finish="stop") + DONE) + chunked(b""))

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client, p.client() as idle:
        await idle.post(path="/livez")
        await client.send(request(STREAM))
        await client.head()
        chunks = client.chunks()
        await anext(chunks)
        drained = asyncio.create_task(p.server.drain(5.0))
        assert await idle.closed() == b""
        with pytest.raises(ConnectionError):
            await p.client().__aenter__()
        assert not drained.done()
        (await engine.call()).gate.set()
        assert b"".join([piece async for piece in chunks]).endswith(DONE)
        assert await client.closed() == b""
        assert await drained is True


async def test_draining_too_long_cuts_with_an_error_event():
    async with FaultServer(streams([event("a")], end=False)) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(STREAM))
        await client.head()
        await anext(client.chunks())
        async with p.client() as waiting:
            engine.script = hangs()
            await waiting.send(request())
            await engine.call(1)
            assert await p.server.drain(0.05) is False
            assert b"shutting_down" in await client.closed()
            answer = await waiting.answer()
            assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert {kind for _, kind in p.outcomes} == {OutcomeKind.LOCAL}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("told", [True, False], ids=["at [DONE]", "before it"])
async def test_leaving_when_nothing_is_missing_but_the_last_chunk(how: str, told: bool):
    """Some clients close at `[DONE]`: they have everything, and are not counted as having left."""

    async def script(call):
        await call.send(STREAM_HEAD + chunked(event("a")) + chunked(event("", finish="stop") + DONE * told))
        await call.gate.wait()

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(STREAM))
        await client.head()
        seen = b""
        chunks = client.chunks()
        while not seen.endswith(DONE if told else b'"stop"}]}\n\n'):
            seen += await anext(chunks)
        leave(client, how)
        (record,) = await p.notes.until(1)
        assert record.outcome is (Terminal.OK if told else Terminal.CANCELLED)
        assert [kind for _, kind in p.outcomes] == [OutcomeKind.OK if told else OutcomeKind.CLIENT_GONE]
        assert record.finish_reason == ("stop" if told else None)
        await engine.until(lambda: engine.open_connections == 0)
