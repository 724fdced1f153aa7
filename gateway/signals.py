"""What a signal that ends a program does: the first one asks it to stop, a second one takes its patience away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when the terminal goes; whoever started us with `nohup` has it ignored, and keeps it so."""


@contextmanager
def ending_signals(first: Callable[[], object], again: Callable[[], object]) -> Iterator[None]:
    """Inside the block, the first signal of `ENDING` calls `first` and every later one calls `again`, on the loop.

    Nothing is raised at a random place of the program, as KeyboardInterrupt would be, so cleaning up is never cut
    short. Afterwards the signals are ignored: what is left of the program is over in no time.
    """
    loop = asyncio.get_running_loop()
    calls = [first]

    def received() -> None:
        (calls.pop() if calls else again)()

    ending = [number for number in ENDING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    for number in ending:
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number in ending:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
