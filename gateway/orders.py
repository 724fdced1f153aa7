"""What operators say about workers by hand, for all replicas: drain, cap, eject, let back in.

In Redis it is one hash, `headrace:{fleet}:orders`: a field a worker, and a version that grows with every change. Where
Redis has lost its memory the replicas put back what they know; without Redis it is kept in a file of this host.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from gateway.files import locked
from gateway.scheduling.model import NO_ORDER, Order
from workers.report import is_worker_id

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.dispatcher import Dispatcher
    from gateway.redis_link import RedisLink

POLL_S = 0.5
MAX_ORDERS = 4096
MAX_CAP = 1_000_000
MAX_FILE_BYTES = 4 * 1024 * 1024
VERSION = "version of the orders"  # no worker id has spaces

_SET = """
local version = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[2])
elseif redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[4]) or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else return -1 end
return version
"""

_RESTORE = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and tonumber(held) >= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
for place = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1]) end
return 1
"""


class OrdersError(Exception):
    """The order could not be given; one line says why."""


@dataclass(slots=True)
class _Held:
    """All orders, as of one version. `readmits` counts how often a worker was let back in by hand."""

    version: int = 0
    orders: dict[str, Order] = field(default_factory=dict)
    readmits: dict[str, int] = field(default_factory=dict)


class Orders:
    """Takes orders from operators, gives them to the scheduler, and keeps those of all replicas the same."""

    def __init__(self, dispatcher: Dispatcher, link: RedisLink | None, fleet: str, file: Path | None) -> None:
        self._dispatcher = dispatcher
        self._link = link
        self._key = f"headrace:{{{fleet}}}:orders"
        self._file = file
        self._held = _Held()
        self._lock = asyncio.Lock()

    def of(self, worker: str) -> Order:
        """What holds for a worker."""
        return self._held.orders.get(worker, NO_ORDER)

    async def start(self) -> None:
        """Take over what was ordered before. Raises `OrdersError` for a file that cannot be read."""
        if self._file is not None:
            self._adopt(await asyncio.to_thread(_load, self._file))
        await self.sync()

    async def give(self, worker: str, order: Order, *, readmit: bool = False) -> None:
        """From now on this holds for the worker, at every replica within a second. Raises `OrdersError`."""
        async with self._lock:
            held = self._held
            known = worker in held.orders or worker in held.readmits
            if not known and len(held.orders) + len(held.readmits) >= MAX_ORDERS:
                raise OrdersError(f"{MAX_ORDERS} workers have orders already; take some off first")
            times = held.readmits.get(worker, 0) + (1 if readmit else 0)
            version = held.version + 1
            if self._link is not None:
                answered = await self._eval(_SET, VERSION, worker, _entry(order, times), MAX_ORDERS)
                if answered is None:
                    raise OrdersError("Redis does not answer: an order to this replica alone would set them apart")
                if answered < 0:
                    raise OrdersError(f"{MAX_ORDERS} workers have orders already; take some off first")
                version = answered
            changed = _Held(version, {**held.orders, worker: order}, {**held.readmits, worker: times})
            self._adopt(changed)
            await self._save()

    async def follow(self) -> None:
        """Take over what is ordered at other replicas; for ever."""
        while self._link is not None:
            await asyncio.sleep(POLL_S)
            await self.sync()

    async def sync(self) -> None:
        """Ask Redis once."""
        if self._link is None:
            return
        async with self._lock:

            async def read(redis: Redis) -> Any:
                return await redis.hgetall(self._key)

            found = await self._link.run(read)
            if found is None:
                return
            stored = _of_hash(found)
            if stored.version < self._held.version:
                pairs = [part for name, value in _to_hash(self._held).items() for part in (name, value)]
                await self._eval(_RESTORE, VERSION, self._held.version, *pairs)
            elif stored.version > self._held.version:
                self._adopt(stored)
                await self._save()

    def _adopt(self, new: _Held) -> None:
        old, self._held = self._held, new
        new.orders = {worker: order for worker, order in new.orders.items() if order != NO_ORDER}
        for worker in old.orders.keys() | new.orders.keys():
            self._dispatcher.order(worker, self.of(worker))
        for worker, times in new.readmits.items():
            if times > old.readmits.get(worker, 0):
                self._dispatcher.readmit(worker)

    async def _save(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(_store, self._file, self._held)

    async def _eval(self, script: str, *arguments: str | bytes | int) -> Any:
        assert self._link is not None

        async def call(redis: Redis) -> Any:
            return await redis.eval(script, 1, self._key, *arguments)

        return await self._link.run(call)


def _entry(order: Order, readmits: int) -> bytes:
    """One field of the hash; empty where there is nothing to say."""
    if order == NO_ORDER and not readmits:
        return b""
    return orjson.dumps({"drain": order.drain, "eject": order.eject, "cap": order.cap, "readmits": readmits})


def _to_hash(held: _Held) -> dict[str, bytes]:
    names = held.orders.keys() | held.readmits.keys()
    entries = {name: _entry(held.orders.get(name, NO_ORDER), held.readmits.get(name, 0)) for name in sorted(names)}
    return {VERSION: str(held.version).encode(), **{name: entry for name, entry in entries.items() if entry}}


def _of_hash(found: Mapping[bytes, bytes]) -> _Held:
    """What the hash says; fields that say nothing a gateway wrote are passed over."""
    held = _Held()
    for raw_name, value in found.items():
        name = raw_name.decode("latin-1")
        try:
            if name == VERSION:
                held.version = int(value)
                continue
            said = orjson.loads(value)
            cap, readmits = said["cap"], said["readmits"]
            sound = is_worker_id(name) and type(readmits) is int
            if not sound or not (cap is None or (type(cap) is int and 0 <= cap <= MAX_CAP)):
                continue
            held.orders[name] = Order(said["drain"] is True, said["eject"] is True, cap)
            held.readmits[name] = readmits
        except (ValueError, TypeError, KeyError):
            continue
        if len(held.orders) >= MAX_ORDERS:
            break
    return held


def _load(file: Path) -> _Held:
    try:
        with file.open("rb") as opened:
            said = orjson.loads(opened.read(MAX_FILE_BYTES))
        return _of_hash({name.encode(): value.encode() for name, value in said.items()})
    except (FileNotFoundError, NotADirectoryError):
        return _Held()
    except (OSError, ValueError, AttributeError) as error:
        raise OrdersError(f"cannot read {file}: {error}") from error


def _store(file: Path, held: _Held) -> None:
    """Replace the file in one step; what cannot be written holds until the gateway stops."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    said = {name: value.decode() for name, value in _to_hash(held).items()}
    try:
        with locked(file.parent):
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(orjson.dumps(said))
            new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OrdersError(f"cannot write {file}: {error.strerror or error}") from error
