"""Reading the workers' reports out of Redis in one bounded round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from workers.report import MAX_REPORT_BYTES, is_worker_id, report_key, workers_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_WORKERS = 4096
NOT_TEXT = b"(the key holds no text)"


async def read_reports(redis: Redis, fleet: str) -> dict[str, bytes]:
    """The value under every announced worker's key that has one; raises what redis-py raises.

    Nothing in Redis is trusted: names that cannot be ids are left out, at most `MAX_WORKERS` are read, and of each
    value one byte more than a report may have, so that a longer one is seen to be too long.
    """
    # SRANDMEMBER with a count is SMEMBERS with an upper bound.
    members = await redis.srandmember(workers_key(fleet), MAX_WORKERS)
    names = [_text(member) for member in (members if isinstance(members, list) else ())]
    ids = sorted(name for name in names if is_worker_id(name))
    if not ids:
        return {}
    async with redis.pipeline(transaction=False) as pipe:
        for worker_id in ids:
            pipe.getrange(report_key(fleet, worker_id), 0, MAX_REPORT_BYTES)
        values = await pipe.execute(raise_on_error=False)
    found: dict[str, bytes] = {}
    for worker_id, value in zip(ids, values, strict=True):
        if isinstance(value, ResponseError) and str(value).startswith("WRONGTYPE"):
            found[worker_id] = NOT_TEXT
        elif isinstance(value, Exception):
            raise value
        elif value:
            found[worker_id] = value
    return found


def _text(member: object) -> str:
    return member.decode("latin-1") if isinstance(member, bytes) else str(member)
