"""The policy in Redis: one current revision for all replicas, changed by compare-and-set; and what each replica uses.

`headrace:{fleet}:policy` is a hash of the current revision (`number`, `chain`, `record`), `…:policy:history` a list of
the last records, newest first, `…:policy:replicas` a hash of what each replica uses, with Redis' own time. Replicas
ask once each `POLL_S`: one round trip that also says what they use. A newer revision never gives way to an older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson

from policies.revisions import Revision, to_record

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.redis_link import RedisLink

POLL_S = 0.5
SHARED_HISTORY = 100
MAX_REPLICAS = 256
FORGET_S = 60.0
MAX_REJECTED_CHARS = 300

# A key of another type is somebody else's mistake: it goes, and the replicas put the policy there again.
_CLEAN = """
for _, key in ipairs(KEYS) do
  local list, found = string.sub(key, -8) == ':history', nil
  if list then found = redis.pcall('LRANGE', key, 1, 0) else found = redis.pcall('HLEN', key) end
  if type(found) == 'table' and found.err then redis.call('DEL', key) end
end
"""

_SWAP = """
local held = redis.call('HGET', KEYS[1], 'chain')
if held and held ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[2], 'chain', ARGV[3], 'record', ARGV[4])
redis.call('LPUSH', KEYS[2], ARGV[4])
redis.call('LTRIM', KEYS[2], 0, ARGV[5] - 1)
return 1
"""

_OFFER = """
local held = redis.call('HGET', KEYS[1], 'number')
if held and tonumber(held) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'chain', ARGV[2], 'record', ARGV[3])
redis.call('LPUSH', KEYS[2], ARGV[3])
redis.call('LTRIM', KEYS[2], 0, ARGV[4] - 1)
return 1
"""

_ASK = """
local now = redis.call('TIME')
local at = tonumber(now[1]) + tonumber(now[2]) / 1000000
local all = redis.call('HGETALL', KEYS[2])
local live, count = {}, 0
for place = 1, #all, 2 do
  local since = tonumber(string.match(all[place + 1], '^[%d.]+') or '0')
  if at - since > tonumber(ARGV[4]) then redis.call('HDEL', KEYS[2], all[place])
  elseif all[place] ~= ARGV[2] then live[#live + 1] = all[place + 1]; count = count + 1 end
end
if count < tonumber(ARGV[5]) then
  redis.call('HSET', KEYS[2], ARGV[2], string.format('%.3f', at) .. ' ' .. ARGV[3])
end
local held = redis.call('HMGET', KEYS[1], 'chain', 'record')
local record = ''
if held[1] and held[1] ~= ARGV[1] then record = held[2] end
return {string.format('%.3f', at), held[1] or '', record, live}
"""


class Swap(Enum):
    """What became of a compare-and-set."""

    DONE = "done"
    CONFLICT = "conflict"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Replica:
    """What another replica uses, as it said `age_s` seconds ago."""

    id: str
    number: int
    digest: str
    rejected: str | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Shared:
    """What Redis holds. `record` is empty where it is the revision that we have; `chain` where there is none."""

    chain: str
    record: bytes
    replicas: tuple[Replica, ...]


class SharedPolicy:
    """The fleet's policy in Redis, as one replica reaches it."""

    def __init__(self, link: RedisLink, fleet: str, replica: str) -> None:
        self._link = link
        self.replica = replica
        self._policy = f"headrace:{{{fleet}}}:policy"
        self._history = f"{self._policy}:history"
        self._replicas = f"{self._policy}:replicas"

    async def swap(self, held: Revision, new: Revision) -> Swap:
        """Make `new` current if `held` still is."""
        arguments = held.chain, new.number, new.chain, orjson.dumps(to_record(new)), SHARED_HISTORY
        done = await self._eval(_CLEAN + _SWAP, (self._policy, self._history), *arguments)
        return Swap.DOWN if done is None else Swap.DONE if done else Swap.CONFLICT

    async def offer(self, revision: Revision) -> bool | None:
        """Put our revision there if it is newer than what is there, as in a Redis that has lost its memory; whether it
        was, None where Redis does not answer."""
        arguments = revision.number, revision.chain, orjson.dumps(to_record(revision)), SHARED_HISTORY
        done = await self._eval(_CLEAN + _OFFER, (self._policy, self._history), *arguments)
        return None if done is None else bool(done)

    async def ask(self, used: Revision, rejected: str | None) -> Shared | None:
        """What is current, and what the others use, while telling them what we do; None where Redis does not answer."""
        told = orjson.dumps([self.replica, used.number, used.digest, (rejected or "")[:MAX_REJECTED_CHARS]])
        arguments = used.chain, self.replica, told, FORGET_S, MAX_REPLICAS
        found = await self._eval(_CLEAN + _ASK, (self._policy, self._replicas), *arguments)
        if found is None:
            return None
        at, chain, record, others = found
        replicas = sorted(filter(None, (_replica(one, float(at)) for one in others)), key=lambda one: one.id)
        return Shared(_text(chain), record, tuple(replicas))

    async def history(self) -> list[Mapping[str, Any]]:
        """The last revisions' records, oldest first, not checked; none where Redis does not answer."""

        async def read(redis: Redis) -> Any:
            return await redis.lrange(self._history, 0, SHARED_HISTORY - 1)

        found = []
        for line in reversed(await self._link.run(read) or []):
            try:
                found.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                continue  # what comes after it still counts
        return found

    async def leave(self) -> None:
        """This replica stops: the others need not wait for it to converge."""

        async def remove(redis: Redis) -> Any:
            return await redis.hdel(self._replicas, self.replica)

        await self._link.run(remove)

    async def _eval(self, script: str, keys: tuple[str, ...], *arguments: object) -> Any:
        async def call(redis: Redis) -> Any:
            return await redis.eval(script, len(keys), *keys, *arguments)  # type: ignore[arg-type]

        return await self._link.run(call)


def _replica(told: bytes, at: float) -> Replica | None:
    """What another replica said; None for what no replica says."""
    since, _, said = told.partition(b" ")
    try:
        name, number, digest, rejected = orjson.loads(said)
        return Replica(str(name), int(number), str(digest), str(rejected) or None, max(0.0, at - float(since)))
    except ValueError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
