"""Several gateways of one fleet in the test's process, with a Redis and a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from admin_support import Api, settings
from plain_worker import PlainWorker, plain_worker
from redis.asyncio import Redis
from running_gateway import running

from gateway.process import Child, start_valkey

PATIENCE_S = 60.0  # of which replicas need about one; more where the machine has other work


class Replicas:
    """Gateways that share a Redis and a worker."""

    def __init__(self, stack: AsyncExitStack, tmp_path: Path, worker: PlainWorker, valkey: Child) -> None:
        self.stack = stack
        self.tmp_path = tmp_path
        self.worker = worker
        self.valkey = valkey
        self.redis = Redis.from_url(valkey.url)

    async def start(self, name: str, **more: Any) -> Api:
        """One more."""
        home = self.tmp_path / name
        home.mkdir(exist_ok=True)
        wanted = settings(home, [self.worker], redis=self.valkey.url, **more)
        return Api(await self.stack.enter_async_context(running(wanted, fresh=True)))


@asynccontextmanager
async def one_redis(tmp_path: Path) -> AsyncIterator[Replicas]:
    valkey = await start_valkey()
    try:
        async with plain_worker() as worker, AsyncExitStack() as stack:
            found = Replicas(stack, tmp_path, worker, valkey)
            stack.push_async_callback(found.redis.aclose)
            yield found
    finally:
        await valkey.stop()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "did not become true in time"
        await asyncio.sleep(0.05)


async def until_all(apis: list[Api], number: int) -> None:
    """Wait until every replica uses this revision and each knows that of the others."""

    async def agreed() -> bool:
        states = [await api.get("policy/state") for api in apis]
        return all(
            state["revision"]["number"] == number and state["converged"] and len(state["replicas"]) == len(apis)
            for state in states
        )

    await until(agreed)
