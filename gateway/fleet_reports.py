"""Reading the workers' reports out of Redis in one bounded round trip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from gateway.redis_script import Script
from workers.report import MAX_REPORT_BYTES, is_worker_id, report_key, workers_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_WORKERS = 4096
NOT_TEXT = b"(the key holds no text)"

READ: Final = Script(Path(__file__).with_name("reports.lua").read_text(encoding="utf-8"))
"""A script, because one operation for each of 500 workers twice a second would be most of what Redis does for us."""


async def read_reports(redis: Redis, fleet: str) -> dict[str, bytes]:
    """The value under every announced worker's key that has one; raises what redis-py raises.

    Nothing in Redis is trusted: names that cannot be ids are left out, at most `MAX_WORKERS` are read, and of each
    value one byte more than a report may have, so that a longer one is seen to be too long.
    """
    try:
        # SRANDMEMBER with a count is SMEMBERS with an upper bound.
        members = await redis.srandmember(workers_key(fleet), MAX_WORKERS)
    except ResponseError as error:
        if str(error).startswith("WRONGTYPE"):
            # Somebody else's mistake, in the way of every agent: they put their names there again within a second.
            await redis.delete(workers_key(fleet))
        raise
    names = [_text(member) for member in (members if isinstance(members, list) else ())]
    ids = sorted(name for name in names if is_worker_id(name))
    if not ids:
        return {}
    values = await READ(redis, [report_key(fleet, worker_id) for worker_id in ids], [str(MAX_REPORT_BYTES), NOT_TEXT])
    return {worker_id: value for worker_id, value in zip(ids, values, strict=True) if value}


def _text(member: object) -> str:
    return member.decode("latin-1") if isinstance(member, bytes) else str(member)
