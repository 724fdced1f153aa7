"""Degraded modes: what is missing at the moment, and what holds then.

| mode | when | what holds |
|---|---|---|
| R0 | all is well | everything |
| R1 | leases not renewed for 3 s, or Redis has lost writes | own ledger, slots held stay, nobody gets more |
| R2 | Redis is gone | last policy, known workers; after 20 s the policy's `redis_loss` for limits |
| R3 | no worker is usable | requests wait within their queue timeout, then 503 |
| R4 | the loop is more than 250 ms late | the lowest class is refused (503), the rest goes on |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.leasing.keeper import Keeper
    from gateway.log import Log
    from gateway.redis_link import RedisLink

LATE_S: Final = 3.0
PRESSURE_LAG_S: Final = 0.25
PRESSURE_HOLD_S: Final = 2.0  # how long one late look counts
LOOK_S: Final = 0.5


class Mode(StrEnum):
    """The modes, the later the graver."""

    NORMAL = "R0"
    REDIS_STALE = "R1"
    REDIS_GONE = "R2"
    NO_WORKER = "R3"
    PRESSURE = "R4"


MEANING: Final = {
    Mode.NORMAL: "all is well",
    Mode.REDIS_STALE: "Redis answers late or is new: what is held stays, nobody gets more",
    Mode.REDIS_GONE: "Redis is gone: last policy, known workers, limits by redis_loss",
    Mode.NO_WORKER: "no worker is usable: requests wait and then get 503",
    Mode.PRESSURE: "this gateway is overloaded: the lowest class is refused",
}


def mode_of(*, redis_up: bool, settled: bool, usable: bool, pressed: bool) -> Mode:
    """The gravest mode that holds. `settled`: the slots are leased and renewed in time."""
    if pressed:
        return Mode.PRESSURE
    if not usable:
        return Mode.NO_WORKER
    if not redis_up:
        return Mode.REDIS_GONE
    return Mode.NORMAL if settled else Mode.REDIS_STALE


class Pressure:
    """Whether the event loop has been late just now. A process that was stopped for a while is back in two seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = 0.0
        self._late_s = 0.0  # the last time that counted

    def late(self, seconds: float) -> None:
        """A timer ran that much late."""
        if seconds > PRESSURE_LAG_S:
            self._until = self._clock() + PRESSURE_HOLD_S
            self._late_s = seconds

    @property
    def told(self) -> str:
        """What a client of the lowest class hears meanwhile."""
        return (
            f"The gateway is overloaded: it was {self._late_s:.2g} s late within the last {PRESSURE_HOLD_S:g} s, "
            f"{PRESSURE_LAG_S:g} s are borne (a fixed limit). It takes no request of the lowest class for the moment. "
            "Retry later."
        )

    @property
    def on(self) -> bool:
        """Whether the lowest class is refused."""
        if self._until > 0.0:
            if self._clock() < self._until:
                return True
            self._until = 0.0  # so that the time is not asked for ever after
        return False


class Modes:
    """The mode this gateway is in."""

    def __init__(
        self, link: RedisLink | None, keeper: Keeper | None, usable: Callable[[], bool], pressure: Pressure
    ) -> None:
        self._link = link
        self._keeper = keeper
        self._usable = usable
        self._pressure = pressure

    def look(self) -> Mode:
        """The mode now."""
        keeper = self._keeper
        return mode_of(
            redis_up=self._link is None or self._link.up is not False,
            settled=keeper is None or (keeper.silent_s < LATE_S and keeper.holder.open),
            usable=self._usable(),
            pressed=self._pressure.on,
        )


async def watch_mode(modes: Modes, log: Log) -> None:
    """One line for every change; for ever."""
    before = Mode.NORMAL
    while True:
        await asyncio.sleep(LOOK_S)
        mode = modes.look()
        if mode is not before:
            before = mode
            log.event("mode", mode=str(mode), what=MEANING[mode])
