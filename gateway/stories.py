"""Why requests went where they did, for all replicas: each puts its stories into Redis, so that `explain`
finds one whichever gateway is asked.

Bounded whatever the traffic is: a story lies in one of `SLOTS` keys, chosen by its request's id, and is overwritten by
the next one there; each goes by itself after `KEEP_S`. They are written once a second, all in one operation.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.records import RequestRecord
    from gateway.redis_link import RedisLink

SLOTS: Final = 1 << 14
KEEP_S: Final = 900
WRITE_S: Final = 1.0
MOST_AT_ONCE: Final = 1000
"""Stories of one write; of more the newest count."""

MAX_STORY_BYTES: Final = 16 * 1024

_WRITE = """
for place = 1, #KEYS do redis.call('SET', KEYS[place], ARGV[place + 1], 'EX', ARGV[1]) end
return #KEYS
"""


class Stories:
    """The replicas' stories. `view` gives this gateway's own by request id, None where it has none."""

    def __init__(
        self, link: RedisLink, fleet: str, replica: str, view: Callable[[str], Mapping[str, Any] | None]
    ) -> None:
        self._link = link
        self._prefix = f"headrace:{{{fleet}}}:story:"
        self._replica = replica
        self._view = view
        self._fresh: deque[str] = deque(maxlen=MOST_AT_ONCE)

    def finished(self, record: RequestRecord) -> None:
        """A request ended here; its story is complete."""
        self._fresh.append(record.request_id)

    async def keep_writing(self) -> None:
        """Write what is new, once a second; for ever."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()

    async def write(self) -> None:
        """Write what is new."""
        fresh, self._fresh = self._fresh, deque(maxlen=MOST_AT_ONCE)
        told: dict[str, bytes] = {}
        for request_id in fresh:
            view = self._view(request_id)
            story = orjson.dumps({**view, "replica": self._replica}) if view is not None else b""
            if 0 < len(story) <= MAX_STORY_BYTES:
                told[self._key(request_id)] = story
        if not told:
            return

        async def call(redis: Redis) -> Any:
            return await redis.eval(_WRITE, len(told), *told, str(KEEP_S), *told.values())

        await self._link.run(call)

    async def find(self, request_id: str) -> Mapping[str, Any] | None:
        """The story of a request that another replica served; None where nobody tells one."""

        async def read(redis: Redis) -> Any:
            return await redis.get(self._key(request_id))

        raw = await self._link.run(read)
        try:
            found = orjson.loads(raw) if raw else None
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) and found.get("request_id") == request_id else None

    def _key(self, request_id: str) -> str:
        return f"{self._prefix}{zlib.crc32(request_id.encode('utf-8', 'replace')) % SLOTS}"
