"""How the admin plane listens: bounded, whatever its clients do."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.bodies import read_body
from gateway.admin.listener import serve_admin
from gateway.admin.server import plain_errors


@asynccontextmanager
async def listening(**bounds: int) -> AsyncIterator[tuple[str, int]]:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(8 << 20) if request.query else b"")

    app = web.Application(client_max_size=1 << 20)
    app.router.add_get("/", large)
    sock = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        await serve_admin(stack, app, sock, stop_s=0.0, **bounds)
        yield sock.getsockname()[:2]


async def closed_at_once(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def becomes(closed: bool, host: str, port: int) -> bool:
    """Whether connections are closed, or not, within a while."""
    for _ in range(100):
        if await closed_at_once(host, port) is closed:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_connections_are_bounded_and_places_come_back():
    async with listening(most=3) as (host, port):
        idle = [await asyncio.open_connection(host, port) for _ in range(3)]
        assert await becomes(True, host, port)  # the third may not be accepted yet
        for _, writer in idle:
            writer.close()
        assert await becomes(False, host, port)


async def test_one_address_elsewhere_does_not_take_all(monkeypatch):
    monkeypatch.setattr("gateway.admin.listener.is_loopback_address", lambda address: False)
    async with listening(most_of_address=2) as (host, port):
        idle = [await asyncio.open_connection(host, port) for _ in range(2)]
        assert await becomes(True, host, port)
        for _, writer in idle:
            writer.close()


async def test_who_takes_nothing_is_cut(monkeypatch):
    monkeypatch.setattr("gateway.admin.listener.LOOK_S", 0.05)
    async with listening() as (host, port):
        loop = asyncio.get_running_loop()
        with socket.create_connection((host, port)) as reader:
            reader.setblocking(False)
            await loop.sock_sendall(reader, b"GET /?large=1 HTTP/1.1\r\nHost: a\r\n\r\n")

            async def write_on() -> None:
                while True:  # it takes nothing, and only writes to learn whether it still may
                    await loop.sock_sendall(reader, b"\r\n")
                    await asyncio.sleep(0.02)

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(write_on(), 30)


async def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr("gateway.admin.bodies.BODY_S", 0.05)
    app = web.Application(middlewares=[plain_errors])

    async def take(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request))

    app.router.add_post("/", take)
    sock = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        await serve_admin(stack, app, sock, stop_s=0.0)
        reader, writer = await asyncio.open_connection(*sock.getsockname()[:2])
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
        # Not to its end: aiohttp waits a while for the rest of the body before it closes.
        answer = await asyncio.wait_for(reader.readuntil(b'"code": "request_timeout"'), 30)
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_fault_of_ours_is_answered_in_our_words():
    app = web.Application(middlewares=[plain_errors])
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    async def fail(request: web.Request) -> web.Response:
        raise RuntimeError("secret")

    app.router.add_get("/", fail)
    sock = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        await serve_admin(stack, app, sock, stop_s=0.0)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 500
            assert "secret" not in await answer.text()
            assert (await answer.json())["error"]["code"] == "internal"
    assert [type(error) for error in told] == [RuntimeError]
    asyncio.get_running_loop().set_exception_handler(None)
