"""The admin plane by itself: who is let in, and that it says nothing it should not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.access import guard, is_loopback_host, read_or_make_token


@asynccontextmanager
async def served(token: str | None, *, loopback: bool) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[guard(token, loopback=loopback)])
    for path in ("/livez", "/metrics", "/admin/v1/fleet"):
        app.router.add_get(path, hello)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as session:
        yield session, f"http://{host}:{port}"
    await runner.cleanup()


async def status(session: aiohttp.ClientSession, url: str, **headers: str) -> int:
    async with session.get(url, headers=headers) as answer:
        return answer.status


async def test_on_loopback_reads_are_open_to_this_host_only():
    async with served(None, loopback=True) as (session, url):
        port = url.rpartition(":")[2]
        assert await status(session, f"{url}/admin/v1/fleet") == 200
        assert await status(session, f"{url}/admin/v1/fleet", Host=f"localhost:{port}") == 200
        assert await status(session, f"{url}/admin/v1/fleet", Host=f"evil.example:{port}") == 403
        assert await status(session, f"{url}/metrics", Host="127.0.0.1.evil.example") == 403
        assert await status(session, f"{url}/livez", Origin="http://evil.example") == 403
        assert await status(session, f"{url}/livez", Origin="null") == 403
        assert await status(session, f"{url}/livez", Origin=url) == 200


async def test_elsewhere_reads_need_the_token():
    async with served("s3cret", loopback=False) as (session, url):
        assert await status(session, f"{url}/livez") == 200
        assert await status(session, f"{url}/metrics", Host="gateway.example") == 200
        for given in ("", "Bearer", "Bearer wrong", "Basic s3cret", "s3cret", "Bearer s3cret\u00e9"):
            assert await status(session, f"{url}/admin/v1/fleet", Authorization=given) == 401
        assert await status(session, f"{url}/admin/v1/fleet", Authorization="Bearer s3cret") == 200
    async with served(None, loopback=False) as (session, url):
        assert await status(session, f"{url}/admin/v1/fleet", Authorization="Bearer ") == 401


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:8081", True),
        ("127.8.9.1", True),
        ("[::1]:8081", True),
        ("10.0.0.1", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[", False),
        ("2130706433", False),
    ],
)
def test_loopback_names(host, expected):
    assert is_loopback_host(host) is expected


def test_the_token_is_made_once_and_kept_private(tmp_path):
    state = tmp_path / "state"
    token = read_or_make_token(state)
    assert len(token) >= 40
    assert read_or_make_token(state) == token
    (file,) = state.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
