"""Where requests keep coming for which no connection is idle, one more is open already when the next one comes."""

from __future__ import annotations

import asyncio

from data_plane import plane, until
from fault_server import ANSWER, FaultServer, http, ok

from gateway.http.upstream import AHEAD_FROM, UpstreamConnection, UpstreamPool
from gateway.scheduling.model import OutcomeKind


class Waiter:
    """Waits for a connection."""

    def __init__(self) -> None:
        self.connection: asyncio.Future[UpstreamConnection | str] = asyncio.get_running_loop().create_future()

    def on_connected(self, connection: UpstreamConnection) -> None:
        self.connection.set_result(connection)

    def on_connect_failed(self, kind: OutcomeKind, detail: str) -> None:
        self.connection.set_result(detail)


async def busy(pool: UpstreamPool, count: int = AHEAD_FROM) -> list[UpstreamConnection]:
    """So many connections in use, each dialled for itself."""
    found = []
    for _ in range(count):
        assert pool.take() is None
        waiter = Waiter()
        pool.connect(waiter)
        connection = await waiter.connection
        assert isinstance(connection, UpstreamConnection)
        found.append(connection)
    return found


async def one_ahead(pool: UpstreamPool, engine: FaultServer) -> list[UpstreamConnection]:
    """The connections in use, and one more, which the engine knows of as its last."""
    used = await busy(pool, AHEAD_FROM + 1)
    await until(lambda: pool.idle_connections == 1)
    await engine.until(lambda: len(engine.connections) == AHEAD_FROM + 2)
    return used


async def ended(pool: UpstreamPool, engine: FaultServer, connections: list[UpstreamConnection]) -> None:
    pool.close()
    for connection in connections:
        pool.discard(connection)
    assert pool.open_connections == 0
    await engine.until(lambda: engine.open_connections == 0)


async def test_one_more_is_open_before_it_is_asked_for():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await busy(pool)
        assert (len(engine.connections), pool.idle_connections) == (AHEAD_FROM, 0), "few get none ahead"
        used += await busy(pool, 1)
        await until(lambda: pool.idle_connections == 1)
        for number in range(1, 5):
            ahead = pool.take()
            assert ahead is not None, "made ahead, and it needs no rest"
            assert pool.take() is None, "one, not more"
            used.append(ahead)
            await until(lambda: pool.idle_connections == 1)
            await engine.until(lambda n=number: len(engine.connections) == AHEAD_FROM + 2 + n)
        assert pool.open_connections == len(used) + 1
        await ended(pool, engine, used)


async def test_many_at_once_have_one_made_ahead():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await busy(pool)
        waiters = [Waiter() for _ in range(20)]
        for waiter in waiters:
            pool.connect(waiter)
        used += [await waiter.connection for waiter in waiters]  # type: ignore[misc]
        await until(lambda: pool.idle_connections == 1)
        assert pool.open_connections == len(used) + 1 == AHEAD_FROM + 21
        await ended(pool, engine, used)


async def test_what_has_rested_is_taken_before_it():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url, rest_s=0.0)
        used = await one_ahead(pool, engine)
        again = used.pop()
        pool.give_back(again)
        assert pool.take() is again
        ahead = pool.take()
        assert ahead not in (None, again)
        await ended(pool, engine, [*used, again, ahead])  # type: ignore[list-item]


async def test_one_that_nobody_needs_is_closed_like_the_others():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url, idle_s=0.05)
        used = await one_ahead(pool, engine)
        await until(lambda: pool.idle_connections == 0)
        await engine.until(lambda: engine.open_connections == AHEAD_FROM + 1)
        await ended(pool, engine, used)


async def test_room_is_made_of_it_too():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await one_ahead(pool, engine)
        assert pool.close_idle() == 1
        assert (pool.idle_connections, pool.take()) == (0, None)
        await ended(pool, engine, used)


async def test_what_says_something_before_it_is_asked_is_not_used():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await one_ahead(pool, engine)
        engine.connections[-1].transport.write(http(200, ANSWER))  # from here on nothing else runs
        assert pool.take() is None
        assert pool.open_connections == len(used)
        await ended(pool, engine, used)


async def test_one_that_the_worker_closed_is_replaced():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await one_ahead(pool, engine)
        engine.connections[-1].transport.abort()
        await until(lambda: pool.idle_connections == 0)
        used += await busy(pool, 1)
        await until(lambda: pool.idle_connections == 1)
        await ended(pool, engine, used)


async def test_a_pool_that_is_closed_meanwhile_keeps_none():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await busy(pool)
        waiter = Waiter()
        pool.connect(waiter)
        pool.close()
        used.append(await waiter.connection)  # type: ignore[arg-type]
        await until(lambda: not pool._connecting)
        assert (pool.idle_connections, pool.open_connections) == (0, len(used))
        await ended(pool, engine, used)


async def test_a_worker_that_takes_no_more_is_told_of_by_who_needs_one():
    async with FaultServer(ok()) as engine:
        pool = UpstreamPool("w", engine.url)
        used = await busy(pool)
        engine._server.close()
        for _ in range(3):
            waiter = Waiter()
            pool.connect(waiter)
            assert await waiter.connection == "connect_refused"
            await until(lambda: not pool._connecting)
            assert pool.idle_connections == 0
        await ended(pool, engine, used)


async def test_a_request_on_one_that_had_ended_goes_out_again():
    """The worker closes it when it is asked: as with any other that was idle, nothing is lost."""
    async with FaultServer(ok()) as engine, plane(engine, rest_s=60.0) as p:
        pool = p.pools["w0"]
        used = await one_ahead(pool, engine)
        engine.scripts.append(close)
        async with p.client() as client:
            answer = await client.post()
        assert (answer.status, answer.body) == (200, ANSWER)
        assert [call.request for call in engine.calls] == [engine.calls[0].request] * 2
        for connection in used:
            pool.discard(connection)


async def close(call):
    call.close()
