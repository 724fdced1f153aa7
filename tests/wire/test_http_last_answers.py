"""What a draining listener still answers: whoever was taken on is not turned away between two processes."""

from __future__ import annotations

import asyncio
import os
import socket

from data_plane import Plane, plane, request
from fault_server import FaultServer, ok

CUT = len(b"POST /v1/chat/completions HTTP/1.1\r\nHost: g")


async def drained(p: Plane, *, timeout_s: float = 20.0) -> asyncio.Task[bool]:
    """Begin to drain; its first steps have been taken."""
    task = asyncio.ensure_future(p.server.drain(timeout_s))
    await asyncio.sleep(0)
    assert p.server.draining
    return task


async def accepted(p: Plane, count: int) -> None:
    while p.server.stats().accepted < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_a_connection_that_was_just_made_gets_its_answer():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await accepted(p, 1)
        task = await drained(p)
        answer = await client.post()
        assert (answer.status, answer.value(b"connection")) == (200, b"close")
        assert await client.closed() == b""
        assert await task, "nothing had to be cut"


async def test_a_request_that_has_begun_gets_its_answer():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(request()[:CUT])
        await accepted(p, 1)
        task = await drained(p)
        await client.send(request()[CUT:])
        assert (await client.answer()).status == 200
        assert await task


async def test_a_kept_connection_whose_next_request_has_arrived_gets_that_answer():
    """The kernel has it, the loop does not know yet; without it such a connection is closed at once."""
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as busy, p.client() as idle:
        for client in (busy, idle):
            assert (await client.post()).status == 200
        os.write(busy.writer.get_extra_info("socket").fileno(), request())  # now, not when the loop has time
        task = asyncio.ensure_future(p.server.drain(20.0))
        answer = await busy.answer()
        assert (answer.status, answer.value(b"connection")) == (200, b"close")
        assert await idle.closed() == b""
        assert await task


async def test_who_was_accepted_in_the_same_moment_is_served():
    """The listener is closed before the loop has told the protocol of its connection."""
    async with FaultServer(ok()) as engine, plane(engine) as p:
        socks = [socket.create_connection(("127.0.0.1", p.port)) for _ in range(8)]
        for sock in socks:
            sock.sendall(request())
        while not p.server._accepted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task = await drained(p)
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(loop.run_in_executor(None, first_line, sock) for sock in socks))
        assert await task
        # Those that still were in the kernel's hands are another process's, where there is one.
        assert answers.count(b"HTTP/1.1 200") >= p.server.stats().accepted > 0
        assert p.server.stats().refused == 0


def first_line(sock: socket.socket) -> bytes:
    with sock:
        try:
            return sock.recv(12)
        except ConnectionError:
            return b""


async def test_who_asks_nothing_does_not_hold_the_end_up():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await accepted(p, 1)
        task = await drained(p)
        assert await client.closed() == b""
        assert await task
