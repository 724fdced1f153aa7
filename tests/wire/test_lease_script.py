"""The script against its reference in Python, on a real server: any steps, the same answers and the same state."""

import json
import random
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis_client

from gateway.leasing.holder import Holder
from gateway.leasing.script import STEP, hint_channel, lease_keys, send
from gateway.leasing.words import CLEAR, Demand, Step, read_heard
from gateway.process import Child, start_valkey

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from lease_store import Store

# The server's clock, its process and its age, taken from a key instead.
TESTED = re.sub(
    r"local time = .*?\nlocal epoch",
    "local test = cjson.decode(redis.call('GET', 'test'))\n"
    "local wall, run, uptime_s = test[1], test[2], test[3]\nlocal epoch",
    STEP.text,
    flags=re.DOTALL,
)


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


def plain(value: Any) -> Any:
    """JSON of Lua writes an empty list as {}; order among waiting names means nothing."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each not in ({}, [])}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return int(value) if isinstance(value, float) else value


def arguments(step: Step, rng: random.Random) -> dict[str, Any]:
    """A step as it goes out, sometimes twisted into what an honest gateway would not say."""
    wire: dict[str, Any] = json.loads(json.dumps(step.wire()))
    if rng.random() < 0.1:
        wire["seq"] = max(1, wire["seq"] - 1)
    if rng.random() < 0.05:
        wire["epoch"] += rng.choice((1, 5))
    if rng.random() < 0.2:
        wire["full"] = not wire["full"]
    if rng.random() < 0.2:
        wire["fresh"] = True
    return wire


@pytest.mark.parametrize("seed", range(5))
async def test_script_and_reference_do_the_same(valkey, seed):
    redis = redis_client.Redis.from_url(valkey.url)
    rng, store = random.Random(seed), Store()
    store.uptime_s = rng.choice((1, 1000))
    holders = [Holder(f"g{number}", f"who{number}") for number in range(4)]
    names = ["w1", "w2", "w-3"]
    keys = lease_keys("f")
    saved = store.state()
    for turn in range(250):
        store.wall += rng.choice((5, 50, 400, 1900, 5000, -3_600_000))
        event = rng.random()
        if event < 0.02:
            store.run = f"{int(store.run, 16) + 1:040x}"
        elif event < 0.04:
            store.restore(saved)
            await restore(redis, store)
        elif event < 0.06:
            saved = store.state()
        await redis.set("test", json.dumps([store.wall, store.run, store.uptime_s]))
        holder = rng.choice(holders)
        demands = {
            name: Demand(
                rng.randrange(9), rng.randrange(4), rng.randrange(4), rng.choice((0, 1, CLEAR)),
                rng.choice((None, rng.randrange(9))), rng.randrange(3),
            )
            for name in rng.sample(names, rng.randrange(4))
        }  # fmt: skip
        dead = ((rng.choice(holders).me, rng.choice(holders).who),) if rng.random() < 0.1 else ()
        if rng.random() < 0.03:
            step = holder.farewell(float(turn))
        else:
            step = holder.plan(
                demands, float(turn), dead=dead, alive=("g1", "nobody"), ledger=rng.choice((None, "x|y"))
            )
        wire = arguments(step, rng)
        answer = json.loads(await redis.eval(TESTED, len(keys), *keys, json.dumps(wire), hint_channel("f")))
        expected = store.step(wire)
        assert plain(answer) == plain(expected)
        assert await stored(redis) == held(store)
        if rng.random() < 0.8:
            holder.answered(step, read_heard(answer))
    await redis.aclose()


async def stored(redis: Any) -> Any:
    """The five keys as values."""
    gateways, slots, epoch, ledgers, inbox = lease_keys("f")
    records = {name.decode(): plain(json.loads(text)) for name, text in (await redis.hgetall(gateways)).items()}
    docs = {name.decode(): json.loads(text) for name, text in (await redis.hgetall(slots)).items()}
    spare = {name[1:]: plain(docs.pop(name)) for name in list(docs) if name.startswith("+")}
    return (
        plain(json.loads(await redis.get(epoch) or "null")),
        records,
        known(docs, records),
        spare,
        {name.decode(): text.decode() for name, text in (await redis.hgetall(ledgers)).items()},
        {name.decode(): sorted(text.decode().split("\n")) for name, text in (await redis.hgetall(inbox)).items()},
    )


def held(store: Store) -> Any:
    """The same of the reference."""
    return (
        store.epoch,
        store.records,
        known(store.slots, store.records),
        {name: list(entry) for name, entry in store.spare.items()},
        {name: f"{at}|{text}" for name, (at, text) in store.ledgers.items()},
        {name: sorted(names) for name, names in store.inbox.items() if names},
    )


def known(docs: Any, records: Any) -> Any:
    """Without what belongs to gateways that are not there: both drop it when they next touch it."""
    kept = {name: {each: share for each, share in doc.items() if each in records} for name, doc in docs.items()}
    return {name: doc for name, doc in kept.items() if doc}


async def restore(redis: Any, store: Store) -> None:
    """Put the reference's state into the server."""
    gateways, slots, epoch, ledgers, inbox = lease_keys("f")
    await redis.delete(gateways, slots, epoch, ledgers, inbox)
    if store.epoch is not None:
        await redis.set(epoch, json.dumps(store.epoch))
    for key, found in (
        (gateways, {name: json.dumps(record) for name, record in store.records.items()}),
        (slots, {name: json.dumps(doc) for name, doc in store.slots.items()}),
        (slots, {f"+{name}": json.dumps(entry) for name, entry in store.spare.items()}),
        (ledgers, {name: f"{at}|{text}" for name, (at, text) in store.ledgers.items()}),
        (inbox, {name: "\n".join(names) for name, names in store.inbox.items()}),
    ):
        if found:
            await redis.hset(key, mapping=found)


HOSTILE = [
    b"", b"\xff\xfe", b"{}", b"[]", b"null", b"1e308", b"NaN", b"[1,2", b'{"g1":[99999999999,0,0,0,0,0]}',
    b'{"g1":[-5,0,8,0,0,0]}', b'{"g1":[0.5,0,8,0,0,0]}', b'{"g1":["8",0,8,0,0,0]}', b'{"g1":null}', b'{"n":-1}',
    b"[" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("key", range(3))
async def test_garbage_in_the_store_never_makes_more_slots(valkey, key):
    """Row 60, invariant 21: whatever is written over our keys, what is granted stays within the limit."""
    redis = redis_client.Redis.from_url(valkey.url)
    name = lease_keys("f")[key]
    holders = [Holder("g1", "a", fresh=True), Holder("g2", "b")]
    demands = {"w1": Demand(8, 3, 2, 0)}
    for garbage in HOSTILE:
        for holder in holders * 3:
            step = holder.plan(demands, 0.0)
            holder.answered(step, read_heard(await send(redis, "f", step)))
        if key == 2:
            await redis.set(name, garbage)
        else:
            await redis.hset(name, ("g1", "w1")[key], garbage)
        for holder in holders * 3:
            step = holder.plan(demands, 0.0)
            holder.answered(step, read_heard(await send(redis, "f", step)))
            assert sum(each.shares["w1"].held for each in holders if "w1" in each.shares) <= 8
    await redis.aclose()
