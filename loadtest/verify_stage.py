"""What each check of `headrace verify` is given, and what several of them do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from loadtest.verify_client import Caller, Told, Writer
from loadtest.verify_fleet import Fleet

LEAST: Final = 4
TICK_S: Final = 0.02
LOAD_AT_ONCE: Final = 12

APART: Final = {"short-chat": {"max_budget_tokens": 4096}, "long-context": {}}
"""Pools of a policy in which none helps out another."""


@dataclass(slots=True)
class Stage:
    """A fleet that runs, and how much of everything to send."""

    fleet: Fleet
    writer: Writer
    rng: Random
    scale: float = 1.0

    def count(self, usual: int) -> int:
        """So many, more or less as the suite is scaled."""
        return max(LEAST, round(usual * self.scale))

    @property
    def caller(self) -> Caller:
        """A client without a key."""
        return self.fleet.caller()

    def chats(self, count: int, prompt_tokens: int = 40, output_tokens: int = 16) -> list[Mapping[str, Any]]:
        """So many streamed chats."""
        return [self.writer.chat(prompt_tokens, output_tokens) for _ in range(count)]


@dataclass(slots=True)
class Load:
    """Requests that keep coming while something is done to the fleet; `told` is whole when the block has ended."""

    told: list[Told]
    ended: int = 0

    async def answers(self, count: int, within_s: float = 20.0) -> None:
        """Wait until so many have ended, or all that will."""
        until = time.monotonic() + within_s
        while self.ended < count and time.monotonic() < until:  # noqa: ASYNC110 - by many tasks, bounded here
            await asyncio.sleep(TICK_S)


@asynccontextmanager
async def load(caller: Caller, bodies: Iterable[Mapping[str, Any]]) -> AsyncIterator[Load]:
    """Send these, some at once, while the block runs; the block's end waits for the last one."""
    found = Load([])
    waiting = iter(list(bodies))

    async def client() -> None:
        for body in waiting:
            found.told.append(await caller.ask(body))
            found.ended += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(LOAD_AT_ONCE):
            group.create_task(client())
        yield found


class Lateness:
    """How late this process came to its own timers, at most, while the block ran: the machine's part of any delay."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Lateness:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.most_s = max(self.most_s, time.monotonic() - due)
