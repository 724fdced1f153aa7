"""Tenants' minutes between gateways: Redis is told what was used here and says what was used everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import orjson

from gateway.leasing.script import lease_keys
from gateway.quota import Change, Quota, Telling
from gateway.redis_link import pass_on_cancellation
from gateway.redis_script import Script

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.redis_link import RedisLink

PERIOD_S = 0.25
SILENT_S = 2.0
"""After so long without an answer from Redis the other gateways count as not heard."""

MAX_AT_ONCE = 512
MAX_SECONDS = 128

TELL: Final = Script(Path(__file__).with_name("quota.lua").read_text(encoding="utf-8"))


class QuotaSync:
    """Tells Redis what was used here and hears what was used everywhere, while there is anything to tell or to hear."""

    def __init__(
        self,
        fleet: str,
        link: RedisLink | None,
        clock: Callable[[], float],
        loss: Callable[[], str],
        gateways: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._link = link
        self._clock = clock
        self._loss = loss
        self._gateways = gateways
        self._me = token_hex(8)
        self._number = self._turn = 0
        self._answered = clock()

    def share(self) -> float | None:
        """The part of each limit that is ours alone; None: the others are heard."""
        if self._link is None:
            return 1.0
        if self._clock() - self._answered <= SILENT_S:
            return None
        loss = self._loss()
        return 1.0 if loss == "open" else 0.0 if loss == "closed" else 1.0 / max(self._gateways(), 1)

    async def run(self, quota: Quota) -> None:
        """Exchange, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.exchange(quota)
            pass_on_cancellation()

    async def exchange(self, quota: Quota) -> None:
        """Tell and hear once."""
        link, now = self._link, self._clock()
        began = now
        changes = quota.untold(now)
        if link is None:
            return
        if not changes:
            if link.up is not False:
                self._answered = now  # nobody is limited: nothing is missed
            return
        self._number += 1
        told = self._turn_of(changes)
        quota.not_told({name: each for name, each in changes.items() if name not in told}, now)
        heard = await link.run(lambda redis: self._tell(redis, told))
        now = self._clock()
        if heard is None:
            quota.not_told(told, now)
            return
        self._answered = now
        for (name, sent), (last, each) in zip(told.items(), heard, strict=True):
            quota.heard(name, each, now, Telling(self._number, last, sent, began))

    def _turn_of(self, changes: dict[str, list[Change]]) -> dict[str, list[Change]]:
        """Where there are more than go at once, each tenant has its turn."""
        if len(changes) <= MAX_AT_ONCE:
            return changes
        names = list(changes)
        at = self._turn % len(names)
        self._turn += MAX_AT_ONCE
        return {name: changes[name] for name in (names[at:] + names[:at])[:MAX_AT_ONCE]}

    async def _tell(self, redis: Redis, told: dict[str, list[Change]]) -> list[tuple[int, list[Change]]]:
        epoch_key = lease_keys(self._fleet)[2]
        keys = [epoch_key, *(f"headrace:{{{self._fleet}}}:quota:{name}" for name in told)]
        answer = await TELL(redis, keys, [self._me, str(self._number), orjson.dumps(list(told.values()))])
        value = orjson.loads(answer)
        if value == {}:
            value = []
        if not isinstance(value, list) or len(value) != len(told):
            raise ValueError("the quota script's answer is not a list for each tenant")
        return [read_answer(each) for each in value]


def read_answer(value: object) -> tuple[int, list[Change]]:
    """What Redis says of one tenant: the number of our telling that it remembers, and what all used."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], (int, float))):
        raise ValueError("the quota script's answer is not a number and a list for each tenant")
    return int(value[0]), read_changes(value[1])


def read_changes(value: object) -> list[Change]:
    """What all used of one tenant, as Redis says; what cannot be is left out."""
    found: list[Change] = []
    for each in value if isinstance(value, list) else ():
        if len(found) < MAX_SECONDS and isinstance(each, list) and len(each) == 3:
            numbers = [int(n) for n in each if isinstance(n, (int, float)) and n == n and abs(n) < 2**52]
            if len(numbers) == 3 and 0 <= numbers[0] <= MAX_SECONDS:
                found.append((numbers[0], max(numbers[1], 0), max(numbers[2], 0)))
    return found
