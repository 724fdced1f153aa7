"""Changing the policy while everything runs: row 69 of the fault matrix, invariant 19, and storms of changes."""

import asyncio
import gc
from typing import Any

from admin_support import Api, settings
from plain_worker import plain_worker
from running_gateway import Running, running, until

from gateway.policy_draft import Draft
from gateway.policy_store import PolicyStore
from policies.document import parse_policy
from policies.problems import PolicyError

STREAMS = 1000
CHANGES = 100
POOLS = "{short-chat: {}, long-context: {max_in_flight_per_worker: 9}}"


PATIENT = "timeouts: {token_gap_s: 600, ttft_s: 600}"
"""A loaded machine takes its time for a hundred changes."""


def document(number: int) -> str:
    """Each differs from the one before in weights, timeouts, queues or pools."""
    pools = POOLS if number % 7 else "{elsewhere: {}}"
    return (
        f"pools: {pools}\ntenants: {{default: {{weight: {1 + number % 5}}}}}\n"
        f"timeouts: {{connect_s: {1 + number % 3}, token_gap_s: 600, ttft_s: 600}}\n"
        f"admission: {{max_queued: {2000 + number}}}\n"
    )


async def one_stream(gateway: Running, started: asyncio.Semaphore) -> tuple[str, str, bytes]:
    """(request id, revision, body) of a stream, from its first event to its last byte."""
    async with gateway.post({"stream": True}) as answer:
        assert answer.status == 200, await answer.read()
        started.release()
        headers = answer.headers
        return headers["X-Request-Id"], headers["X-Headrace-Revision"], await answer.read()


async def test_row_69_a_hundred_changes_under_a_thousand_streams(tmp_path):
    async with plain_worker() as worker:
        wanted = settings(tmp_path, [worker])
        static = wanted.workers[0].model_copy(update={"max_num_seqs": 2 * STREAMS, "kv_tokens": None})
        wanted = wanted.model_copy(update={"workers": (static,)})
        async with running(wanted) as gateway:
            api = Api(gateway)
            await api.put(PATIENT)
            worker.gate.clear()
            started = asyncio.Semaphore(0)
            streams = [asyncio.ensure_future(one_stream(gateway, started)) for _ in range(STREAMS)]
            for _ in range(STREAMS // 2):
                await asyncio.wait_for(started.acquire(), 60)
            for number in range(CHANGES):
                status, answer = await api.put(document(number), query="?force=1")
                assert (status, answer["changed"]) == (200, True)
                seen = (await api.get("policy"))["revision"]["number"]
                assert seen == number + 3, "it only grows"
            worker.gate.set()
            ended = await asyncio.gather(*streams)
            assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in ended)
            assert len({request_id for request_id, _, _ in ended}) == STREAMS
            await until(lambda: len(gateway.lines("request")) == STREAMS, 30)
            told = {request_id: int(revision) for request_id, revision, _ in ended}
            for line in gateway.lines("request"):
                assert line["revision"] == told[line["request_id"]], "one revision from start to end"
                assert (line["outcome"], line["status"]) == ("ok", 200)
            await gateway.idle()
            assert await gateway.sample("headrace_policy_revision") == CHANGES + 2


async def test_a_raised_limit_wakes_who_waits_and_a_lowered_one_lets_leases_finish(tmp_path):
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as gateway:
        api = Api(gateway)
        assert (await api.put("limits: {max_in_flight_per_worker: 2}"))[0] == 200
        worker.gate.clear()
        started = asyncio.Semaphore(0)
        streams = [asyncio.ensure_future(one_stream(gateway, started)) for _ in range(4)]
        for _ in range(2):
            await asyncio.wait_for(started.acquire(), 10)
        await gateway.queued(2)
        assert (await api.put("limits: {max_in_flight_per_worker: 4}"))[0] == 200
        for _ in range(2):
            await asyncio.wait_for(started.acquire(), 10)
        assert worker.running == 4
        assert (await api.put("limits: {max_in_flight_per_worker: 1}", query="?force=1"))[0] == 200
        late = asyncio.ensure_future(one_stream(gateway, started))
        await gateway.queued(1)
        assert worker.running == 4, "nobody is thrown out"
        worker.gate.set()
        assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in await asyncio.gather(*streams, late))
        assert worker.most == 4


async def test_a_removed_pool_drains(tmp_path):
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as gateway:
        api = Api(gateway)
        worker.gate.clear()
        started = asyncio.Semaphore(0)
        stream = asyncio.ensure_future(one_stream(gateway, started))
        await asyncio.wait_for(started.acquire(), 10)
        assert (await api.put("pools: {elsewhere: {}}", query="?force=1"))[0] == 200
        async with gateway.post({}) as refused:
            assert refused.status in (404, 503)
        worker.gate.set()
        assert (await stream)[2].endswith(b"data: [DONE]\n\n")


async def test_changed_weights_keep_the_tenants_counters(tmp_path):
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as gateway:
        api = Api(gateway)
        async with gateway.post({}) as answer:
            assert answer.status == 200

        async def served() -> Any:
            return next(one for one in (await api.get("tenants"))["tenants"] if one["name"] == "default")

        before = await served()
        assert (await api.put("tenants: {default: {weight: 1, max_queued: 7}}"))[0] == 200
        after = await served()
        assert after["served_tokens"] == before["served_tokens"]
        assert after["max_queued"] == 7


async def test_a_thousand_changes_a_tenth_of_them_invalid_leave_memory_flat():
    store = PolicyStore(None, lambda current: None)
    store.history._max_kept = 50
    refused = 0

    async def change(number: int) -> None:
        nonlocal refused
        text = f"admission: {{max_queued: {number}}}" if number % 10 else "admission: {max_queued: -1}"
        try:
            draft = Draft(parse_policy(text), text, "storm")
        except PolicyError:
            refused += 1
            return
        await store.apply(draft, "*")

    for number in range(100):
        await change(number)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(100, 1100):
        await change(number)
    gc.collect()
    assert len(gc.get_objects()) - before < 500, "less than one object for two changes"
    assert (refused, store.current().revision.number, len(store.history)) == (110, 991, 50)
