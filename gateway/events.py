"""What happens, told to whoever listens on the admin plane: bounded for each listener and in their number.

A listener that reads too slowly loses the oldest events and is told how many; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

MAX_LISTENERS = 64
MAX_WAITING = 512

KINDS = frozenset({"policy", "worker", "request", "state", "audit"})

Event = tuple[str, Mapping[str, Any]]


class TooManyListenersError(Exception):
    """`MAX_LISTENERS` listen already."""


class Listener:
    """One reader's events, the oldest first."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.lost = 0
        """Events dropped since the last `take`."""
        self.closed = False
        """Whether there will be no more: the gateway stops."""
        self._waiting: deque[Event] = deque()
        self._some = asyncio.Event()

    def put(self, event: Event) -> None:
        """One more event."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(event)
        self._some.set()

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._some.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until there is something; False when nothing came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> tuple[list[Event], int]:
        """Everything there is, and how many were lost before it."""
        found, lost = list(self._waiting), self.lost
        self._waiting.clear()
        self._some.clear()
        self.lost = 0
        return found, lost


class Events:
    """Tells all listeners. `put` costs next to nothing while nobody listens."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def put(self, kind: str, make: Callable[[], Mapping[str, Any]]) -> None:
        """Something of this kind (one of KINDS) happened; `make` says what, and is only asked if somebody listens."""
        interested = [listener for listener in self._listeners if kind in listener.kinds]
        if interested:
            event = kind, make()
            for listener in interested:
                listener.put(event)

    def listen(self, kinds: frozenset[str] = KINDS) -> Listener:
        """A new listener; `leave` ends it. Raises `TooManyListenersError`."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise TooManyListenersError
        listener = Listener(kinds)
        self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """The gateway stops: every listener's reader may go."""
        for listener in self._listeners:
            listener.close()

    def leave(self, listener: Listener) -> None:
        """This one listens no more."""
        self._listeners.discard(listener)
