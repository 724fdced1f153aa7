"""The admin plane by itself: who is let in, with which role, and that it says nothing it should not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.access import (
    CALLS_BURST,
    VISITOR,
    Need,
    Role,
    TokenError,
    Tokens,
    guard,
    is_loopback_host,
    read_or_make_tokens,
    read_token,
)

TOKENS = Tokens({Role.VIEWER: "v1ew", Role.OPERATOR: "0per", Role.ADMIN: "s3cret"}, {})
PATHS = {
    "/livez": Need.NOTHING,
    "/metrics": Need.NOTHING,
    "/admin/v1/fleet": Need.READ,
    "/admin/v1/change": Need.OPERATE,
    "/admin/v1/keys": Need.ADMINISTER,
}


@asynccontextmanager
async def served(*, loopback: bool, **more: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    def need_of(request: web.Request) -> Need:
        return PATHS.get(request.path, Need.READ)

    access = guard(TOKENS, need_of, loopback=loopback, clock=lambda: 0.0, **more)
    app = web.Application(middlewares=[access])
    for path in PATHS:
        app.router.add_get(path, hello)
        app.router.add_post(path, hello)
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
    async with served(loopback=True) as (session, url):
        port = url.rpartition(":")[2]
        assert await status(session, f"{url}/admin/v1/fleet") == 200
        assert await status(session, f"{url}/admin/v1/fleet", Host=f"localhost:{port}") == 200
        assert await status(session, f"{url}/admin/v1/fleet", Host=f"evil.example:{port}") == 403
        assert await status(session, f"{url}/metrics", Host="127.0.0.1.evil.example") == 403
        assert await status(session, f"{url}/livez", Origin="http://evil.example") == 403
        assert await status(session, f"{url}/livez", Origin="null") == 403
        assert await status(session, f"{url}/livez", Origin=url) == 200
        assert await status(session, f"{url}/admin/v1/change") == 401


async def test_elsewhere_reads_need_a_token():
    async with served(loopback=False) as (session, url):
        assert await status(session, f"{url}/livez") == 200
        assert await status(session, f"{url}/metrics", Host="gateway.example") == 200
        for given in ("", "Bearer", "Bearer wrong", "Basic s3cret", "s3cret", "Bearer s3cret\u00e9"):
            assert await status(session, f"{url}/admin/v1/fleet", Authorization=given) == 401
        assert await status(session, f"{url}/admin/v1/fleet", Authorization="Bearer s3cret") == 200


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, (200, 401, 401)),
        ("v1ew", (200, 403, 403)),
        ("0per", (200, 200, 403)),
        ("s3cret", (200, 200, 200)),
        ("wrong", (401, 401, 401)),
    ],
)
async def test_s22_each_role_by_each_need(loopback, token, expected):
    async with served(loopback=loopback) as (session, url):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        found = [await status(session, f"{url}/admin/v1/{name}", **headers) for name in ("fleet", "change", "keys")]
        first = 401 if token is None and not loopback else expected[0]
        assert tuple(found) == (first, *expected[1:])


async def test_who_tries_tokens_is_slowed_down_and_a_right_one_still_works():
    async with served(loopback=True) as (session, url):
        found = [await status(session, f"{url}/admin/v1/fleet", Authorization="Bearer guess") for _ in range(30)]
        assert (found[0], found[-1]) == (401, 429)
        assert await status(session, f"{url}/admin/v1/keys", Authorization="Bearer s3cret") == 200


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
        ("user@127.0.0.1", False),
        ("127.0.0.1/..", False),
        ("127.0.0.1?", False),
    ],
)
def test_loopback_names(host, expected):
    assert is_loopback_host(host) is expected


def test_tokens_are_made_once_and_kept_private(tmp_path):
    state = tmp_path / "state"
    first = read_or_make_tokens(state)
    assert set(first.made) == set(Role)
    assert len({*first.by_role.values()}) == 3
    assert all(len(token) >= 40 for token in first.by_role.values())
    again = read_or_make_tokens(state)
    assert (again.by_role, again.made) == (first.by_role, {})
    assert sorted(file.name for file in state.iterdir()) == ["admin.token", "operator.token", "viewer.token"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in state.iterdir())


def test_a_given_admin_token_makes_no_file(tmp_path):
    tokens = read_or_make_tokens(tmp_path, "given")
    assert tokens.by_role[Role.ADMIN] == "given"
    assert set(tokens.made) == {Role.VIEWER, Role.OPERATOR}
    assert not (tmp_path / "admin.token").exists()
    assert tokens.role_of("Bearer given") is Role.ADMIN
    assert set(read_or_make_tokens(None).made) == set(Role)


def test_s37_a_token_that_others_can_read_is_refused(tmp_path):
    read_or_make_tokens(tmp_path)
    file = tmp_path / "admin.token"
    file.chmod(0o644)
    with pytest.raises(TokenError, match="open to others"):
        read_or_make_tokens(tmp_path)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(TokenError, match="is empty"):
        read_token(file)


@pytest.mark.parametrize(
    "origin", ["http://[", "http://evil.example", "null", "", "http://127.0.0.1:1", "file://", "http://"]
)
@pytest.mark.parametrize("loopback", [True, False])
async def test_pages_of_any_other_origin_are_refused(loopback, origin):
    async with served(loopback=loopback) as (session, url):
        for path in PATHS:
            assert await status(session, url + path, Origin=origin, Authorization="Bearer s3cret") == 403


async def test_too_many_calls_from_elsewhere_are_told_to_wait(monkeypatch):
    monkeypatch.setattr("gateway.admin.access.is_loopback_address", lambda address: False)
    async with served(loopback=False) as (session, url):
        token = {"Authorization": "Bearer s3cret"}
        found = [await status(session, f"{url}/admin/v1/fleet", **token) for _ in range(int(CALLS_BURST) + 1)]
        assert (found[0], found[-2], found[-1]) == (200, 200, 429)
        assert await status(session, f"{url}/livez") == 200


async def test_too_many_changes_are_told_to_wait_and_reads_go_on(monkeypatch):
    monkeypatch.setattr("gateway.admin.access.CHANGES_BURST", 20.0)
    async with served(loopback=True) as (session, url):
        token = {"Authorization": "Bearer 0per"}
        for expected in [200] * 20 + [429]:
            async with session.post(f"{url}/admin/v1/change", headers=token) as answer:
                assert answer.status == expected
        assert answer.headers["Retry-After"] == "1"
        assert await status(session, f"{url}/admin/v1/fleet", **token) == 200


async def test_a_change_that_a_role_may_not_make_is_told():
    told = []

    async def denied(request: web.Request) -> None:
        told.append((request[VISITOR].role, request.method))

    async with served(loopback=True, on_denied=denied) as (session, url):
        token = {"Authorization": "Bearer v1ew"}
        assert await status(session, f"{url}/admin/v1/keys", **token) == 403
        async with session.post(f"{url}/admin/v1/change", headers=token) as answer:
            assert answer.status == 403
        assert told == [(Role.VIEWER, "POST")]
