"""A whole gateway with workers that are not ours: bytes, headers, logs, counters, and every counter back at zero."""

import asyncio
import json
import os
import signal

import pytest
from plain_worker import ANSWER, EVENTS, plain_worker
from running_gateway import running, settings_for, until

from gateway.process import start_valkey
from gateway.start import StartError
from policies.problems import PolicyError

REQUESTS = 'headrace_requests_total{class="standard",endpoint="chat",outcome="%s",pool="short-chat"}'


async def test_an_answer_passes_untouched_and_is_accounted_for(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        async with gateway.post({"max_tokens": 5}) as answer:
            assert answer.status == 200
            assert await answer.read() == ANSWER
            request_id = answer.headers["X-Request-Id"]
            assert answer.headers["X-Headrace-Pool"] == "short-chat"
            assert answer.headers["X-Headrace-Worker"] == "w1"
            assert answer.headers["X-Headrace-Class"] == "standard"
            assert answer.headers["X-Headrace-Attempts"] == "1"
            assert answer.headers["X-Headrace-Revision"] == "1"
            assert "Server" not in answer.headers
        await gateway.idle()
        assert await gateway.sample(REQUESTS % "ok") == 1
        assert await gateway.sample('headrace_attempts_total{pool="short-chat",result="ok",worker="w1"}') == 1
        tokens = 'headrace_tokens_total{class="standard",direction="%s",pool="short-chat"}'
        assert await gateway.sample(tokens % "prompt") == 7
        assert await gateway.sample(tokens % "output") == 2
        await until(lambda: gateway.lines("request"))
        (line,) = gateway.lines("request")
        assert (line["request_id"], line["worker"], line["status"], line["outcome"]) == (request_id, "w1", 200, "ok")
        assert (line["prompt_tokens"], line["output_tokens"], line["attempts"]) == (7, 2, 1)
        assert b"hello" not in gateway.log.read_bytes(), "never a prompt"
        status, body = await gateway.get(f"/admin/v1/requests/{request_id}")
        assert status == 200
        story = json.loads(body)
        assert story["request"]["worker"] == "w1"
        assert [(each["worker"], each["outcome"]) for each in story["attempts"]] == [("w1", "ok")]
        assert story["attempts"][0]["considered"][0]["worker"] == "w1"


async def test_explain_tells_why_a_request_waits_and_afterwards_why_it_waited(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()
        first = [gateway.post({"stream": True}) for _ in range(4)]
        running_ = [asyncio.ensure_future(one.__aenter__()) for one in first]
        await until(lambda: worker.running == 4)
        waits = asyncio.ensure_future(gateway.post({"max_tokens": 5}, **{"X-Request-Id": "who-waits"}).__aenter__())
        await gateway.queued(1)
        status, body = await gateway.get("/admin/v1/requests/who-waits")
        story = json.loads(body)
        assert (status, story["finished"], story["attempts"]) == (200, False, [])
        told = story["waiting"]
        assert (told["class"], told["pools"][0], told["cause"]) == ("standard", "short-chat", "places")
        assert told["workers"] == [{"worker": "w1", "cause": "places"}]
        assert told["left_s"] > 0 < told["estimate"]["prompt_tokens"]
        worker.gate.set()
        for answer in [*[await one for one in running_], await waits]:
            await answer.read()
            answer.release()
        await gateway.idle()
        story = json.loads((await gateway.get("/admin/v1/requests/who-waits"))[1])
        (attempt,) = story["attempts"]
        assert (story["waiting"], attempt["wait_cause"], attempt["class"]) == (None, "places", "standard")
        assert attempt["estimate"]["decode_s"] > 0
        assert attempt["considered"][0]["signal_age_s"] is None, "nobody reports on a static worker"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("admission: {max_queued: 1}", "(admission.max_queued: 1, with this request 2)"),
        ("pools: {short-chat: {max_queued: 1}}", "(pools.short-chat.max_queued: 1, with this request 2)"),
        ("tenants: {default: {max_queued: 1}}", "(tenants.default.max_queued: 1, with this request 2)"),
    ],
)
async def test_who_is_turned_away_hears_from_which_limit(tmp_path, policy, said):
    (tmp_path / "policy.yaml").write_text(f"{policy}\n")
    async with (
        plain_worker() as worker,
        running(settings_for(tmp_path, [worker], policy=str(tmp_path / "policy.yaml"))) as gateway,
    ):
        worker.gate.clear()
        held = [asyncio.ensure_future(gateway.post({"stream": True}).__aenter__()) for _ in range(5)]
        await gateway.queued(1)
        async with gateway.post({}) as answer:
            assert answer.status == 429
            error = (await answer.json())["error"]
            assert error["message"].endswith(said), error
        worker.gate.set()
        for one in held:
            answer = await one
            await answer.read()
            answer.release()
        await gateway.idle()


