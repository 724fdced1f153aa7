"""Clients that read slowly, or nothing before they have sent everything; and what is counted when one leaves."""

from __future__ import annotations

import asyncio
import socket
import time

from data_plane import STREAM, Plane, plane, request, until
from fault_server import STREAM_HEAD, FaultServer, answers, chunked, event, floods, http, ok

from gateway.records import Terminal


def narrow(p: Plane) -> socket.socket:
    """A client whose kernel takes little at a time."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", p.port))
    sock.setblocking(False)
    return sock


async def test_a_client_that_reads_slowly_is_not_taken_for_one_that_stands_still():
    """BR-02-03: what counts is that it takes bytes, not that the buffers empty enough for the next write."""
    loop = asyncio.get_running_loop()
    script = answers(http(200, b'{"a":"' + b"y" * 4_000_000 + b'"}'))
    async with FaultServer(script) as engine, plane(engine, write_stall_s=0.4) as p:
        with narrow(p) as sock:
            await loop.sock_sendall(sock, request())
            await until(lambda: any(c.paused_at is not None for c in p.server._connections))
            until_then = time.monotonic() + 1.6  # four times as long as a stall may take
            while time.monotonic() < until_then:
                assert await loop.sock_recv(sock, 2048)
                await asyncio.sleep(0.05)
            assert p.notes.records == []
        (record,) = await p.notes.until(1)
        assert record.reason == "disconnected"


async def test_little_is_kept_for_a_client_that_stands_still():
    """Row 37: neither here nor in the kernel."""
    script = floods(event("x" * 4000), 50_000)
    async with FaultServer(script) as engine, plane(engine, write_stall_s=0.4) as p:
        with narrow(p) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, request(STREAM))
            (record,) = await p.notes.until(1)
        assert record.reason == "write_stall"
        assert record.bytes_out < 1 << 20


async def test_a_body_that_is_too_large_is_answered_also_to_clients_that_send_all_of_it_first():
    """BR-04-05: a 413, not a reset; up to twice what is allowed."""
    loop = asyncio.get_running_loop()
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=4 << 20) as p:
        for size in ((4 << 20) + 1, 8 << 20):
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
            body = b"x" * size
            whole = b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body)
            pieces = b"".join(chunked(body[at : at + 65536]) for at in range(0, size, 65536)) + chunked(b"")
            for sent in (whole, head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces):
                with socket.socket() as sock:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, ("127.0.0.1", p.port))
                    await loop.sock_sendall(sock, sent)
                    answer = await loop.sock_recv(sock, 65536)
                    assert answer.startswith(b"HTTP/1.1 413 ")
        assert engine.requests == []


async def test_a_client_that_sends_on_for_ever_after_a_refusal_is_cut_off():
    """Row 47: what is read in vain is bounded in bytes."""
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=1 << 20) as p, p.client() as client:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
        sent = 0
        try:
            while sent < 64 << 20:
                await client.send(b"x" * 65536)
                sent += 65536
        except ConnectionError:
            pass
        assert sent < 32 << 20
        await until(lambda: p.server.stats().connections == 0)


async def test_what_a_stream_brought_until_its_client_left_is_counted():
    """Row 42: tokens are charged as served, also those since the last report to the scheduler."""

    async def script(call):
        await call.send(STREAM_HEAD + chunked(event("x")))
        await call.gate.wait()
        await call.send(b"".join(chunked(event("x")) for _ in range(99)))
        await call.gone.wait()

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        await client.send(request(STREAM))
        await client.head()
        read = await client.reader.readuntil(b"\n\n")
        engine.calls[0].gate.set()
        while read.count(b"data:") < 100:
            read += await client.reader.read(65536)
        client.writer.transport.abort()
        (record,) = await p.notes.until(1)
        assert record.outcome is Terminal.CANCELLED
        assert record.output_tokens == 100
        assert p.dispatcher.full[0].output_tokens == 100
