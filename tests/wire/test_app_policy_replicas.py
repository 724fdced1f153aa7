"""The policy of several gateways through one Redis: rows 66 to 68 of the fault matrix, and Redis gone or empty."""

import asyncio
from zlib import crc32

import orjson
import pytest
from admin_support import Api, settings
from fleet_of_gateways import one_redis, until, until_all
from running_gateway import running

from policies.document import parse_policy
from policies.revisions import first_revision, next_revision, to_record

KEY = "headrace:{default}:policy"


async def test_a_change_reaches_every_replica_and_so_does_a_rollback(tmp_path):
    async with one_redis(tmp_path) as replicas:
        a, b = await replicas.start("a"), await replicas.start("b")
        assert (await a.put("default_class: batch"))[0] == 200
        await until_all([a, b], 2)
        assert (await b.get("policy"))["policy"]["default_class"] == "batch"
        assert (await b.post("policy:rollback", {"to": 1, "author": "bob"}))[0] == 200
        await until_all([a, b], 3)
        history = (await a.get("policy/revisions"))["revisions"]
        assert [(one["number"], one["source"]) for one in history] == [(3, "rollback"), (2, "api"), (1, "default")]
        assert (await a.get("policy/state"))["history_verified"]
        c = await replicas.start("c")
        assert (await c.get("policy"))["revision"] == (await a.get("policy"))["revision"]
        assert len((await c.get("policy/revisions"))["revisions"]) == 3


async def test_row_66_editors_at_different_replicas(tmp_path):
    async with one_redis(tmp_path) as replicas:
        apis = [await replicas.start("a"), await replicas.start("b")]
        await until_all(apis, 1)
        await apis[0].get("policy")
        tag = apis[0].etag
        for round_ in range(3):
            found = await asyncio.gather(
                *(
                    Api(apis[number % 2].gateway).put(f"admission: {{max_queued: {10 * round_ + number}}}", tag)
                    for number in range(6)
                )
            )
            assert sorted(status for status, _ in found) == [200] + [412] * 5
            await until_all(apis, round_ + 2)
            await apis[0].get("policy")
            tag = apis[0].etag


async def test_redis_that_comes_back_empty_gets_the_policy_again(tmp_path):
    async with one_redis(tmp_path) as replicas:
        a, b = await replicas.start("a"), await replicas.start("b")
        await a.put("default_class: batch")
        await until_all([a, b], 2)
        await a.post("workers/w1:drain")
        await replicas.redis.flushall()

        async def restored() -> bool:
            return bool(await replicas.redis.hget(KEY, "number") == b"2") and bool(
                await replicas.redis.hlen("headrace:{default}:orders")
            )

        await until(restored)
        assert (await a.put("default_class: interactive"))[0] == 200
        await until_all([a, b], 3)
        assert (await b.get("workers/w1"))["state"] == "draining"


async def test_without_redis_a_change_is_refused_and_what_holds_goes_on(tmp_path):
    async with one_redis(tmp_path) as replicas:
        a = await replicas.start("a")
        await a.put("default_class: batch")
        await replicas.valkey.stop()
        status, answer = await a.put("default_class: interactive")
        assert (status, answer["error"]["code"]) == (503, "policy_store_down")
        assert (await a.post("workers/w1:drain"))[0] == 503
        assert (await a.get("policy"))["policy"]["default_class"] == "batch"
        async with a.gateway.post({}) as served:
            assert served.status == 200
            assert served.headers["X-Headrace-Revision"] == "2"


async def test_a_replica_starts_without_redis_from_its_disk(tmp_path):
    async with one_redis(tmp_path) as replicas:
        a = await replicas.start("a")
        await a.put("default_class: batch")
        a.gateway.stop.set()
        await replicas.stack.aclose()
        await replicas.valkey.stop()
        home = tmp_path / "a"
        async with running(settings(home, [replicas.worker], redis=replicas.valkey.url)) as again:
            found = await Api(again).get("policy")
            assert (found["revision"]["number"], found["policy"]["default_class"]) == (2, "batch")


