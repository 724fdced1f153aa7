"""Descriptors that idle connections hold are given to requests that need one."""

import asyncio
import os
import resource

from data_plane import plane, until
from fault_server import ANSWER, FaultServer, ok


def lowest_free() -> int:
    free = os.dup(0)
    os.close(free)
    return free


async def test_idle_connections_make_room_for_a_new_one():
    """BR-12-03: `rest_s` keeps the idle connections from being used again, so each request needs a new one."""
    async with FaultServer(ok()) as engine, plane(engine, rest_s=60.0) as p, p.client() as client:
        assert (await client.post()).body == ANSWER
        pool = p.pools["w0"]
        await until(lambda: pool.idle_connections == 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), hard))
        try:
            answer = await client.post()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert answer.body == ANSWER
        assert pool.open_connections == 1


async def test_one_client_too_many_is_turned_away_once_told():
    told: list[bool] = []
    async with FaultServer(ok()) as engine, plane(engine, connections=8) as p:
        p.server.on_crowd = told.append
        clients = [await p.client().__aenter__() for _ in range(10)]
        for client in clients[8:]:
            assert await client.closed() == b""
        assert told == [True, False]
        assert (await clients[0].post()).body == ANSWER
        clients[0].writer.close()
        await until(lambda: p.server.stats().connections == 7)
        async with p.client() as client, p.client() as another:
            assert (await client.post()).body == ANSWER
            assert await another.closed() == b""
        assert told == [True, False, True]
        for client in clients:
            client.writer.transport.abort()
        await asyncio.sleep(0)
