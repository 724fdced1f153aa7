"""The simulated engine's connections: queueing, leaving, pipelining, keep-alive, odd requests, slow readers."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import orjson
import pytest
from simulator_support import CHAT, HELLO, Client, ask, client, simulated, until

LONG = {"messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "stream": True}


def endless(**fields: Any) -> dict[str, Any]:
    return LONG | fields


async def test_a_queued_stream_gets_its_head_at_once_and_nothing_else() -> None:
    async with simulated(max_num_seqs=1, speed=1.0) as engine, client(engine.port) as first, client(engine.port) as own:
        first.send(CHAT, endless())
        await first.head()
        await first.chunk()
        own.send(CHAT, endless(max_tokens=2))
        assert (await own.head())[0] == 200
        await until(lambda: engine.core.waiting == 1)
        assert not own.reader._buffer  # type: ignore[attr-defined]
        first.close()
        assert (await own.chunk()).startswith(b'data: {"id"')
        while await own.chunk():
            pass


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["running", "waiting"])
async def test_a_client_that_leaves_ends_its_work_within_80_ms(way: str, stream: bool, where: str) -> None:
    async with simulated(max_num_seqs=1, speed=1.0) as engine, client(engine.port) as first:
        if where == "waiting":
            first.send(CHAT, endless())
            await until(lambda: engine.core.running)
        own = await Client.connect(engine.port)
        own.send(CHAT, endless(stream=stream))
        await until(lambda: engine.core.waiting if where == "waiting" else engine.core.running)
        before = asyncio.get_running_loop().time()
        raw: socket.socket = own.writer.get_extra_info("socket")
        if way == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "half-close":
            own.writer.write_eof()
        else:
            own.close()
        await until(
            lambda: engine.aborted == 1 and not (engine.core.waiting if where == "waiting" else engine.core.running)
        )
        assert asyncio.get_running_loop().time() - before < 0.08
        assert engine.metrics.finished == dict.fromkeys(engine.metrics.finished, 0), "counted by no finish reason"
        own.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with simulated() as engine, client(engine.port) as own:
        own.send("/version")
        own.send(CHAT, {"messages": HELLO, "max_tokens": 3, "ignore_eos": True, "stream": True})
        own.send("/health")
        own.send(CHAT, {"messages": HELLO, "max_tokens": 3, "ignore_eos": True})
        answers = [await own.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[0].json() == {"version": "0.32.0"}
    assert answers[1].chunks[-1] == b"data: [DONE]\n\n"
    assert answers[2].body == b""
    assert answers[3].json()["usage"]["completion_tokens"] == 3


async def test_more_pipelined_requests_than_it_keeps_are_answered_all_the_same() -> None:
    async with simulated() as engine, client(engine.port) as own:
        own.send(CHAT, {"messages": HELLO, "max_tokens": 3, "ignore_eos": True})
        for _ in range(200):
            own.send("/health")
        answers = [await own.answer() for _ in range(201)]
    assert all(answer.status == 200 for answer in answers)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with simulated(keep_alive_s=0.15, speed=1.0) as engine, client(engine.port) as own:
        await own.ask("/health")
        await own.ask("/health")
        answer = await own.ask(CHAT, {"messages": HELLO, "max_tokens": 30, "ignore_eos": True})
        assert answer.status == 200, "took longer than an idle connection lives"
        before = asyncio.get_running_loop().time()
        assert await own.eof() == b""
        assert 0.1 < asyncio.get_running_loop().time() - before < 1.0


async def test_expect_gets_100_and_http_1_0_is_closed_after_its_answer() -> None:
    async with simulated() as engine:
        async with client(engine.port) as own:
            body = orjson.dumps({"prompt": "hi"})
            own.writer.write(
                b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            assert await own.head() == (100, {})
            own.writer.write(body)
            assert (await own.answer()).json()["count"] == 1
        async with client(engine.port) as own:
            own.writer.write(b"GET /version HTTP/1.0\r\n\r\n")
            assert (await own.eof()).endswith(b'connection: close\r\n\r\n{"version":"0.32.0"}')


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_and_the_connection_closed(raw: bytes) -> None:
    async with simulated() as engine, client(engine.port) as own:
        own.writer.write(raw)
        answer = await own.eof()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"Invalid HTTP request received.")


async def test_a_chunked_request_body_and_a_big_head_are_accepted() -> None:
    async with simulated() as engine, client(engine.port) as own:
        own.writer.write(
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\nx-filler: " + b"a" * 70_000 + b"\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            b'8\r\n{"prompt\r\n7\r\n":"hi"}\r\n0\r\n\r\n'
        )
        assert (await own.answer()).json()["count"] == 1


async def test_other_paths_and_methods() -> None:
    async with simulated() as engine, client(engine.port) as own:
        for path in ("/nope", "/v1/models/tiny", "/v1/embeddings", "/score", "//v1/models"):
            answer = await own.ask(path, {})
            assert (answer.status, answer.json()) == (404, {"detail": "Not Found"}), path
        moved = await own.ask("/v1/models/")
        assert (moved.status, moved.headers["location"]) == (307, "http://sim/v1/models")
        wrong = await own.ask(CHAT, method="PUT")
        assert (wrong.status, wrong.headers["allow"], wrong.json()) == (405, "POST", {"detail": "Method Not Allowed"})
        assert (await own.ask("/v1/models?x=1")).json()["data"][0]["max_model_len"] == 2048


async def test_a_slow_reader_gets_fewer_larger_events_and_all_of_the_text() -> None:
    """The engine is not held up: 600 tokens are made while nobody reads."""
    async with simulated() as engine, client(engine.port) as slow:
        body = LONG | {
            "seed": 1,
            "max_tokens": 600,
            "logprobs": True,
            "top_logprobs": 20,
            "stream_options": {"include_usage": True},
        }
        raw: socket.socket = slow.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(CHAT, body)
        await until(lambda: engine.generations_total == 1)
        (connection,) = engine.connections
        near: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        await until(lambda: engine.core.idle)
        assert engine.jobs, "the answer is not out"
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        late = await slow.answer()
        prompt = await ask(engine.port, CHAT, body)
    assert late.text == prompt.text
    assert late.events[-1]["usage"]["completion_tokens"] == 600
    assert len(late.events) < len(prompt.events)


async def test_a_thousand_streams_in_one_process() -> None:
    async with simulated(speed=50.0, max_num_seqs=1000, max_num_batched_tokens=8192) as engine:
        clients = [await Client.connect(engine.port) for _ in range(1000)]
        for each in clients:
            each.send(CHAT, {"messages": HELLO, "max_tokens": 8, "ignore_eos": True, "stream": True})
        for each in clients:
            answer = await each.answer()
            assert answer.chunks[-1] == b"data: [DONE]\n\n"
            assert len(answer.events) >= 3
            each.close()
        assert engine.max_concurrent == 1000