async def test_row_68_a_replica_that_cannot_follow_says_so_and_serves(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.policy_store.IN_STEP_S", 0.5)
    monkeypatch.setattr("gateway.control.LAG_S", 0.5)
    async with one_redis(tmp_path) as replicas:
        a = await replicas.start("a")
        one = first_revision(parse_policy("{}"), "{}", 1.0)
        newer = to_record(next_revision(one, parse_policy("{}"), "a_field_of_tomorrow: 1\n", "new", "", 2.0))
        entry = {"number": newer["number"], "chain": newer["chain"], "record": orjson.dumps(newer)}
        await replicas.redis.hset(KEY, mapping=entry)

        async def warned() -> bool:
            status, why = await a.gateway.get("/readyz")
            return status == 200 and b"may be behind the fleet" in why and b"a_field_of_tomorrow" in why

        await until(warned)
        state = await a.get("policy/state")
        assert not state["converged"]
        assert state["replicas"][0]["rejected"]
        assert state["lag_s"] > 0
        assert await a.gateway.sample("headrace_policy_lag_seconds") > 0
        async with a.gateway.post({}) as served:
            assert served.status == 200


@pytest.mark.parametrize("action", ["drain", "eject"])
async def test_orders_hold_at_every_replica(tmp_path, action):
    async with one_redis(tmp_path) as replicas:
        a, b = await replicas.start("a"), await replicas.start("b")
        await a.post(f"workers/w1:{action}")
        expected = {"drain": "draining", "eject": "ejected"}[action]

        async def state_is(wanted: str) -> bool:
            return bool((await b.get("workers/w1"))["state"] == wanted)

        await until(lambda: state_is(expected))
        await b.post("workers/w1:undrain" if action == "drain" else "workers/w1:readmit")

        async def back() -> bool:
            return bool((await a.get("workers/w1"))["state"] == "ready")

        await until(back)


async def test_a_file_seeds_once_for_all(tmp_path):
    """Two replicas read the same file; its change is one revision, whoever sees it first."""
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    async with one_redis(tmp_path) as replicas:
        a, b = [await replicas.start(name, policy=str(path)) for name in ("a", "b")]
        await until_all([a, b], 1)
        path.write_text("default_class: batch\n")
        await until_all([a, b], 2)

        async def both_have_looked() -> bool:
            files = [(await api.get("policy/state"))["file"] for api in (a, b)]
            return not any(file["drift"] for file in files)

        await until(both_have_looked)
        await until_all([a, b], 2)


async def test_a_request_is_explained_by_any_replica(tmp_path):
    async with one_redis(tmp_path) as replicas:
        a, b = await replicas.start("a"), await replicas.start("b")
        async with a.gateway.post({}) as answer:
            request_id = answer.headers["X-Request-Id"]

        async def known() -> bool:
            return (await b.call("GET", f"requests/{request_id}"))[0] == 200

        await until(known)
        own, other = await a.get(f"requests/{request_id}"), await b.get(f"requests/{request_id}")
        assert other["replica"] == (await a.get("policy/state"))["replicas"][0]["id"]
        assert {**own, "replica": other["replica"]} == other
        assert (await b.call("GET", "requests/none"))[0] == 404
        await replicas.redis.set(f"headrace:{{default}}:story:{crc32(b'odd') % 16384}", b"{not json")
        assert (await b.call("GET", "requests/odd"))[0] == 404
        assert await replicas.redis.ttl(f"headrace:{{default}}:story:{crc32(request_id.encode()) % 16384}") > 0


async def test_changes_at_replicas_in_turn_leave_every_history_whole(tmp_path):
    """As behind a load balancer: each goes to a replica that has not heard of the one before, which is no conflict
    for who has seen it, nor for who means whatever is current."""
    async with one_redis(tmp_path) as replicas:
        apis = [await replicas.start("a"), await replicas.start("b")]
        for number in range(12):
            status, answer = await apis[number % 2].put(f"admission: {{max_queued: {number + 1}}}")
            assert (status, answer["changed"]) == (200, True), answer
        tag = apis[1].etag
        status, answer = await apis[0].put("redis_loss: open", tag)
        assert status == 200, answer
        await until_all(apis, 14)
        for api in apis:
            state = await api.get("policy/state")
            assert (state["history_verified"], state["history_missing"]) == (True, 0)
            listed = (await api.get("policy/revisions"))["revisions"]
            assert [one["number"] for one in listed] == list(range(14, 0, -1))
        home = tmp_path / "b" / "state" / "policy-default.jsonl"
        assert len(home.read_text().splitlines()) == 14, "on its disk too, for the next start"
