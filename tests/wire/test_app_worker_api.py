"""Workers, tenants, keys and events of a running gateway through the admin API."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from admin_support import ADMIN, Api, settings
from plain_worker import plain_worker
from running_gateway import Running, running, until

from gateway.admin.access import LEAST, RANK, Need, Role
from gateway.admin.openapi import openapi, plain
from gateway.admin.table import ANY_TEXT, CALLS, DOCUMENT, Call
from gateway.start import StartError


@pytest.fixture
async def worker():
    async with plain_worker() as found:
        yield found


@pytest.fixture
async def api(tmp_path, worker):
    async with running(settings(tmp_path, [worker])) as gateway:
        yield Api(gateway)


async def streaming(gateway: Running, worker: Any) -> Any:
    """A stream that stands at its gate."""
    worker.gate.clear()
    answer = await gateway.post({"stream": True}).__aenter__()
    assert answer.status == 200
    return answer


async def test_drain_and_undrain(api, worker):
    stream = await streaming(api.gateway, worker)
    status, view = await api.post("workers/w1:drain")
    assert (status, view["state"], view["leases"]) == (200, "draining", 1)
    assert view["operator"] == {"drain": True, "eject": False, "cap": None}
    async with api.gateway.post({}, **{"X-Headrace-Queue": "never"}) as refused:
        assert refused.status == 503
    worker.gate.set()
    assert b"[DONE]" in await stream.read()
    await until_leases(api, 0)
    status, view = await api.post("workers/w1:undrain")
    assert (status, view["state"]) == (200, "ready")
    async with api.gateway.post({}) as answer:
        assert answer.status == 200


async def until_leases(api: Api, count: int) -> None:
    for _ in range(500):
        if (await api.get("workers/w1"))["leases"] == count:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the worker did not get empty")


async def test_cap(api):
    status, view = await api.post("workers/w1:cap", {"max_in_flight": 2})
    assert (status, view["limit"], view["operator"]["cap"]) == (200, 2, 2)
    assert (await api.post("workers/w1:cap", {"max_in_flight": None}))[1]["limit"] == 4
    for body in ({}, {"max_in_flight": -1}, {"max_in_flight": "2"}, {"max_in_flight": True}, "[]", "{"):
        assert (await api.post("workers/w1:cap", body))[0] == 400
    assert (await api.post("workers/none:cap", {"max_in_flight": 2}))[0] == 404


async def test_eject_and_readmit(api):
    assert (await api.post("workers/w1:eject"))[1]["state"] == "ejected"
    assert (await api.post("workers/w1:readmit"))[1]["state"] == "ready"
    entries = (await api.get("audit"))["entries"]
    assert [entry["action"] for entry in entries] == ["worker.readmit", "worker.eject"]


async def test_a_drained_worker_stays_drained_over_a_restart(tmp_path, worker):
    wanted = settings(tmp_path, [worker])
    async with running(wanted) as gateway:
        await Api(gateway).post("workers/w1:drain")
    async with running(wanted) as gateway:
        assert (await Api(gateway).get("workers/w1"))["state"] == "draining"


async def test_tenants(api):
    async with api.gateway.post({}) as answer:
        assert answer.status == 200
    found = {one["name"]: one for one in (await api.get("tenants"))["tenants"]}
    assert found["acme"]["weight"] == 4.0
    assert (found["default"]["in_policy"], found["default"]["in_flight"]) == (True, 0)
    assert found["default"]["served_tokens"]["standard"] > 0


async def test_keys(api):
    assert (await api.get("keys"))["keys"] == []
    status, made = await api.post("keys", {"tenant": "acme", "note": "laptop"})
    assert (status, made["tenant"], made["key"][:3]) == (201, "acme", "hr_")
    async with api.gateway.post({}) as answer:
        assert answer.status == 401, "keys are checked as soon as there is one"
    async with api.gateway.post({}, Authorization=f"Bearer {made['key']}") as answer:
        assert answer.status == 200
    status, rotated = await api.post(f"keys/{made['id']}:rotate")
    assert (status, rotated["key"] != made["key"]) == (200, True)
    status, revoked = await api.post(f"keys/{made['id']}:revoke")
    assert (status, revoked["revoked"] is not None) == (200, True)
    async with api.gateway.post({}, Authorization=f"Bearer {rotated['key']}") as answer:
        assert answer.status == 401
    (listed,) = (await api.get("keys"))["keys"]
    assert "sha256" not in listed
    assert (await api.post("keys/none:rotate"))[0] == 404
    assert (await api.post(f"keys/{made['id']}:rotate"))[0] == 409
    assert (await api.post("keys", {}))[0] == 400
    assert (await api.post("keys", {"tenant": "a b"}))[0] == 400
    assert (await api.post("keys", {"tenant": "a", "trusted": "yes"}))[0] == 400


async def test_a_gateway_that_keeps_nothing_has_no_keys(tmp_path, worker):
    async with running(settings(tmp_path, [worker], ephemeral=True)) as gateway:
        api = Api(gateway)
        assert (await api.get("keys"))["keys"] == []
        assert (await api.post("keys", {"tenant": "a"}))[0] == 409
        assert (await api.put("default_class: batch"))[0] == 200
        assert (await api.get("audit"))["entries"] == []
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["operator.token", "viewer.token"]


async def events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    found = []
    while len(found) < count:
        name = (await asyncio.wait_for(answer.content.readline(), 10)).decode().strip()
        if name.startswith("event: "):
            data = (await answer.content.readline()).decode()
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_live_events(api):
    url = f"{api.gateway.admin}/admin/v1/events"
    async with api.gateway.session.get(url) as answer:
        assert answer.content_type == "text/event-stream"
        assert await answer.content.readline() == b": listening\n"
        await api.put("default_class: batch", query="?author=ann")
        found = await events(answer, 2)
        assert [name for name, _ in found] == ["policy", "audit"]
        assert (found[0][1]["number"], found[1][1]["who"]) == (2, "ann")
        async with api.gateway.post({}) as served:
            assert served.status == 200
        await api.post("workers/w1:drain")
        found = await events(answer, 3)
        assert {name for name, _ in found} == {"request", "worker", "audit"}
        request = next(what for name, what in found if name == "request")
        assert (request["worker"], request["outcome"]) == ("w1", "ok")
        assert "peer" not in request
    async with api.gateway.session.get(f"{url}?types=policy,nonsense") as answer:
        assert answer.status == 400
    await asyncio.sleep(0)


async def test_only_the_events_that_were_asked_for(api):
    async with api.gateway.session.get(f"{api.gateway.admin}/admin/v1/events?types=policy") as answer:
        await api.post("workers/w1:drain")
        await api.put("default_class: batch")
        assert (await events(answer, 1))[0][0] == "policy"


async def test_a_listener_does_not_keep_the_gateway(tmp_path, worker):
    async with running(settings(tmp_path, [worker])) as gateway:
        answer = await gateway.session.get(f"{gateway.admin}/admin/v1/events")
        assert await answer.content.readline() == b": listening\n"
        gateway.stop.set()
        await until(lambda: gateway.lines("stopped"), 10)
        answer.close()


async def test_s22_every_call_by_every_role(tmp_path, worker):
    """The roles of the table are those that are enforced, for every call there is."""
    async with running(settings(tmp_path, [worker])) as gateway:
        tokens: dict[Role | None, str | None] = {None: None, Role.ADMIN: ADMIN}
        for role in (Role.VIEWER, Role.OPERATOR):
            tokens[role] = (tmp_path / "state" / f"{role}.token").read_text().strip()
        for call in CALLS:
            if call.path.endswith("/events") or call.need is Need.NOTHING:
                continue
            path = plain(call.path).replace("{id}", "none").replace("{number}", "9")
            told = openapi("0")["paths"][plain(call.path)][call.method.lower()]["responses"]
            for role, token in tokens.items():
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                async with gateway.session.request(call.method, gateway.admin + path, headers=headers) as answer:
                    found = answer.status
                assert str(found) in told, call
                if role is None:
                    assert (found == 401) is (call.need is not Need.READ), call
                else:
                    assert (found == 403) is (RANK[role] < RANK[LEAST[call.need]]), call


async def test_s24_nothing_of_it_on_the_data_listener_and_nothing_changes_by_get(api):
    for call in CALLS:
        if call.need is not Need.NOTHING:
            assert call.method == "GET" or call.method in {"PUT", "POST"}
            status, _ = await api.gateway.get(call.path.partition("{")[0], admin=False)
            assert status in (404, 405), call
    for path in ("workers/w1:drain", "policy:rollback", "keys/x:revoke"):
        assert (await api.call("GET", path))[0] in (404, 405)
    async with api.gateway.session.options(f"{api.gateway.admin}/admin/v1/policy") as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_the_description_names_every_call(api):
    async with api.gateway.session.get(f"{api.gateway.admin}/admin/openapi.json") as answer:
        described = await answer.json()
    assert described == openapi(described["info"]["version"])
    operations = [(method, path) for path, methods in described["paths"].items() for method in methods]
    assert len(operations) == len(CALLS)
    assert ("put", "/admin/v1/policy") in operations
    assert (await api.get("whoami")) == {"role": "admin"}
    assert (await Api(api.gateway, None).get("whoami")) == {"role": None}


GOOD = {
    "mode": "?mode=shadow",
    DOCUMENT["$ref"]: "redis_loss: open",
    "workers.cap": {"max_in_flight": 2},
    "keys.create": {"tenant": "acme"},
}


def good_body(call: Call) -> Any:
    """Something that this call takes."""
    if call.body is None:
        return None
    return GOOD.get(call.handler, GOOD[DOCUMENT["$ref"]] if call.body in (DOCUMENT, ANY_TEXT) else {})


async def test_what_is_answered_is_what_the_description_says(api):
    """Every call once, rightly made: its status is described, and the members are there that are promised."""
    request = "none"
    async with api.gateway.post({}) as answer:
        request = answer.headers["X-Request-Id"]
    _, key = await api.post("keys", {"tenant": "acme"})
    names = {"id": "w1", "number": "1", "name": "app.js"}
    for call in CALLS:
        if call.handler == "events.events":
            continue
        if call.handler == "trials.withdraw":
            await api.post("policy:try?mode=shadow", "redis_loss: closed")
        ids = {"health.explain": request, "keys.rotate": key["id"], "keys.revoke": key["id"]}
        path = plain(call.path)
        for name, value in {**names, "id": ids.get(call.handler, "w1")}.items():
            path = path.replace(f"{{{name}}}", value)
        url = api.gateway.admin + path + (GOOD["mode"] if "mode" in call.query else "")
        body, headers = good_body(call), {**api.headers, "If-Match": "*"}
        sent = {"json": body} if isinstance(body, dict) else {"data": body}
        async with api.gateway.session.request(call.method, url, headers=headers, **sent) as answer:
            told = openapi("0")["paths"][plain(call.path)][call.method.lower()]["responses"]
            assert str(answer.status) in told, call
            assert answer.status < 300 or call.handler == "policy.simulate", await answer.text()
            assert answer.content_type in told[str(answer.status)]["content"], call
            if answer.status < 300 and answer.content_type == "application/json":
                assert set(call.gives) <= set(await answer.json()), call


async def test_where_nothing_can_be_written_a_given_token_is_enough(tmp_path, worker):
    nowhere = "/proc/headrace"  # where nobody, root included, can make a directory
    async with running(settings(tmp_path, [worker], state_dir=nowhere)) as gateway:
        api = Api(gateway)
        status, answer = await api.put("default_class: batch")
        assert (status, answer["changed"]) == (200, True)
        assert "policy-default.jsonl" in (await api.get("policy/state"))["journal_error"]
    with pytest.raises(StartError, match="cannot keep the admin tokens"):
        async with running(settings(tmp_path, [worker], state_dir=nowhere, admin_token=None)):
            pass
