"""The agents' way to Redis: a few operations at once, each with its time, and new connections after a failure.

Nothing is retried: an agent reports again a second later anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis

from workers.redis_client import (
    FAILURES,
    MAX_CONNECTIONS,
    OPERATION_S,
    TIMEOUT_S,
    close_client,
    closed_handle,
    drop_connections,
    make_client,
)

T = TypeVar("T")


class ReportLink:
    """One client that many agents share: they wait for their turn, as they would for Redis."""

    def __init__(self, client: Redis) -> None:
        self._redis = client
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._drops = 0  # how often all connections were closed

    async def run(self, operation: Callable[[Redis], Awaitable[T]]) -> T:
        """The operation's result; raises one of `FAILURES` when Redis did not give one within `OPERATION_S`."""
        drops: int | None = None  # None: its turn has not come
        try:
            async with asyncio.timeout(OPERATION_S), self._turns:
                drops = self._drops
                return await operation(self._redis)
        except FAILURES as error:
            if isinstance(error, RuntimeError) and not closed_handle(error):
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # redis-py 8 turns a cancellation that comes while it connects into its own TimeoutError.
                raise asyncio.CancelledError from error
            if drops == self._drops:
                await self._drop()
            raise

    async def close(self) -> None:
        """Close the connections."""
        await close_client(self._redis)

    async def _drop(self) -> None:
        # After a failover the old primary still answers on old connections, that it is a replica now; whatever else
        # a connection was in the middle of is unknown.
        self._drops += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await drop_connections(self._redis)
        except FAILURES as error:
            if isinstance(error, RuntimeError) and not closed_handle(error):
                raise
            # It met the dead peer while it said goodbye: what the operation ran into is told, and that is the same.


def connect(url: str) -> ReportLink:
    """The way to Redis for `run_agent`, by any URL that gateways take; nothing is connected yet.

    Raises ValueError for a URL that is none.
    """
    return ReportLink(make_client(url))
