"""What was learned survives a restart: in Redis for all gateways of the fleet, and on this host's disk without one.

Both hold the same JSON document, written now and then and at the end. Whichever can be read first is taken at the
start; what in it cannot be is left out, and no document at all is no reason not to start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from gateway.files import write_whole

if TYPE_CHECKING:
    from gateway.learning import Learning
    from gateway.log import Log
    from gateway.redis_link import RedisLink

PERIOD_S: Final = 60.0
MAX_GATEWAYS: Final = 256
MAX_BYTES: Final = 8 * 1024 * 1024
FILE: Final = "learned.json"


class LearnedState:
    """Keeps `learning`'s snapshots. `directory` None: not on disk. `gateways`: how many there are now."""

    def __init__(
        self,
        learning: Learning,
        link: RedisLink | None,
        fleet: str,
        directory: Path | None,
        log: Log,
        gateways: Callable[[], int] = lambda: 1,
    ) -> None:
        self._learning = learning
        self._link = link
        self._key = f"headrace:{{{fleet}}}:learned"
        self._directory = directory
        self._log = log
        self._saved = (0, 1)
        self._count_gateways = gateways
        self.gateways = 1
        """How many gateways there were when this was written down."""

    async def load(self) -> None:
        """Take over what is kept."""
        text = await self._from_redis()
        where = "redis"
        if not text:
            text, where = await asyncio.to_thread(self._from_disk), "disk"
        if not text:
            return
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self._log.event("learned_unreadable", where=where, why=str(error))
            return
        if isinstance(document, dict) and isinstance(found := document.get("gateways"), int):
            self.gateways = max(1, min(found, MAX_GATEWAYS))
        self._log.event("learned_restored", where=where, entries=self._learning.restore(document))

    async def run(self) -> None:
        """Save what is new, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.save()

    async def save(self) -> None:
        """Write down what was learned since the last time, if anything was."""
        now = (self._learning.learned, self._count_gateways())
        if now == self._saved:
            return
        self._saved = now
        snapshot = {**self._learning.snapshot(), "gateways": now[1]}
        # In a thread: thousands of histograms take longer to write than streams should wait.
        text = await asyncio.to_thread(orjson.dumps, snapshot)
        if len(text) > MAX_BYTES:
            self._log.event("learned_not_saved", why=f"{len(text)} bytes; {MAX_BYTES} are allowed")
            return
        if self._link is not None:
            await self._link.run(lambda redis: redis.set(self._key, text))
        if self._directory is not None:
            try:
                await asyncio.to_thread(write_whole, self._directory / FILE, text)
            except OSError as error:
                self._log.event("learned_not_saved", why=f"{error.filename}: {error.strerror}")

    async def _from_redis(self) -> bytes | None:
        if self._link is None:
            return None
        # One byte more than allowed, so that too much is seen to be too much.
        found = await self._link.run(lambda redis: redis.getrange(self._key, 0, MAX_BYTES))
        return found if isinstance(found, bytes) and 0 < len(found) <= MAX_BYTES else None

    def _from_disk(self) -> bytes | None:
        if self._directory is None:
            return None
        try:
            with (self._directory / FILE).open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log.event("learned_unreadable", where="disk", why=f"{error.filename}: {error.strerror}")
            return None
        return text if len(text) <= MAX_BYTES else None
