"""The embedded Valkey: started with us, started again at the same address when it dies, and ended with us.

What was in it is gone with it; gateways and agents bring all of that back by themselves, as to any Redis that has
forgotten everything. No request waits for it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.process import Child, ChildError, describe_exit, start_valkey

PAUSE_MIN_S: Final = 0.25
PAUSE_MAX_S: Final = 10.0
STABLE_S: Final = 10.0
"""One that lived so long is started again without delay; the pause of one that did not grows."""

Tell = Callable[[str, str], None]
"""Hears what happens: `redis_ended`, `redis_not_started` or `redis_started`, and why or where, in one line."""


class EmbeddedRedis:
    """A Valkey that is there again soon after it died. Make it with `start`."""

    def __init__(self, child: Child, tell: Tell) -> None:
        self.child = child
        self.url = child.url
        self._port = int(child.url.rpartition(":")[2].partition("/")[0])
        self._tell = tell
        self._pause_s = PAUSE_MIN_S

    @classmethod
    async def start(cls, tell: Tell) -> EmbeddedRedis:
        """Start it. Raises `ChildError` when it does not start: then nothing else should."""
        return cls(await start_valkey(), tell)

    async def keep(self) -> None:
        """Start it again whenever it dies; for ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self.child.wait()
            self._tell("redis_ended", f"the embedded Valkey (pid {self.child.pid}) ended with {describe_exit(code)}")
            await self.child.stop()  # it has ended: what it printed is let go of
            if loop.time() - began >= STABLE_S:
                self._pause_s = PAUSE_MIN_S
            await self._again()

    async def stop(self) -> None:
        """End it; `keep` must have ended."""
        await self.child.stop()

    async def _again(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
            try:
                # At the same address: workers and other processes know it by that.
                self.child = await start_valkey(port=self._port)
            except (ChildError, OSError) as error:
                self._tell("redis_not_started", f"{error}; next try in {self._pause_s:g} s")
                continue
            self._tell("redis_started", f"the embedded Valkey runs again (pid {self.child.pid}), empty")
            return
