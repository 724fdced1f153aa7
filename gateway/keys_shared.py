"""Client keys over all gateways of a fleet, through Redis: a key made, rotated or revoked at one holds at all within a
second. Only hashes are there, as in each gateway's own file, which stays what a gateway starts from without Redis.

Keys lie in buckets (`headrace:{fleet}:keys:<bucket>`, a hash of records by key id); `headrace:{fleet}:keys` has a token
for each bucket that changes with it, so that a look without changes is one small answer however many keys there are.
Of two records of one key the one of the later stage holds (`keys.stage`: revoked, then how often rotated), so gateways
agree in whatever order they hear of changes; a Redis that lost its memory gets the keys again.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.keys import KeyRecord, KeyStore, record_of, recorded, stage

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.redis_link import RedisLink

BUCKETS: Final = 256
MAX_OF_BUCKET: Final = 2000
AT_ONCE: Final = 100
"""Records of one write."""

MAX_RECORD_BYTES: Final = 2048

_PUSH = """
for place = 4, #ARGV, 3 do
  local held = redis.call('HGET', KEYS[2], ARGV[place])
  if held and not string.find(held, '^[01]%d%d%d%d%d%d%d%d%d%d%d%d%x+ {') then held = false end
  local later = not held or string.sub(held, 1, #ARGV[place + 1]) < ARGV[place + 1]
  if later and (held or redis.call('HLEN', KEYS[2]) < tonumber(ARGV[3])) then
    redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1] .. ' ' .. ARGV[place + 2])
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class SharedKeys:
    """The fleet's keys as one gateway reaches them; `store` has its own."""

    def __init__(self, link: RedisLink, fleet: str, store: KeyStore) -> None:
        self._link = link
        self._key = f"headrace:{{{fleet}}}:keys"
        self._store = store
        self._lock = asyncio.Lock()
        self._seen: dict[str, bytes] = {}  # the token of each bucket when it said what we have
        self._agreed: dict[str, frozenset[str]] = {}  # and what we had then
        self._version = -1
        self._own: dict[str, list[KeyRecord]] = {}

    async def sync(self) -> bool:
        """Ask Redis once: take over what is newer there, put there what is newer here. Whether both say the same now.

        Raises `KeyFileError` where what came cannot be kept.
        """
        async with self._lock:
            tokens = await self._tokens()
            if tokens is None:
                return False
            own = self._buckets()
            changed = [
                bucket
                for bucket in sorted(tokens.keys() | own.keys())
                if tokens.get(bucket) != self._seen.get(bucket)
                or _stages(own.get(bucket, ())) != self._agreed.get(bucket, frozenset())
            ]
            agreed = True
            for bucket in changed:
                agreed &= await self._agree(bucket, tokens.get(bucket, b""))
            return agreed

    async def _tokens(self) -> dict[str, bytes] | None:
        async def read(redis: Redis) -> Any:
            return await redis.hgetall(self._key)

        found = await self._link.run(read)
        if found is None:
            return None
        names = {f"{place:02x}" for place in range(BUCKETS)}
        return {name: token for raw, token in found.items() if (name := _text(raw)) in names}

    def _buckets(self) -> Mapping[str, list[KeyRecord]]:
        if self._store.version != self._version:
            self._own = {}
            for record in self._store.records():
                self._own.setdefault(bucket_of(record.id), []).append(record)
            self._version = self._store.version
        return self._own

    async def _agree(self, bucket: str, token: bytes) -> bool:
        """Make one bucket the same here and there."""

        async def read(redis: Redis) -> Any:
            return await redis.hgetall(f"{self._key}:{bucket}")

        raw = await self._link.run(read)
        if raw is None:
            return False
        stored = _records(raw, bucket)
        await self._store.adopt(stored.values())
        own = self._buckets().get(bucket, [])
        newer = [one for one in own if one.id not in stored or stage(one) > stage(stored[one.id])]
        for at in range(0, len(newer), AT_ONCE):
            if not await self._push(bucket, newer[at : at + AT_ONCE]):
                return False
        if not newer:
            self._seen[bucket] = token
        self._agreed[bucket] = _stages(own)
        return True

    async def _push(self, bucket: str, records: list[KeyRecord]) -> bool:
        told = [part for one in records for part in (one.id, stage(one), orjson.dumps(recorded(one)))]
        arguments = bucket, secrets.token_hex(8), MAX_OF_BUCKET, *told

        async def write(redis: Redis) -> Any:
            return await redis.eval(_PUSH, 2, self._key, f"{self._key}:{bucket}", *arguments)

        return await self._link.run(write) is not None


def bucket_of(key_id: str) -> str:
    """Where a key lies."""
    return f"{zlib.crc32(key_id.encode()) % BUCKETS:02x}"


def _stages(records: Iterable[KeyRecord]) -> frozenset[str]:
    return frozenset(f"{one.id} {stage(one)}" for one in records)


def _records(raw: Mapping[bytes, bytes], bucket: str) -> dict[str, KeyRecord]:
    """What a bucket says; what no gateway wrote there is passed over."""
    found: dict[str, KeyRecord] = {}
    for name, value in raw.items():
        try:
            if len(value) > MAX_RECORD_BYTES or len(found) >= MAX_OF_BUCKET:
                continue
            record = record_of(orjson.loads(value.partition(b" ")[2]))
        except ValueError:
            continue
        if record.id == _text(name) and bucket_of(record.id) == bucket:
            found[record.id] = record
    return found


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
