"""The way to Redis: short timeouts, no hidden retries, a breaker of our own, one line per change of state.

Only background work comes here, never a request. redis-py would by default try ten times five seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from workers.redis_client import (
    FAILURES,
    OPERATION_S,
    SILENT,
    TIMEOUT_S,
    close_client,
    closed_handle,
    drop_connections,
    kind_of,
    make_client,
    why_of,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

DOWN_AFTER = 2  # failures in a row; a single one may be a restart or a failover
OPEN_AFTER = 5
OPEN_MIN_S = 1.0
OPEN_MAX_S = 1.5  # a try that often costs nothing, and a Redis that is back is found and used within two seconds
UP_AFTER = 4  # successes in a row, where it answers and refuses: a replica lets us read between its refusals to write
QUIET_S = 15.0  # a subscription without messages is asked for a sign of life


def pass_on_cancellation() -> None:
    """Raise in a task that was cancelled meanwhile: redis-py may have taken the cancellation for a lost connection.

    For tasks that end by being cancelled, after each use of a client.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class RedisLink:
    """One client and what is known about the server's health.

    `on_change(up, why)` is called once per change; `on_error(kind)` for every failure.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float],
        on_change: Callable[[bool, str], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._url = url
        self._redis = make_client(url)
        self.operations = 0
        """Operations tried so far."""
        self._clock = clock
        self._on_change = on_change
        self._on_error = on_error
        self._drops = 0  # how often all connections were closed
        self._failures = 0
        self._successes = 0
        self._troubles = 0  # failures since all was well
        self._silent = True  # the last failure was no answer at all
        self._open_s = OPEN_MIN_S
        self._open_until = 0.0
        self.up: bool | None = None
        """Whether Redis answers; None before the first answer or failure."""
        self.why = "not asked yet"

    async def run(self, operation: Callable[[Redis], Awaitable[T]]) -> T | None:
        """The operation's result, or None when Redis did not give one; never raises for what Redis does.

        While the breaker is open nothing is tried.
        """
        if self._clock() < self._open_until:
            return None
        self.operations += 1
        drops = self._drops
        try:
            async with asyncio.timeout(OPERATION_S):
                result = await operation(self._redis)
        except (*FAILURES, ValueError) as error:
            if isinstance(error, RuntimeError) and not closed_handle(error):
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # redis-py 8 turns a cancellation that comes while it connects into its own TimeoutError.
                raise asyncio.CancelledError from error
            if self._drops == drops or kind_of(error) != "connection":
                await self._failed(error)
            # Else its connection was closed by us, for what another operation ran into: that says why.
            return None
        self._failures = 0
        self._open_s = OPEN_MIN_S
        self._successes += 1
        if self._silent or self._successes >= UP_AFTER:
            self._troubles = 0
            self._change(True, "answers")
        return result

    async def listen(self, channel: str, heard: Callable[[bytes], None]) -> None:
        """Call `heard` for every message of a channel until the connection, one of its own, is lost."""
        # It waits for messages as long as they take; that is what no timeout is for.
        redis = make_client(self._url, timeout_s=None, connections=1)
        try:
            async with asyncio.timeout(OPERATION_S):
                await redis.initialize()  # a cluster's client does not know its nodes before
            async with redis.pubsub() as messages:
                async with asyncio.timeout(OPERATION_S):
                    await messages.subscribe(channel)
                asked = False
                while True:
                    message: dict[str, Any] | None = await messages.get_message(timeout=QUIET_S)
                    pass_on_cancellation()
                    if message is None:
                        if asked:
                            return
                        await messages.ping()
                    asked = message is None
                    if message is not None and message["type"] == "message":
                        heard(message["data"])
        except FAILURES as error:
            if isinstance(error, RuntimeError) and not closed_handle(error):
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            self._on_error(kind_of(error))
        finally:
            await close_client(redis)

    async def close(self) -> None:
        """Close the connections."""
        await close_client(self._redis)

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._troubles += 1
        self._successes = 0
        kind = kind_of(error)
        self._silent = kind in SILENT
        self._on_error(kind)
        if self._failures >= OPEN_AFTER:
            self._open_until = self._clock() + self._open_s
            self._open_s = min(self._open_s * 2, OPEN_MAX_S)
        if self._troubles >= DOWN_AFTER or self.up is None:
            self._change(False, why_of(error))
        self._drops += 1
        # Whatever a connection was in the middle of is unknown now; and after a failover the old server still
        # answers on old connections. `disconnect` may itself meet the dead peer.
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await drop_connections(self._redis)
        except FAILURES:
            self._on_error("other")

    def _change(self, up: bool, why: str) -> None:
        changed = up is not self.up
        self.up, self.why = up, why
        if changed:
            self._on_change(up, why)
