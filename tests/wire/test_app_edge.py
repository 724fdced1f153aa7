"""How clients and workers are reached: TLS on both sides, unix sockets, proxies in front, pages in browsers. Row 33."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import Authority
from fault_server import ANSWER, FaultServer, ok, streams
from running_gateway import Running, running, settings_for

from gateway.settings import SettingsError
from gateway.tls import client_context, server_context

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def gateway_for(tmp_path: Path, engine: FaultServer, **more: Any) -> AsyncIterator[Running]:
    async with running(settings_for(tmp_path, [engine], **more)) as gateway:  # type: ignore[list-item]
        yield gateway


async def ask(gateway: Running, tls: ssl.SSLContext | bool = True, **headers: str) -> tuple[int, bytes]:
    async with gateway.session.post(
        f"{gateway.data}/v1/chat/completions", json=CHAT, ssl=tls, headers=headers
    ) as answer:
        return answer.status, await answer.read()


async def test_tls_to_clients(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("gateway")
    assert server_context(pair.cert, pair.key).minimum_version is ssl.TLSVersion.TLSv1_2
    async with (
        FaultServer(ok()) as engine,
        gateway_for(tmp_path, engine, tls_cert=str(pair.cert), tls_key=str(pair.key)) as gateway,
    ):
        assert gateway.data.startswith("https://127.0.0.1:")
        trusting = client_context(authority.ca)
        assert await ask(gateway, trusting) == (200, ANSWER)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(gateway)
        plain = gateway.session.post(gateway.data.replace("https", "http"), json=CHAT)
        with pytest.raises(aiohttp.ClientError):
            await plain
        assert await ask(gateway, trusting) == (200, ANSWER)
        assert not gateway.lines("internal_error")


async def test_clients_need_a_certificate_where_the_settings_say_so(tmp_path: Path, authority: Authority) -> None:
    pair, client, stranger = authority.sign("gateway"), authority.sign("client"), Authority(tmp_path, "other").sign("x")
    files = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.ca)}
    async with FaultServer(ok()) as engine, gateway_for(tmp_path, engine, **files) as gateway:
        assert await ask(gateway, client_context(authority.ca, client.cert, client.key)) == (200, ANSWER)
        for context in (
            client_context(authority.ca),
            client_context(authority.ca, stranger.cert, stranger.key),
        ):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await ask(gateway, context)


async def test_tls_to_workers(tmp_path: Path, authority: Authority) -> None:
    """And with a certificate of our own, where the worker wants one."""
    pair, ours = authority.sign("worker"), authority.sign("us")
    context = server_context(pair.cert, pair.key, authority.ca)
    files = {"worker_ca": str(authority.ca), "worker_cert": str(ours.cert), "worker_key": str(ours.key)}
    async with FaultServer(ok(), tls=context) as engine, gateway_for(tmp_path, engine, **files) as gateway:
        assert engine.url.startswith("https://")
        assert await ask(gateway) == (200, ANSWER)
        assert await ask(gateway) == (200, ANSWER)


@pytest.mark.parametrize("fault", ["expired", "another name", "another authority"])
async def test_a_worker_that_cannot_prove_who_it_is_gets_nothing(
    tmp_path: Path, authority: Authority, fault: str
) -> None:
    names = "DNS:elsewhere.example" if fault == "another name" else "IP:127.0.0.1"
    signer = Authority(tmp_path, "other") if fault == "another authority" else authority
    pair = signer.sign("bad", names, expired=fault == "expired")
    async with (
        FaultServer(ok(), tls=server_context(pair.cert, pair.key)) as engine,
        gateway_for(tmp_path, engine, worker_ca=str(authority.ca)) as gateway,
    ):
        status, _ = await ask(gateway)
        assert status in (502, 503)
        assert not engine.requests
        line = 'headrace_attempts_total{pool="short-chat",result="tls_error",worker="w1"}'
        assert await gateway.sample(line) >= 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tls_cert": "/x"}, "tls_cert and tls_key belong together"),
        ({"worker_key": "/x"}, "worker_cert and worker_key belong together"),
        ({"tls_client_ca": "/x"}, "tls_client_ca needs tls_cert"),
        ({"proxy_protocol": True}, "proxy_protocol needs trusted_proxies"),
        ({"proxy_protocol": True, "trusted_proxies": "::1", "tls_cert": "/x", "tls_key": "/x"}, "exclude each other"),
        ({"trusted_proxies": "10.0.0.0/33"}, "10.0.0.0/33"),
        ({"cors_origins": ["https://x/y"]}, "origins as browsers send them"),
        ({"admin": "unix:/tmp/x"}, "--admin: must be host:port; only listen may"),
        ({"listen": "unix:relative"}, "unix:/path"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        settings_for(tmp_path, [], **more)


async def test_unusable_certificates_are_said_at_start(tmp_path: Path) -> None:
    for more in ({"tls_cert": "/missing", "tls_key": "/missing"}, {"worker_ca": "/missing"}):
        with pytest.raises(RuntimeError, match=r"/missing.*No such file"):
            async with running(settings_for(tmp_path, [], **more)):
                pass


# -- unix sockets -----------------------------------------------------------------------------------------------------


async def test_a_unix_socket_to_clients(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(str(path))
    left_over.close()
    async with FaultServer(ok()) as engine:
        more = {"listen": f"unix:{path}", "trusted_proxies": "unix"}
        async with gateway_for(tmp_path, engine, **more) as gateway:
            assert gateway.data == f"unix:{path}"
            assert path.stat().st_mode & 0o777 == 0o660
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
                fields = {"x-forwarded-for": "192.0.2.7"}
                async with session.post("http://gateway/v1/chat/completions", json=CHAT, headers=fields) as answer:
                    assert (answer.status, await answer.read()) == (200, ANSWER)
            with pytest.raises(OSError, match="somebody listens there"):
                async with gateway_for(tmp_path, engine, **more):
                    pass
            assert path.exists()
        assert not path.exists()


# -- pages in browsers ------------------------------------------------------------------------------------------------

PAGE = "https://app.example.com"


async def test_pages_of_allowed_origins_may_ask_and_read(tmp_path: Path) -> None:
    streamed = {**CHAT, "stream": True}
    async with FaultServer(streams()) as engine, gateway_for(tmp_path, engine, cors_origins=PAGE) as gateway:
        url = f"{gateway.data}/v1/chat/completions"
        wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        async with gateway.session.options(url, headers={"origin": PAGE, **wish}) as answer:
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-methods"] == "POST"
            assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
            assert "content-length" not in answer.headers
        for body, status in ((streamed, 200), ({"messages": 1}, 400)):
            async with gateway.session.post(url, json=body, headers={"origin": PAGE}) as answer:
                await answer.read()
                assert answer.status == status
                assert answer.headers["access-control-allow-origin"] == PAGE
                assert answer.headers["vary"] == "origin"
                assert "x-headrace-worker" in answer.headers["access-control-expose-headers"]
        async with gateway.session.get(f"{gateway.data}/v1/models", headers={"origin": PAGE}) as answer:
            assert answer.headers["access-control-allow-origin"] == PAGE
        refused = [("https://evil.example", "POST", 405), (PAGE, "DELETE", 405)]
        for origin, method, status in refused:
            headers = {"origin": origin, **wish, "access-control-request-method": method}
            async with gateway.session.options(url, headers=headers) as answer:
                assert answer.status == status
                assert "access-control-allow-methods" not in answer.headers
        for headers in ({}, {"origin": "https://evil.example"}):
            async with gateway.session.post(url, json=streamed, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200
                assert "access-control-allow-origin" not in answer.headers


async def test_any_page_where_the_settings_say_so(tmp_path: Path) -> None:
    async with FaultServer(ok()) as engine, gateway_for(tmp_path, engine, cors_origins=["*"]) as gateway:
        url = f"{gateway.data}/v1/chat/completions"
        answer = await gateway.session.post(url, json=CHAT, headers={"origin": "null"})
        async with answer:
            assert answer.headers["access-control-allow-origin"] == "*"
