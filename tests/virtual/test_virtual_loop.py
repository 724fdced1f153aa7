"""The virtual loop itself: fast, ordered, and never hanging."""

import asyncio
import time

import pytest
from virtual_loop import Deadlock, VirtualLoop, run_virtual


def test_an_hour_takes_no_time():
    async def main() -> list[int]:
        order: list[int] = []

        async def sleeper(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (3600, 1, 60)))
        return order

    began = time.monotonic()
    assert run_virtual(main()) == [1, 60, 3600]
    assert time.monotonic() - began < 5


def test_waiting_for_nothing_fails():
    loop = VirtualLoop()
    future = loop.create_future()
    with pytest.raises(Deadlock):
        loop.run_until_complete(future)
    loop.close()
