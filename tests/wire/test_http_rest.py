"""A connection to a worker rests before it is used again: what came too much is then seen while it answers nobody."""

from __future__ import annotations

import pytest
from data_plane import plane, until
from fault_server import ANSWER, FaultServer, http, ok

from gateway.http.upstream import PROOF, SHORT_REST_S, SPARE

AHEAD = 1  # made before it is needed, where there are so many
OTHERS = http(200, b'{"somebody":"else"}')


async def test_a_second_answer_that_comes_while_the_next_question_is_on_its_way():
    """Row 22: on a connection used again at once it would be that question's answer."""
    first = None

    async def script(call):
        nonlocal first
        if first is None:
            first = call
            await call.send(http(200, ANSWER))
            await call.gate.wait()
            await call.send(OTHERS)
        else:
            first.gate.set()
            await first.gone.wait()  # the gateway has seen it and dropped the connection
            await call.send(http(200, ANSWER))

    async with FaultServer(script) as engine, plane(engine, rest_s=60.0) as p, p.client() as client:
        for _ in range(2):
            answer = await client.post()
            assert (answer.status, answer.body) == (200, ANSWER)
        assert len(engine.connections) == 2


async def test_rested_connections_are_used_again_the_longest_idle_first():
    async with FaultServer(ok()) as engine, plane(engine, rest_s=0.02) as p, p.client() as client:
        await client.post()
        pool = p.pools["w0"]
        kept = pool._first
        assert kept is not None
        kept.idle_since -= 1.0
        await client.post()
        assert len(engine.connections) == 1
        kept.idle_since += 60.0
        await client.post()
        assert len(engine.connections) == 2
        assert pool.idle_connections == 2


@pytest.mark.parametrize("surplus", [OTHERS, OTHERS[:20], b"x", b"\r\n"])
async def test_what_arrives_in_the_turn_in_which_a_connection_would_be_taken(surplus: bytes):
    """The loop has not looked yet, so the kernel is asked: there it would be the answer to the next question."""
    calls = []

    async def script(call):
        calls.append(call)
        await call.send(http(200, ANSWER))

    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        await client.post()
        pool = p.pools["w0"]
        kept = pool._first
        assert kept is not None
        assert kept.quiet()
        calls[0].write(surplus)  # from here on nothing else runs
        assert not kept.quiet()
        assert pool.take() is None
        assert pool.idle_connections == 0
        assert kept.lost
        answer = await client.post()
        assert (answer.status, answer.body) == (200, ANSWER)
        assert len(engine.connections) == 2


def proven(pool):
    """As if it had answered very often with nothing behind."""
    for _ in range(PROOF):
        kept = pool._first
        kept.idle_since -= 100.0
        assert pool.take() is kept
        pool.give_back(kept)


@pytest.mark.parametrize("surplus", [b"", OTHERS, b"x"])
async def test_a_worker_that_never_sent_too_much_has_short_rests_until_it_does(surplus: bytes):
    async def script(call):
        await call.send(http(200, ANSWER) + (surplus if call.request.values(b"x-more") else b""))

    async with FaultServer(script) as engine, plane(engine, rest_s=0.5) as p, p.client() as client:
        await client.post()
        pool = p.pools["w0"]
        assert pool.rest_s == 0.5
        proven(pool)
        assert pool.rest_s == SHORT_REST_S
        pool._first.idle_since -= 0.02
        answer = await client.post(fields=b"X-More: 1\r\n")
        assert (answer.status, answer.body) == (200, ANSWER)
        assert len(engine.connections) == 1, "it rested for long enough"
        assert pool.rest_s == (0.5 if surplus else SHORT_REST_S)
        if surplus:
            await client.post()
            proven(pool)
            assert pool.rest_s == 0.5, "once is enough"


async def test_bytes_while_nobody_asks_are_remembered_too():
    calls = []

    async def script(call):
        calls.append(call)
        await call.send(http(200, ANSWER))

    async with FaultServer(script) as engine, plane(engine, rest_s=0.5) as p, p.client() as client:
        await client.post()
        pool = p.pools["w0"]
        proven(pool)
        await calls[0].send(OTHERS)
        await calls[0].gone.wait()
        assert pool.rest_s == 0.5


async def test_more_connections_than_are_needed_are_closed_one_by_one():
    async with FaultServer(ok()) as engine, plane(engine, rest_s=60.0) as p, p.client() as client:
        pool = p.pools["w0"]
        for _ in range(SPARE + 5):
            await client.post()
        each = pool._first
        while each is not None:
            each.idle_since -= 61.0
            each = each.idle_next
        proven(pool)
        await until(lambda: pool.idle_connections == SPARE + 5 + AHEAD)  # nothing is closed before it is proven
        each = pool._first
        while each is not None:
            each.idle_since -= 61.0
            each = each.idle_next
        for _ in range(20):
            await client.post()
        assert pool.idle_connections == SPARE + 1 + AHEAD
        assert len(engine.connections) == SPARE + 5 + AHEAD


async def test_connections_leave_the_idle_ones_from_anywhere():
    """Whichever ends, the others stay in their order."""
    async with FaultServer(ok()) as engine, plane(engine, rest_s=60.0) as p, p.client() as client:
        pool = p.pools["w0"]
        for _ in range(4):
            await client.post()
        kept = [pool._first]
        while kept[-1] is not None:
            kept.append(kept[-1].idle_next)
        first, second, third, last, _ = kept
        assert pool.idle_connections == 4
        pool.discard(third)
        pool.discard(last)
        assert (first.idle_next, second.idle_next, pool._last, pool.idle_connections) == (second, None, second, 2)
        pool.discard(third)  # again, which changes nothing
        await client.post()
        assert pool.idle_connections == 3
        assert second.idle_next is pool._last
        pool.discard(first)
        assert pool._first is second
        assert pool.close_idle() == 2
        assert (pool._first, pool._last, pool.idle_connections) == (None, None, 0)
