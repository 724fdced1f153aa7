"""Client keys over several gateways: made, rotated and revoked at one, they hold at all, whatever Redis does."""

import os
import signal

import orjson
from admin_support import Api
from fleet_of_gateways import one_redis, until

from gateway.keys import KeyRecord, create_key, recorded, revoke_key, stage
from gateway.keys_shared import bucket_of

KEYS = "headrace:{default}:keys"


async def status(api: Api, key: str | None) -> int:
    """What a caller with this key is told."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with api.gateway.session.get(f"{api.gateway.data}/v1/models", headers=headers) as answer:
        return answer.status


async def until_status(api: Api, key: str | None, expected: int) -> None:
    async def seen() -> bool:
        return await status(api, key) == expected

    await until(seen)


async def test_made_rotated_and_revoked_at_one_gateway(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        assert await status(other, None) == 200
        code, made = await one.post("keys", {"tenant": "acme"})
        assert (code, made["shared"]) == (201, True)
        await until_status(other, None, 401)  # a fleet that has keys asks for them everywhere
        await until_status(other, made["key"], 200)
        _, rotated = await other.post(f"keys/{made['id']}:rotate")
        await until_status(one, rotated["key"], 200)
        assert await status(one, made["key"]) == 401
        await one.post(f"keys/{made['id']}:revoke")
        await until_status(other, rotated["key"], 401)
        assert [key["id"] for key in (await other.get("keys"))["keys"]] == [made["id"]]
        third = await fleet.start("c")
        assert await status(third, None) == 401, "from its first request on"
        (held,) = (await fleet.redis.hgetall(f"{KEYS}:{bucket_of(made['id'])}")).values()
        assert rotated["key"].rpartition("_")[2].encode() not in held


async def test_the_command_lines_keys_are_shared_too(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        file = tmp_path / "a" / "state" / "keys.json"
        record, key = create_key(file, "acme", 1.0)
        await until_status(one, key, 200)
        await until_status(other, None, 401)
        await until_status(other, key, 200)
        revoke_key(file, record.id, 2.0)
        await until_status(other, key, 401)


async def test_without_redis_a_key_ends_here_at_once_and_elsewhere_when_it_is_back(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        _, made = await one.post("keys", {"tenant": "acme"})
        await until_status(other, None, 401)
        os.kill(fleet.valkey.pid, signal.SIGSTOP)
        try:
            code, revoked = await one.post(f"keys/{made['id']}:revoke")
            assert (code, revoked["shared"]) == (200, False)
            assert await status(one, made["key"]) == 401
            assert await status(other, made["key"]) == 200
        finally:
            os.kill(fleet.valkey.pid, signal.SIGCONT)
        await until_status(other, made["key"], 401)


async def test_a_redis_that_lost_its_memory_gets_them_again_and_garbage_is_passed_over(tmp_path):
    async with one_redis(tmp_path) as fleet:
        one, other = await fleet.start("a"), await fleet.start("b")
        _, made = await one.post("keys", {"tenant": "acme"})
        await until_status(other, None, 401)
        await fleet.redis.flushall()
        bucket = bucket_of(made["id"])
        forged = recorded(KeyRecord("z" * 12, "0" * 64, "acme", False, "", 1.0))
        await fleet.redis.hset(KEYS, mapping={bucket: "x", "zz": "y", "00": b"\xff"})
        await fleet.redis.hset(
            f"{KEYS}:{bucket}",
            mapping={
                made["id"]: b"\xff garbage",
                "wrong-place": f"{stage(KeyRecord(**forged))} ".encode() + orjson.dumps(forged),
                "long": b"x" * 5000,
            },
        )

        async def restored() -> bool:
            held = await fleet.redis.hget(f"{KEYS}:{bucket}", made["id"])
            return held is not None and made["id"].encode() in held

        await until(restored)
        assert await status(one, made["key"]) == await status(other, made["key"]) == 200
        assert [key["id"] for key in (await other.get("keys"))["keys"]] == [made["id"]]
