"""A canary and a shadow at a running gateway: who decides for whom, what is compared, how it ends."""

import asyncio
from typing import Any

import pytest
from admin_support import Api, settings
from plain_worker import plain_worker
from running_gateway import Running, running, until

URGENT = "default_class: interactive\n"


@pytest.fixture
async def api(tmp_path):
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as gateway:
        yield Api(gateway)


async def ask(gateway: Running, **headers: str) -> tuple[str, str]:
    """(class, revision) of a request."""
    async with gateway.post({}, **headers) as answer:
        assert answer.status == 200
        return answer.headers["X-Headrace-Class"], answer.headers["X-Headrace-Revision"]


async def until_counted(api: Api, count: int) -> dict[str, Any]:
    for _ in range(500):
        trial = (await api.get("policy/trial"))["trial"]
        if trial["rest"]["requests"] + trial["trial"]["requests"] == count:
            return dict(trial)
        await asyncio.sleep(0.02)
    pytest.fail(f"not counted: {trial}")


async def test_a_canary_decides_for_its_share_and_is_compared(api):
    status, answer = await api.post("policy:try?mode=canary&share=50%", URGENT)
    assert (status, answer["trial"]["share"], answer["trial"]["base"]) == (200, 0.5, 1)
    found = [await ask(api.gateway) for _ in range(60)]
    assert set(found) == {("standard", "1"), ("interactive", "2")}
    tried = found.count(("interactive", "2"))
    assert 15 < tried < 45
    trial = await until_counted(api, 60)
    assert (trial["trial"]["requests"], trial["rest"]["requests"]) == (tried, 60 - tried)
    assert trial["trial"]["ok"] == tried
    assert trial["trial"]["e2e_mean_s"] > 0
    assert (await api.get("policy"))["revision"]["number"] == 1


async def test_a_session_stays_on_one_side(api):
    await api.post("policy:try?mode=canary&share=0.5", URGENT)
    for session in ("a", "b", "c", "d"):
        assert len({await ask(api.gateway, **{"X-Session-Id": session}) for _ in range(5)}) == 1


async def test_promote(api):
    await api.post("policy:try?mode=canary&share=1", URGENT)
    assert await ask(api.gateway) == ("interactive", "2")
    status, answer = await api.post("policy:promote", {"author": "ann"})
    assert (status, answer["revision"]["number"], answer["revision"]["source"]) == (200, 2, "promote")
    assert (await api.get("policy/trial"))["trial"] is None
    assert await ask(api.gateway) == ("interactive", "2")
    assert (await api.post("policy:promote"))[0] == 409
    await until(lambda: api.gateway.lines("policy_trial_ended"))
    assert api.gateway.lines("policy_trial_ended")[0]["why"] == "promoted"


async def test_withdraw(api):
    await api.post("policy:try?mode=canary&share=1", URGENT)
    await ask(api.gateway)
    status, answer = await api.post("policy:withdraw")
    assert (status, answer["trial"], answer["ended"]["mode"]) == (200, None, "canary")
    assert await ask(api.gateway) == ("standard", "1")
    assert (await api.post("policy:withdraw"))[0] == 409
    actions = [entry["action"] for entry in (await api.get("audit"))["entries"]]
    assert actions == ["policy.withdraw", "policy.canary"]


async def test_another_revision_ends_it(api):
    await api.post("policy:try?mode=canary&share=1", URGENT)
    assert (await api.put("redis_loss: open"))[0] == 200
    assert (await api.get("policy/trial"))["trial"] is None
    assert await ask(api.gateway) == ("standard", "2")


async def test_a_trial_in_place_of_another_is_said(api):
    await api.post("policy:try?mode=canary&share=0.25", URGENT)
    status, answer = await api.post("policy:try?mode=shadow", "redis_loss: open")
    assert (status, answer["trial"]["mode"], answer["replaced"]["share"]) == (200, "shadow", 0.25)


async def test_a_shadow_is_asked_and_not_obeyed(api):
    wanted = "rules: [{when: {header: {X-Team: blue}}, class: batch}]\n"
    status, answer = await api.post("policy:try?mode=shadow", wanted)
    assert (status, answer["trial"]["mode"]) == (200, "shadow")
    for _ in range(3):
        assert await ask(api.gateway) == ("standard", "1")
    for _ in range(2):
        assert await ask(api.gateway, **{"X-Team": "blue"}) == ("standard", "1")
    trial = (await api.get("policy/trial"))["trial"]
    assert (trial["seen"], trial["different"]) == (5, 2)
    assert {"what": "class", "from": "standard", "to": "batch", "requests": 2} in trial["differences"]


async def test_what_cannot_be_tried(api):
    assert (await api.post("policy:try?mode=canary", "{}"))[0] == 409
    assert (await api.post("policy:try?mode=guess", URGENT))[0] == 400
    for share in ("0", "2", "x", "-1", "nan"):
        assert (await api.post(f"policy:try?mode=canary&share={share}", URGENT))[0] == 400
    assert (await api.post("policy:try?mode=canary", "nonsense: 1"))[0] == 422
    status, answer = await api.post("policy:try?mode=canary", "balancing: {beta: 0.3}")
    assert (status, answer["paths"]) == (422, ["balancing.beta"])
    assert (await api.post("policy:try?mode=shadow", "balancing: {beta: 0.3}"))[0] == 200
