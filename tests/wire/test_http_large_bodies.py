"""Large bodies are read to where they stay: whole, in bounds, and with what follows them in its turn."""

from __future__ import annotations

import asyncio
import random

import pytest
from data_plane import plane, request
from fault_server import ANSWER, FaultServer, ok

LARGE = bytes(range(256)) * 2500
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
)


async def test_one_after_the_other_and_small_ones_between():
    bodies = [b"{}", LARGE, b"x", LARGE[::-1], LARGE[:70_000], LARGE * 3, b"", LARGE[:65_536], b"{}"]
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for body in bodies:
            assert (await client.post(body)).body == ANSWER
        assert [raw.body for raw in p.gate.seen] == bodies
        assert all(type(raw.body) is bytes for raw in p.gate.seen)
        assert [one.body for one in engine.requests] == bodies


async def test_what_follows_in_the_same_bytes_is_served_in_its_turn():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for _ in range(3):
            await client.send(request(LARGE) + request(b"second") + request(b"third"))
            for _ in range(3):
                assert (await client.answer()).body == ANSWER
        assert [one.body for one in engine.requests] == [LARGE, b"second", b"third"] * 3


@pytest.mark.parametrize("seed", range(6))
async def test_cuts_do_not_matter(seed: int):
    rng = random.Random(seed)
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        bodies = [rng.choice([b"{}", LARGE, LARGE[: rng.randrange(len(LARGE))]]) for _ in range(12)]
        for body in bodies:
            data = request(body)
            at = 0
            while at < len(data):
                size = rng.choice([1, 100, 5_000, 65_536, 200_000, len(data)])
                await client.send(data[at : at + size])
                at += size
                await asyncio.sleep(rng.choice([0, 0, 0.001]))
            assert (await client.answer()).body == ANSWER
        assert [one.body for one in engine.requests] == bodies


async def test_a_client_that_waits_for_leave_to_send():
    async with FaultServer(ok()) as engine, plane(engine) as p, p.client() as client:
        for _ in range(2):
            await client.send(HEAD % (len(LARGE), b"Expect: 100-continue\r\n"))
            assert (await client.head())[0] == 100
            await client.send(LARGE)
            assert (await client.answer()).body == ANSWER
        assert [one.body for one in engine.requests] == [LARGE, LARGE]


@pytest.mark.parametrize("sent", [0, 1, 300_000])
@pytest.mark.parametrize("first", [b"", LARGE])
async def test_a_body_that_does_not_come_to_its_end(sent: int, first: bytes):
    async with FaultServer(ok()) as engine, plane(engine, body_s=0.2) as p:
        async with p.client() as client:
            await client.post(first)
            await client.send(HEAD % (len(LARGE), b"") + LARGE[:sent])
            answer = await client.answer()
            assert answer.status == 408
            assert answer.value(b"connection") == b"close"
            await client.send(LARGE[sent:])  # is read and dropped
            client.writer.write_eof()
            assert await client.closed() == b""
        async with p.client() as client:
            await client.post(first)
            await client.send(HEAD % (len(LARGE), b"") + LARGE[:sent])
            client.writer.write_eof()
            assert await client.closed() == b""
        assert [one.body for one in engine.requests] == [first, first]


async def test_too_much_is_refused_at_its_head():
    async with FaultServer(ok()) as engine, plane(engine, body_bytes=len(LARGE)) as p, p.client() as client:
        await client.post(LARGE)
        await client.send(HEAD % (len(LARGE) + 1, b"") + LARGE)
        assert (await client.answer()).status == 413
        assert len(engine.requests) == 1


async def test_a_client_that_leaves_while_its_large_request_runs():
    async with FaultServer(ok()) as engine, plane(engine, slots=0) as p:
        async with p.client() as client:
            await client.send(request(LARGE))
            await asyncio.sleep(0.05)
            await client.send(b"early")
        (record,) = await p.notes.until(1)
        assert record.outcome.value == "cancelled" or record.reason
        assert engine.requests == []
        assert p.dispatcher.queue == type(p.dispatcher.queue)()
