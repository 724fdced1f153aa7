"""Calling the lease script, the store's side of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.leasing.words import BadAnswer
from gateway.redis_script import Script

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.leasing.words import Step

STEP: Final = Script(Path(__file__).with_name("lease.lua").read_text(encoding="utf-8"))


def lease_keys(fleet: str) -> tuple[str, ...]:
    """The keys of a fleet that the script uses, in its order: gateways, slots, epoch, ledgers, inbox."""
    return tuple(f"headrace:{{{fleet}}}:{name}" for name in ("gateways", "slots", "epoch", "ledgers", "inbox"))


def hint_channel(fleet: str) -> str:
    """Where the script says that a step has changed something for others."""
    return f"headrace:{{{fleet}}}:hints"


async def send(redis: Redis, fleet: str, step: Step) -> dict[str, Any]:
    """Carry out a step; raises what redis-py raises, and `BadAnswer`."""
    answer = await STEP(redis, lease_keys(fleet), [orjson.dumps(step.wire()), hint_channel(fleet)])
    try:
        value = orjson.loads(answer)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BadAnswer(f"the answer is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadAnswer("the answer is not an object")
    return value