async def test_a_stream_passes_untouched_and_in_time(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()
        async with gateway.post({"stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == EVENTS[0], "the first event does not wait for the second"
            fleet = await gateway.fleet()
            assert fleet["workers"][0]["leases"] == 1
            assert await gateway.sample('headrace_worker_leases{pool="short-chat",worker="w1"}') == 1
            worker.gate.set()
            assert await answer.read() == b"".join(EVENTS[1:])
        await gateway.idle()
        assert await gateway.sample('headrace_ttft_seconds_count{class="standard",pool="short-chat"}') == 1
        assert await gateway.sample('headrace_e2e_seconds_count{class="standard",pool="short-chat"}') == 1


async def test_a_client_that_leaves_frees_the_worker_and_the_books(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()
        async with gateway.post({"stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await asyncio.wait_for(worker.idle.wait(), 2)
        await gateway.idle()
        assert await gateway.sample('headrace_disconnects_total{state="stream"}') == 1
        assert await gateway.sample(REQUESTS % "cancelled") == 1


async def test_what_exceeds_the_places_waits_for_one(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()

        async def one() -> bytes:
            async with gateway.post({}) as answer:
                assert answer.status == 200
                return await answer.read()

        tasks = [asyncio.ensure_future(one()) for _ in range(12)]
        await until(lambda: worker.running == 4)
        await gateway.queued(8)
        fleet = await gateway.fleet()
        (queue,) = fleet["queues"]
        assert (queue["class"], queue["pool"], queue["tenant"], queue["queued"]) == (
            "standard",
            "short-chat",
            "default",
            8,
        )
        assert await gateway.sample('headrace_queue_depth{class="standard",pool="short-chat"}') == 8
        worker.gate.set()
        assert await asyncio.gather(*tasks) == [ANSWER] * 12
        assert worker.most == 4
        await gateway.idle()


async def test_a_dead_worker_costs_no_request(tmp_path):
    async with plain_worker() as good:
        async with plain_worker() as dead:
            settings = settings_for(tmp_path, [dead, good])
        async with running(settings) as gateway:
            for _ in range(20):
                async with gateway.post({}) as answer:
                    assert answer.status == 200
            await gateway.idle()
            assert await gateway.sample(REQUESTS % "ok") == 20
            refused = 'headrace_attempts_total{pool="short-chat",result="connect_refused",worker="w1"}'
            tries = await gateway.sample(refused)
            assert 1 <= tries <= 5, "tried, then left alone"
            assert await gateway.sample('headrace_retries_total{pool="short-chat"}') == tries


async def test_health_and_readiness_on_both_listeners(tmp_path):
    async with running(settings_for(tmp_path, [])) as gateway:
        for admin in (True, False):
            assert (await gateway.get("/livez", admin=admin))[0] == 200
            status, body = await gateway.get("/readyz", admin=admin)
            assert status == 503
            assert b"no worker is known" in body
        async with gateway.post({}) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "no_healthy_worker"
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await gateway.get("/metrics", admin=False))[0] == 404, "nothing of the admin plane on the data listener"
        assert (await gateway.get("/admin/v1/fleet", admin=False))[0] == 404


async def test_read_only_views(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        async with gateway.session.get(f"{gateway.admin}/admin/v1/policy") as answer:
            etag = answer.headers["ETag"]
            assert (await answer.json())["policy"]["default_class"] == "standard"
            assert "Server" not in answer.headers
        async with gateway.session.get(f"{gateway.admin}/admin/v1/policy", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        headers = {"Accept": "application/yaml"}
        async with gateway.session.get(f"{gateway.admin}/admin/v1/policy", headers=headers) as answer:
            assert await answer.text() == "{}\n"
        assert json.loads((await gateway.get("/admin/v1/policy/schema"))[1])["title"] == "Headrace policy"
        pools = json.loads((await gateway.get("/admin/v1/pools"))[1])["pools"]
        assert [pool["name"] for pool in pools] == ["short-chat", "long-context", "embeddings"]
        assert pools[0]["ready"] == 1
        workers = json.loads((await gateway.get("/admin/v1/workers"))[1])["workers"]
        assert workers == [json.loads((await gateway.get("/admin/v1/workers/w1"))[1])]
        assert workers[0]["url"] == worker.url
        assert (await gateway.get("/admin/v1/workers/none"))[0] == 404
        assert (await gateway.get("/admin/v1/requests/none"))[0] == 404
        assert (await gateway.get("/nothing"))[0] == 404
        async with gateway.session.post(f"{gateway.admin}/admin/v1/fleet") as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == "GET, HEAD"


async def test_redis_hanging_or_dead_disturbs_no_request(tmp_path):
    """BR-10-01, rows 56 and 57."""
    valkey = await start_valkey()
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker], redis=valkey.url)) as gateway:
        for kill in (signal.SIGSTOP, signal.SIGKILL):
            os.kill(valkey.pid, kill)
            began = asyncio.get_running_loop().time()
            while (await gateway.fleet())["redis"]["up"] is not False:
                async with gateway.post({}) as answer:
                    assert answer.status == 200
                assert asyncio.get_running_loop().time() - began < 10
        for _ in range(50):
            async with gateway.post({}) as answer:
                assert answer.status == 200
        while True:  # modes are looked at in steps
            status, body = await gateway.get("/readyz")
            assert status == 200
            if b"degraded: Redis does not answer" in body:
                break
            assert asyncio.get_running_loop().time() - began < 20, body
            await asyncio.sleep(0.02)
        assert await gateway.sample("headrace_redis_up") == 0
        began = asyncio.get_running_loop().time()
        while not gateway.lines("redis_down"):  # lines are written behind the requests
            assert asyncio.get_running_loop().time() - began < 10
            await asyncio.sleep(0.01)
        assert len(gateway.lines("redis_down")) == 1
        await gateway.idle()
    await valkey.stop()


async def test_a_policy_that_cannot_be_used_stops_the_start(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("pools: {p: {max_budget_tokens: 0}}\nnonsense: 1\n")
    with pytest.raises(PolicyError) as caught:
        async with running(settings_for(tmp_path, [], policy=str(policy))):
            pass
    assert len(caught.value.problems) >= 2


async def test_hangup_reads_the_policy_again(tmp_path):
    """A good file becomes the next revision; a bad one is said and changes nothing."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("{}\n")
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker], policy=str(policy))) as gateway:
        policy.write_text("limits: {body_bytes: 1024}\ntimeouts: {connect_s: 2}\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: gateway.lines("policy_adopted"))
        assert (await gateway.fleet())["revision"]["number"] == 2
        async with gateway.post({"user": "x" * 2000}) as answer:
            assert answer.status == 413
        policy.write_text("limits: {body_byte: 1}\nnonsense: 1\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: gateway.lines("policy_rejected"))
        assert len(gateway.lines("policy_rejected")[0]["problems"]) == 2
        assert await gateway.sample("headrace_policy_rejected_total") == 1
        assert await gateway.sample("headrace_policy_revision") == 2
        async with gateway.post({}) as answer:
            assert answer.status == 200
            assert answer.headers["X-Headrace-Revision"] == "2"


async def test_an_open_listener_without_keys_stops_the_start(tmp_path):
    with pytest.raises(StartError, match="--insecure"):
        async with running(settings_for(tmp_path, [], listen="0.0.0.0:0")):
            pass
    async with running(settings_for(tmp_path, [], listen="0.0.0.0:0", insecure=True)) as gateway:
        assert (await gateway.get("/livez", admin=False))[0] == 200


async def test_an_admin_listener_beyond_this_host_wants_its_token(tmp_path):
    async with running(settings_for(tmp_path, [], admin="0.0.0.0:0", admin_token="s3cret")) as gateway:
        assert (await gateway.get("/admin/v1/fleet"))[0] == 401
        headers = {"Authorization": "Bearer s3cret"}
        async with gateway.session.get(f"{gateway.admin}/admin/v1/fleet", headers=headers) as answer:
            assert answer.status == 200


async def test_a_taken_port_is_one_line_and_leaves_nothing(tmp_path):
    """BR-12-07: either port, at once, naming the address."""
    async with running(settings_for(tmp_path, [])) as gateway:
        for name, url in (("listen", gateway.data), ("admin", gateway.admin)):
            with pytest.raises(OSError, match="is in use by another listener of this") as caught:
                async with running(settings_for(tmp_path, [], **{name: url.removeprefix("http://")})):
                    pass
            assert url.removeprefix("http://") in str(caught.value)
            assert "\n" not in str(caught.value)
        assert (await gateway.get("/livez"))[0] == 200


async def test_a_worker_of_a_pool_that_the_policy_lacks_is_told_and_not_counted(tmp_path):
    async with plain_worker() as good, plain_worker() as stray:
        settings = settings_for(tmp_path, [good, stray], "short-chat", "shrot")
        async with running(settings) as gateway:
            status, body = await gateway.get("/readyz")
            assert status == 200
            assert b"ready: 1 of 1 workers usable; degraded: worker w2 gets nothing" in body
            assert b"no pool 'shrot' (it has short-chat, long-context, " in body
