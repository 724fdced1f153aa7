"""Small things done again and again: how late the loop is, keys that changed on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from gateway.keys import KeyFileError, KeyStore

if TYPE_CHECKING:
    from gateway.keys_shared import SharedKeys
    from gateway.log import Log
    from gateway.metrics import Metrics

LAG_S = 0.1
KEYS_S = 0.5
AFTER_FAULT_S = 1.0


async def keep_doing(work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
    """Background work that ends by itself or never: after a fault of ours the loop's handler is told, and it begins
    anew. What it watches must not stay unwatched."""
    while True:
        try:
            await work()
            return
        except Exception as error:
            context = {"message": f"{name} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        await asyncio.sleep(AFTER_FAULT_S)


async def sample_lag(metrics: Metrics, clock: Callable[[], float], late: Callable[[float], None]) -> None:
    """Measure how late a timer runs and tell `late`; for ever."""
    while True:
        due = clock() + LAG_S
        await asyncio.sleep(LAG_S)
        lag = max(0.0, clock() - due)
        metrics.lag(lag)
        late(lag)


async def watch_keys(keys: KeyStore, shared: SharedKeys | None, log: Log) -> None:
    """Take over keys that were made or revoked, by the command line or at other gateways; for ever."""
    said, known = "", keys.version
    while True:
        await asyncio.sleep(KEYS_S)
        try:
            keys.refresh()
            if shared is not None:
                await shared.sync()
            if keys.version != known:
                known = keys.version
                log.event("keys_changed")
            said = ""
        except KeyFileError as error:
            if str(error) != said:
                said = str(error)
                log.event("keys_unreadable", why=said)
