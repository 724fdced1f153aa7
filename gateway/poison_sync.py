"""What gateways know of requests that workers die of, shared through Redis: such a request costs a fleet two workers,
not two at each gateway that it reaches. Keyed hashes of requests and names of workers, never a request's text.

One hash (`headrace:{fleet}:poison`), bounded and gone by itself; it also has the key by which all hash. What is seen
here is told at once, what others saw is asked for once a second. Without Redis each gateway goes on with what it knows,
and tells it when Redis is back, also to one that has lost its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.quarantine import MARK_BYTES, QUARANTINE_S, Sighting
from gateway.redis_link import pass_on_cancellation
from gateway.redis_script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from gateway.log import Log
    from gateway.poison import PoisonGuard
    from gateway.redis_link import RedisLink

PERIOD_S: Final = 1.0
AT_ONCE: Final = 128
"""Sightings told in one operation."""
MOST: Final = 1024
"""Sightings read of one answer; the script keeps half as many."""
SAME_S: Final = 1.0
"""Two times of one sighting this close together are one."""

_FIELD: Final = re.compile(rf"([0-9a-f]{{{2 * MARK_BYTES}}}):([\x21-\x7e]{{0,128}})")
_NAME: Final = re.compile(r"[0-9a-f]{1,64}")
_KEY: Final = re.compile(r"[0-9a-f]{64}")

EXCHANGE: Final = Script(Path(__file__).with_name("poison.lua").read_text(encoding="utf-8"))


class PoisonSync:
    """One gateway's part: what its guard saw goes to Redis, what others' did comes to it."""

    def __init__(self, fleet: str, link: RedisLink, guard: PoisonGuard, clock: Callable[[], float], log: Log) -> None:
        self._key = f"headrace:{{{fleet}}}:poison"
        self._link = link
        self._guard = guard
        self._clock = clock
        self._log = log
        self._hash = ""  # its name: another one, and Redis has lost its memory
        self._version = -1
        self._seen = -1  # the guard's changes when all was told
        self._told: dict[str, float] = {}  # fields of the hash, and when what they say was

    async def run(self) -> None:
        """Exchange, for ever: once a second, and at once when there is something to tell."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._guard.news.wait()
            self._guard.news.clear()
            if await self.exchange() and self._seen != self._guard.quarantine.changes:
                self._guard.news.set()  # more than goes at once
            pass_on_cancellation()

    async def exchange(self) -> bool:
        """Tell and hear once; whether Redis answered."""
        quarantine = self._guard.quarantine
        changes, key, began = quarantine.changes, quarantine.key.hex(), self._clock()
        untold = self._untold() if changes != self._seen else {}
        telling = dict(list(untold.items())[-AT_ONCE:])
        ages = [[field, max(0, round(1000 * (began - at)))] for field, at in telling.items()]
        heard, known = (self._hash, self._version), token_hex(8)

        async def tell(redis: Redis) -> _Answer:
            arguments: list[str | bytes] = [key, known, heard[0], str(heard[1]), orjson.dumps(ages)]
            return _Answer(await EXCHANGE(redis, [self._key], arguments))

        answer = await self._link.run(tell)
        if answer is None:
            return False
        if answer.hash != self._hash or answer.key != key:
            self._told = {}
            telling = telling if answer.key == key else {}
            changes = -1  # all of it is news there
        self._hash, self._version = answer.hash, answer.version
        self._told |= telling
        if answer.key != key:
            quarantine.use_key(bytes.fromhex(answer.key))
        now = self._clock()
        sightings = [Sighting(bytes.fromhex(mark), worker, now - age_s) for mark, worker, age_s in answer.found]
        self._told |= {_field(each): each.at for each in sightings}
        before = quarantine.changes
        held = self._guard.hear(sightings)
        if held:
            why = "other gateways lost workers under these requests"
            self._log.event("quarantine_heard", requests=held, why=why)
        all_told = len(telling) == len(untold) and changes == before
        self._seen = quarantine.changes if all_told else -1
        return True

    def _untold(self) -> dict[str, float]:
        """What the hash does not say, by its field."""
        known = {_field(each): each.at for each in self._guard.quarantine.sightings()}
        self._told = {field: at for field, at in self._told.items() if field in known}
        oldest = self._clock() - QUARANTINE_S
        return {field: at for field, at in known.items() if at > oldest and at > self._told.get(field, oldest) + SAME_S}


class _Answer:
    """What the script said; raises ValueError for what it cannot have said, leaves out what is no sighting."""

    def __init__(self, text: Any) -> None:
        value = orjson.loads(text)
        if not (isinstance(value, list) and len(value) in (3, 4) and all(isinstance(each, str) for each in value[:2])):
            raise ValueError("the poison script's answer is not a name, a key and a version")
        self.hash, self.key = value[0], value[1]
        if not _NAME.fullmatch(self.hash) or not _KEY.fullmatch(self.key) or not isinstance(value[2], (int, float)):
            raise ValueError("the poison script's answer has no name, key or version")
        self.version = int(value[2])
        self.found: list[tuple[str, str, float]] = []
        for each in value[3][:MOST] if len(value) == 4 and isinstance(value[3], list) else ():
            if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)):
                continue
            field, age_ms = _FIELD.fullmatch(each[0]), each[1]
            if field is not None and isinstance(age_ms, (int, float)) and 0 <= age_ms < 1000 * QUARANTINE_S:
                self.found.append((field[1], field[2], age_ms / 1000))


def _field(sighting: Sighting) -> str:
    return f"{sighting.mark.hex()}:{sighting.worker}"
