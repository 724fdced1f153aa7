"""Calling the lease script: by its digest, with its text where the server does not know it yet."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from redis.exceptions import NoScriptError

from gateway.leasing.words import BadAnswer

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.leasing.words import Step

TEXT: Final = Path(__file__).with_name("lease.lua").read_text(encoding="utf-8")
# Redis names scripts by SHA-1; it protects nothing here.
DIGEST: Final = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()


def lease_keys(fleet: str) -> tuple[str, ...]:
    """The keys of a fleet that the script uses, in its order: gateways, slots, epoch, ledgers, inbox."""
    return tuple(f"headrace:{{{fleet}}}:{name}" for name in ("gateways", "slots", "epoch", "ledgers", "inbox"))


def hint_channel(fleet: str) -> str:
    """Where the script says that a step has changed something for others."""
    return f"headrace:{{{fleet}}}:hints"


async def send(redis: Redis, fleet: str, step: Step) -> dict[str, Any]:
    """Carry out a step; raises what redis-py raises, and `BadAnswer`."""
    keys = lease_keys(fleet)
    arguments: tuple[str | bytes, ...] = (*keys, orjson.dumps(step.wire()), hint_channel(fleet))
    try:
        answer = await redis.evalsha(DIGEST, len(keys), *arguments)
    except NoScriptError:
        answer = await redis.eval(TEXT, len(keys), *arguments)
    try:
        value = orjson.loads(answer)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BadAnswer(f"the answer is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadAnswer("the answer is not an object")
    return value
