"""Requests that no gateway may take: S1-S5, S8-S10, rows 45-48, 51, 53. The engine sees the good ones only."""

from __future__ import annotations

import asyncio

import pytest
from data_plane import plane, request
from fault_server import ANSWER, FaultServer, ok

P = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "length and chunks": (P + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (P + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (P + b"Content-Length: 0\r\nContent-Length: 30\r\n\r\n", 400),
    "two equal lengths": (P + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a list of lengths": (P + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "signed length": (P + b"Content-Length: +2\r\n\r\n{}", 400),
    "negative length": (P + b"Content-Length: -1\r\n\r\n", 400),
    "hexadecimal length": (P + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "empty length": (P + b"Content-Length:\r\n\r\n{}", 400),
    "length over everything": (P + b"Content-Length: 18446744073709551617\r\n\r\n", 400),
    "two hosts": (P + b"Host: b\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "host with a path": (b"GET / HTTP/1.1\r\nHost: a/v1?\r\n\r\n", 400),
    "host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "host with a backslash": (b"GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", 400),
    "empty host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    "two codings": (P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "identity, chunked": (P + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked, identity": (P + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "gzip, chunked": (P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "xchunked": (P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "quoted coding": (P + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 400),
    "coding after a tab": (P + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "coding in 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "space before the colon": (P + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "space before the name": (P + b" Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "underscore": (P + b"Content_Length: 3\r\n\r\n", 400),
    "dot in a name": (P + b"X.Y: 3\r\n\r\n", 400),
    "no colon": (P + b"nonsense\r\n\r\n", 400),
    "empty name": (P + b": value\r\n\r\n", 400),
    "folded line": (P + b"X-A: a\r\n b\r\n\r\n", 400),
    "folded coding": (P + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF in the head": (P + b"X-A: a\nX-B: b\r\n\r\n", 400),
    "bare CR": (P + b"X-A: a\rX-B: b\r\n\r\n", 400),
    "NUL in a value": (P + b"X-A: a\0b\r\n\r\n", 400),
    "NUL in a name": (P + b"X\0A: b\r\n\r\n", 400),
    "control character": (P + b"X-A: a\x01b\r\n\r\n", 400),
    "bad chunk size": (P + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "chunk size with 0x": (P + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400),
    "chunk size with a space": (P + b"Transfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n", 400),
    "chunk size too large": (P + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    "chunk with bare LF": (P + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", 400),
    "chunk longer than told": (P + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n", 400),
    "endless trailers": (P + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: b\r\n" * 9000, 400),
    "endless chunk extension": (P + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 60_000, 400),
    "absolute target": (b"GET http://a/v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "authority target": (b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with a fragment": (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with a backslash": (b"GET /\\b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target not ASCII": (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "star for GET": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/0.9 by name": (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "http in lower case": (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
    "method in lower case": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "unknown method": (b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "empty lines": (b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "other expectation": (P + b"Expect: 100-continue, x\r\nContent-Length: 2\r\n\r\n{}", 400),
    "gzip": (P + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    "unknown coding": (P + b"Content-Encoding: zz\r\nContent-Length: 2\r\n\r\n{}", 415),
    "head too long": (P + (b"X-A: " + b"a" * 6000 + b"\r\n") * 3 + b"\r\n", 431),
    "line too long": (P + b"X-A: " + b"a" * 9000 + b"\r\n\r\n", 431),
    "100 KiB line": (P + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    "200 fields": (P + b"X-A: b\r\n" * 200 + b"\r\n", 431),
    "target too long": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("cut", ["whole", "bytewise"])
async def test_refused_and_closed(name: str, cut: str):
    """With a second request right behind it: it must never be served."""
    data, status = REFUSED[name]
    step = 1 if len(data) < 2000 else 97
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        if cut == "whole":
            await client.send(data + SMUGGLED)
        else:
            for at in range(0, len(data), step):
                client.writer.write(data[at : at + step])
                await asyncio.sleep(0)
        async with asyncio.timeout(2):
            answer = await client.answer()
        assert answer.status == status
        assert answer.error["type"] == "invalid_request_error"
        assert answer.value(b"connection") == b"close"
        assert answer.value(b"x-should-retry") == b"false"
        assert answer.value(b"x-request-id")
        client.writer.write_eof()
        assert await client.closed() == b""
        assert p.gate.seen == []
        assert engine.requests == []


ACCEPTED: dict[str, bytes] = {
    "plain": P + b"Content-Length: 2\r\n\r\n{}",
    "an empty line first": b"\r\n" + P + b"Content-Length: 2\r\n\r\n{}",
    "chunked in capitals": P + b"Transfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "extension and trailer": P + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nX-T: v\r\nHost: b\r\n\r\n",
    "no spaces": P + b"Content-Length:2\r\n\r\n{}",
    "many spaces": P + b"Content-Length: \t 2 \t \r\n\r\n{}",
    "IPv6 host": b"POST / HTTP/1.1\r\nHost: [::1]:8080\r\nContent-Length: 2\r\n\r\n{}",
    "identity": P + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
    "bytes over 127 in a value": P + b"X-A: \xc3\xa9\r\nContent-Length: 2\r\n\r\n{}",
    "64 fields": P + b"X-A: b\r\n" * 62 + b"Content-Length: 2\r\n\r\n{}",
    "1.0 without host": b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", list(ACCEPTED))
async def test_accepted_once_with_what_follows_in_turn(name: str):
    data = ACCEPTED[name]
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(data)
        assert (await client.answer()).body == ANSWER
        await client.send(request(b"second"))
        assert (await client.answer()).body == ANSWER
        assert [one.body for one in engine.requests] == [b"{}", b"second"]
        assert all(len(one.values(b"host")) == len(one.values(b"content-length")) == 1 for one in engine.requests)
        assert b"x-t" not in dict(engine.requests[0].fields)


async def test_what_follows_a_chunked_body_in_the_same_read_is_served_in_its_turn():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(ACCEPTED["chunked in capitals"] + request(b"second") + ACCEPTED["chunked in capitals"])
        for _ in range(3):
            answer = await client.answer()
            assert answer.body == ANSWER
            assert answer.value(b"connection") is None
        assert [one.body for one in engine.requests] == [b"{}", b"second", b"{}"]


async def test_headers_that_cross_and_headers_that_do_not():
    """BR-09-03, BR-09-05, S23, S26."""
    kept = (
        b"User-Agent: me\r\nAccept: */*\r\nOpenAI-Organization: org\r\nAnthropic-Version: 1\r\nX-Custom: yes\r\n"
        b"X-Session-Id: s\r\nX-Stainless-OS: Linux\r\ntracestate: a=b\r\n"
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    )
    dropped = (
        b"Authorization: Bearer secret\r\nCookie: c=d\r\nConnection: X-Foo, keep-alive\r\nX-Foo: 1\r\nTE: trailers\r\n"
        b"Proxy-Authorization: x\r\nKeep-Alive: 5\r\nTrailer: x\r\nForwarded: for=1\r\nX-Forwarded-For: 1\r\n"
        b"X-Real-IP: 1\r\nX-Headrace-Priority: batch\r\nX-Vllm-Priority: -5\r\nX-Data-Parallel-Rank: 3\r\n"
        b"X-Tenant: other\r\nX-Priority: 1\r\nX-Api-Key: k\r\nRange: bytes=1-\r\n"
    )
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.post(fields=kept + dropped)
        names = {name for name, _ in engine.requests[0].fields}
        assert names == {
            *(line.split(b":")[0].lower() for line in kept.split(b"\r\n") if line),
            b"host",
            b"content-type",
            b"content-length",
            b"x-request-id",
        }
        p.gate.forward_authorization = True
        await client.post(fields=dropped)
        assert engine.requests[1].values(b"authorization") == [b"Bearer secret"]
        p.pools["w0"].authorization = b"Bearer worker"
        await client.post(fields=dropped)
        assert engine.requests[2].values(b"authorization") == [b"Bearer worker"]


async def test_trace_context_and_ids():
    """BR-09-09."""
    good = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for trace in (b"", b"00-bad", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", good.upper()):
        async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
            fields = b"X-Request-Id: customer_request_42\r\ntracestate: a=b\r\n"
            answer = await client.post(fields=fields + (b"traceparent: %b\r\n" % trace if trace else b""))
            assert answer.value(b"x-request-id") == b"customer_request_42"
            assert engine.requests[0].values(b"x-request-id") == [b"customer_request_42"]
            assert engine.requests[0].values(b"traceparent") == engine.requests[0].values(b"tracestate") == []
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        seen = set()
        for bad in (b"", b"X-Request-Id: a b\r\n", b"X-Request-Id: " + b"x" * 500 + b"\r\n"):
            answer = await client.post(fields=bad)
            seen.add(answer.value(b"x-request-id"))
        assert len(seen) == 3
        assert all(one.startswith(b"req-") for one in seen)


async def test_a_wish_to_upgrade_is_ignored_and_goes_nowhere():
    """RFC 9110 §7.8: a server may ignore it. Java's HttpClient asks every http server for h2c."""
    fields = b"Connection: Upgrade, HTTP2-Settings, X-Mine\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX-Mine: 1\r\n"
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for _ in range(2):
            answer = await client.post(fields=fields)
            assert answer.status == 200
        assert len(engine.requests) == 2
        for one in engine.requests:
            for word in (b"h2c", b"upgrade", b"settings", b"x-mine"):
                assert word not in one.head.lower()


async def test_what_a_hostile_engine_may_say():
    """S28, BR-09-05: one framing field, nothing hop by hop, nothing of ours, no cookie."""
    fields = (
        b"Set-Cookie: a=b\r\nServer: uvicorn\r\nX-Powered-By: me\r\nX-Headrace-Worker: fake\r\nX-Request-Id: other\r\n"
        b"Connection: keep-alive, X-Secret-Hop, Vary\r\nX-Secret-Hop: 1\r\nKeep-Alive: timeout=1\r\nUpgrade: x\r\n"
        b"Trailer: t\r\nOpenAI-Processing-Ms: 5\r\nCache-Control: no-store\r\nVary: Origin\r\nRetry-After: 1\r\n"
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n" + fields + b"\r\n"

    async def script(call):
        await call.send(head + b"2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n")

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        answer = await client.post()
        assert answer.body == b"{}"
        names = [name for name, _ in answer.fields]
        assert sorted(names) == sorted(
            [
                b"content-type",
                b"content-length",
                b"openai-processing-ms",
                b"cache-control",
                b"retry-after",
                b"x-request-id",
                *(b"x-headrace-" + n for n in (b"pool", b"worker", b"class", b"revision", b"reason")),
                b"x-headrace-queue-ms",
                b"x-headrace-attempts",
            ]
        )
        assert answer.value(b"x-headrace-worker") == b"w0"
