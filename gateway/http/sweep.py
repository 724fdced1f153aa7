"""One coarse timer for every deadline of the data plane, instead of a timer for each connection, stream or chunk."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

INTERVAL_S = 0.05
NEVER: Final = float("inf")
LAG_S = 1.0
"""A sweep later than this means that the process stood still: its clients and workers did not."""


class Watched(Protocol):
    """Something with a deadline; `due` may move at any time, earlier ones are noticed within one sweep."""

    due: float

    def on_due(self, now: float) -> None:
        """`due` has come; move it on or end."""
        ...


class Sweeper:
    """Calls whatever is due, every `INTERVAL_S`.

    `now` is the time all its deadlines are in: the loop's clock without the stretches in which the process did not
    run, so that a stopped process does not find everything overdue when it wakes (SIGSTOP, a suspended machine).
    It moves with the sweeps: reading it costs an attribute.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._lost_s = 0.0
        self.now = loop.time()
        self.lags = 0

    def add(self, watched: Watched, after_s: float) -> None:
        """Watch it from now on; it is due in `after_s` for the first time."""
        if self._timer is None:
            # `now` stood still while nothing was watched: a deadline reckoned from it could be over already.
            self.now = self._loop.time() - self._lost_s
            self._timer = self._loop.call_later(INTERVAL_S, self._sweep)
        watched.due = self.now + after_s
        self._watched.add(watched)

    def remove(self, watched: Watched) -> None:
        """Watch it no longer."""
        self._watched.discard(watched)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        time = self._loop.time()
        lag = time - self._lost_s - self.now - INTERVAL_S
        if lag > LAG_S:
            self._lost_s += lag
            self.lags += 1
        now = self.now = time - self._lost_s
        try:
            for watched in [one for one in self._watched if one.due <= now]:
                if watched in self._watched:
                    watched.on_due(now)
        finally:
            self._timer = self._loop.call_later(INTERVAL_S, self._sweep) if self._watched else None
