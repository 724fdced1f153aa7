"""Lua scripts in Redis, called by their digests."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Script:
    """A Lua script: called by its digest, with its text where the server does not know it yet."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Redis names scripts by SHA-1; it protects nothing here.
        self._digest = sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, redis: Redis, keys: Sequence[str], arguments: Sequence[str | bytes]) -> Any:
        """Run it; raises what redis-py raises."""
        try:
            return await redis.evalsha(self._digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await redis.eval(self.text, len(keys), *keys, *arguments)
