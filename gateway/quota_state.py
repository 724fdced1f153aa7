"""Tenants' minutes survive a restart: what all had used of them is kept on this host's disk.

Written every few seconds while something changes, and at the end. A gateway that starts counts it against the limits
for as long as it is within the minute; Redis, where it knows more, has the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from gateway.files import write_whole
from gateway.quota import MAX_TENANTS, SPAN_S
from gateway.quota_sync import read_changes

if TYPE_CHECKING:
    from gateway.log import Log
    from gateway.quota import Quota

PERIOD_S: Final = 5.0
MAX_BYTES: Final = 8 * 1024 * 1024
FILE: Final = "quota.json"


class QuotaState:
    """Keeps `quota`'s snapshots in `directory`; None: nowhere. `wall` tells the time of day: the file outlives us."""

    def __init__(
        self,
        quota: Quota,
        directory: Path | None,
        log: Log,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._quota = quota
        self._path = directory / FILE if directory is not None else None
        self._log = log
        self._clock = clock
        self._wall = wall
        self._saved: object = {}

    async def load(self) -> None:
        """Count what is kept and still within the minute. What in it cannot be is left out."""
        if self._path is None:
            return
        try:
            document = orjson.loads(await asyncio.to_thread(self._read, self._path))
        except FileNotFoundError:
            return
        except (OSError, orjson.JSONDecodeError) as error:
            self._log.event("quota_unreadable", why=str(error))
            return
        at, tenants = (document.get("at"), document.get("tenants")) if isinstance(document, dict) else (None, None)
        if not isinstance(at, (int, float)) or not isinstance(tenants, dict):
            self._log.event("quota_unreadable", why="it is not what a gateway writes")
            return
        # A clock that was set back makes it look younger than it is: then it counts a little longer.
        aged = max(0, round(self._wall() - at))
        for tenant, value in list(tenants.items())[:MAX_TENANTS]:
            changes = [(ago + aged, requests, tokens) for ago, requests, tokens in read_changes(value)]
            if changes := [each for each in changes if each[0] < SPAN_S]:
                self._quota.restore(tenant, changes, self._clock())

    async def run(self) -> None:
        """Save what is new, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.save()

    async def save(self) -> None:
        """Write down what was used, if anything was since the last time."""
        if self._path is None:
            return
        used = self._quota.snapshot(self._clock())
        if not used and not self._saved:
            return
        self._saved = used
        text = orjson.dumps({"at": round(self._wall(), 3), "tenants": used})
        if len(text) > MAX_BYTES:
            self._log.event("quota_not_saved", why=f"{len(text)} bytes; {MAX_BYTES} are allowed")
            return
        try:
            await asyncio.to_thread(write_whole, self._path, text)
        except OSError as error:
            self._log.event("quota_not_saved", why=f"{error.filename}: {error.strerror}")

    @staticmethod
    def _read(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
