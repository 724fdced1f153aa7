"""An event loop whose clock jumps: a second of waiting takes no time, and waiting for nothing fails at once.

For code without sockets: bytes in flight look like idleness and the clock would jump over them.
"""

import asyncio
import os
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LOOKS = 3
"""How often is looked once more before the clock jumps."""


class Deadlock(RuntimeError):
    """Everything waits and no timer is set: with a real loop this would hang."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        # On a busy machine what was sent over loopback is there when the kernel had its turn.
        for _ in range(LOOKS):
            os.sched_yield()
            if ready := super().select(0):
                return ready
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A `SelectorEventLoop` on virtual time, which starts at 0."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
