"""Background work ends when what it belongs to does."""

import asyncio
from contextlib import AsyncExitStack

from gateway.start import background


async def test_work_that_takes_a_cancellation_for_something_else_ends_all_the_same():
    """As a Redis client may, which takes it for a lost connection and goes on."""
    taken = 0

    async def work() -> None:
        nonlocal taken
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                taken += 1
                if taken == 3:
                    raise

    async with AsyncExitStack() as stack:
        background(stack, work(), "stubborn")
        await asyncio.sleep(0)
    assert taken == 3


async def test_work_that_has_ended_is_not_waited_for():
    async def work() -> None:
        return

    async with AsyncExitStack() as stack:
        background(stack, work(), "short")
        await asyncio.sleep(1)
