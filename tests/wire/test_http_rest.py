"""A connection to a worker rests before it is used again: what came too much is then seen while it answers nobody."""

from __future__ import annotations

from data_plane import plane
from fault_server import ANSWER, FaultServer, http, ok

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
