"""Blanks in a size line are refused, of clients and of workers, though RFC 9112 §7.1.1 has a place for some of them.

`docs/edge.md` says why. Extensions without them are read over in both directions, and never passed on.
"""

from __future__ import annotations

import asyncio

import pytest
from data_plane import plane, request
from fault_server import ANSWER, DONE, STREAM_HEAD, FaultServer, answers, chunked, event, ok

from gateway.scheduling.model import OutcomeKind

BLANKS = [
    b"%b ;a",
    b"%b\t;a",
    b"%b \t ;a=b",
    b"%b; a",
    b"%b;\ta",
    b"%b;a =b",
    b"%b;a= b",
    b'%b;a = "b"',
    b"%b;a ",
    b'%b;a="b" ',
    b"%b;a ;b",
    b"%b ",  # that is not even bad whitespace: there is no extension behind it
    b" %b",
]
FINE = [b"%b;a", b"%b;a=b", b'%b;a="b c; d"', b"%b;a;b=c"]

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"


def asked(line: bytes) -> dict[str, bytes]:
    """A body whose first, a later, or last chunk has this line."""
    return {
        "first": HEAD + line % b"2" + b"\r\n{}\r\n0\r\n\r\n",
        "later": HEAD + b"1\r\n{\r\n" + line % b"1" + b"\r\n}\r\n0\r\n\r\n",
        "last": HEAD + b"2\r\n{}\r\n" + line % b"0" + b"\r\n\r\n",
    }


@pytest.mark.parametrize("place", ["first", "later", "last"])
@pytest.mark.parametrize("line", BLANKS)
async def test_a_client_is_refused_and_its_connection_ends(line: bytes, place: str) -> None:
    data = asked(line)[place]
    for bytewise in (False, True):
        async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
            if bytewise:
                for at in range(len(data)):
                    client.writer.write(data[at : at + 1])
                    await asyncio.sleep(0)
            else:
                await client.send(data + HIDDEN)
            answer = await client.answer()
            assert (answer.status, answer.value(b"connection")) == (400, b"close")
            client.writer.write_eof()
            assert await client.closed() == b""
            assert (p.gate.seen, engine.requests) == ([], [])


@pytest.mark.parametrize("place", ["first", "later", "last"])
@pytest.mark.parametrize("line", FINE)
async def test_other_extensions_of_a_client_are_read_over(line: bytes, place: str) -> None:
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        await client.send(asked(line)[place] + request(b"second"))
        for _ in range(2):
            assert (await client.answer()).body == ANSWER
        assert [one.raw_body for one in engine.requests] == [b"{}", b"second"]


EVENTS = event("a") + event("", finish="stop") + DONE


def answered(line: bytes, place: str) -> bytes:
    size = b"%x" % len(EVENTS)
    if place == "last":
        return STREAM_HEAD + chunked(EVENTS) + line % b"0" + b"\r\n\r\n"
    before = chunked(b": hi\n\n") if place == "later" else b""
    return STREAM_HEAD + before + line % size + b"\r\n" + EVENTS + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("place", ["first", "later"])
@pytest.mark.parametrize("line", BLANKS)
async def test_a_worker_is_not_believed_and_its_connection_ends(line: bytes, place: str) -> None:
    for bytewise in (False, True):
        script = answers(answered(line, place), bytewise=bytewise)
        async with FaultServer(script) as bad, FaultServer(ok()) as good, plane(bad, good) as p, p.client() as client:
            assert (await client.post(b'{"stream":true}')).body == ANSWER
            assert p.outcomes == [("w0", OutcomeKind.PROTOCOL), ("w1", OutcomeKind.OK)]
            await bad.until(lambda: bad.open_connections == 0)


@pytest.mark.parametrize("line", BLANKS)
async def test_behind_whole_events_only_the_connection_is_lost(line: bytes) -> None:
    async with FaultServer(answers(answered(line, "last"))) as bad, plane(bad) as p, p.client() as client:
        answer = await client.post(b'{"stream":true}')
        assert answer.complete
        assert answer.body == EVENTS
        await bad.until(lambda: bad.open_connections == 0)


@pytest.mark.parametrize("place", ["first", "later", "last"])
@pytest.mark.parametrize("line", FINE)
async def test_other_extensions_of_a_worker_are_read_over(line: bytes, place: str) -> None:
    async with FaultServer(answers(answered(line, place))) as engine, plane(engine) as p, p.client() as client:
        for _ in range(2):
            await client.send(request(b'{"stream":true}'))
            status, fields = await client.head()
            assert (status, (b"transfer-encoding", b"chunked") in fields) == (200, True)
            raw = await client.reader.readuntil(b"0\r\n\r\n")
            assert b";" not in b"".join(raw.split(b"\r\n")[::2]), "no extension goes on"
            assert raw.count(b"[DONE]") == 1
