"""The answer to HEAD is a head alone (RFC 9110 §9.3.2), whatever it would have said, also where no path takes HEAD."""

from __future__ import annotations

import asyncio

import pytest
from data_plane import Plane, plane, request
from fault_server import ANSWER, FaultServer, Script, http, ok

LONG = b'{"x":"' + b"x" * 500_000 + b'"}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def says(data: bytes) -> Script:
    async def script(call):
        await call.send(data)

    return script


def head_of(data: bytes) -> bytes:
    return data[: data.find(b"\r\n\r\n") + 4]


async def all_of(p: Plane, question: bytes) -> bytes:
    """Every byte of an answer, to the end of its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", p.port)
    try:
        writer.write(question)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.transport.abort()


EVENT_ALL_THE_SAME = says(STREAM + b"d\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("http10", [False, True])
@pytest.mark.parametrize(
    ("engine", "status"),
    [
        (None, 503),  # nobody there: an error of ours
        (ok(), 200),
        (says(head_of(http(200, ANSWER))), 200),
        (says(head_of(http(200, LONG))), 200),
        (says(http(200, LONG)), 200),  # an engine that sends its body all the same
        (says(head_of(http(400, b'{"error":{"message":"no"}}'))), 400),
        (says(head_of(http(500, b'{"error":{"message":"no"}}'))), 500),
        (says(STREAM), 502),
        (EVENT_ALL_THE_SAME, 200),
        (says(STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")), 200),
    ],
)
async def test_no_answer_of_an_exchange_has_a_body(engine: Script | None, status: int, http10: bool) -> None:
    async with FaultServer(engine or ok()) as server, plane("http://127.0.0.1:9" if engine is None else server) as p:
        question = request(b"{}").replace(b"POST", b"HEAD", 1)
        if http10:
            question = question.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        answer = await all_of(p, question)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
        assert answer == head_of(answer)
        record = (await p.notes.until(1))[0]
        assert record.status == status
        assert not record.bytes_out or engine is EVENT_ALL_THE_SAME


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"HEAD / HTTP/1.1\r\n\r\n", 400),
        (b"\r\nHEAD / HTTP/1.1\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nhost: a\r\ncontent-length: 999\r\n\r\n", 413),
        (b"HEAD / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nhost: a\r\n" + b"x-a: b\r\n" * 100 + b"\r\n", 431),
        (b"HEAD / HTTP/1.1\r\nx: " + b"a" * 20_000, 431),
        (b"HEAD / HTTP/1.1\r\nhost: a\n", 400),
        (b"HEAD /", 408),
        (b"HEAD / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n", 408),
        (b"HEAD /refused HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 404),
        (b"HEAD /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (b"HEAD /broken HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 500),
    ],
)
async def test_nor_has_one_that_no_exchange_gives(question: bytes, status: int) -> None:
    async with FaultServer(ok()) as server, plane(server, body_bytes=100, header_s=0.2, body_s=0.2) as p:
        for _ in range(2):  # a head that was read before, too
            answer = await all_of(p, question)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
            assert answer == head_of(answer)


async def test_others_on_the_connection_of_a_head_have_theirs() -> None:
    async with FaultServer(ok()) as server, plane(server) as p, p.client() as client:
        await client.send(b"HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.answer(bodyless=True)).status == 200
        assert (await client.post()).body == ANSWER
