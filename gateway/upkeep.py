"""Small things done again and again: how late the loop is, keys that changed on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.keys import KeyFileError, KeyStore

if TYPE_CHECKING:
    from gateway.log import Log
    from gateway.metrics import Metrics

LAG_S = 0.1
KEYS_S = 1.0


async def sample_lag(metrics: Metrics, clock: Callable[[], float]) -> None:
    """Measure how late a timer runs; for ever."""
    while True:
        due = clock() + LAG_S
        await asyncio.sleep(LAG_S)
        metrics.lag(max(0.0, clock() - due))


async def watch_keys(keys: KeyStore, log: Log) -> None:
    """Take over keys that were made or revoked; for ever."""
    said = ""
    while True:
        await asyncio.sleep(KEYS_S)
        try:
            if keys.refresh():
                log.event("keys_changed")
            said = ""
        except KeyFileError as error:
            if str(error) != said:
                said = str(error)
                log.event("keys_unreadable", why=said)
