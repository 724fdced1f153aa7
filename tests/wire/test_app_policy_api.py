"""Changing the policy of a running gateway through the admin API: rows 64 to 67 of the fault matrix, and what is
around them."""

import asyncio
import json

import pytest
from admin_support import ADMIN, POOLS, Api, settings
from plain_worker import plain_worker
from running_gateway import running

from gateway.audit import tail, verify

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def api(tmp_path):
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as gateway:
        yield Api(gateway)


async def test_read_change_go_back(api):
    before = await api.get("policy")
    tag = api.etag
    assert tag == f'"{before["state"]["etag"]}"'
    assert before["revision"]["number"] == 1
    status, answer = await api.put({"policy": {**before["policy"], "default_class": "batch"}, "note": "nightly"}, tag)
    assert (status, answer["changed"]) == (200, True)
    assert answer["revision"]["number"] == 2
    assert (answer["revision"]["author"], answer["revision"]["note"]) == ("admin", "nightly")
    assert answer["lines"][0].startswith("default_class: batch instead of standard")
    assert (await api.get("policy"))["policy"]["default_class"] == "batch"
    status, answer = await api.post("policy:rollback", {"to": 1, "author": "ann"})
    assert status == 200
    assert answer["revision"] | {"created": 0, "chain": ""} == {
        "number": 3,
        "digest": before["revision"]["digest"],
        "author": "ann",
        "note": "back to revision 1",
        "created": 0,
        "source": "rollback",
        "reverts": 1,
        "chain": "",
    }
    history = await api.get("policy/revisions")
    assert [one["number"] for one in history["revisions"]] == [3, 2, 1]
    assert (await api.get("policy/revisions?limit=1&before=3"))["revisions"][0]["number"] == 2
    assert (await api.get("policy/revisions/2"))["policy"]["default_class"] == "batch"
    assert (await api.call("GET", "policy/revisions/9"))[0] == 404
    assert (await api.call("GET", "policy/revisions?limit=x"))[0] == 400
    assert await api.get("policy/revisions/1", Accept="application/yaml") == "{}\n"


async def test_rollback_without_a_number_goes_one_back(api):
    assert (await api.post("policy:rollback"))[0] == 400
    await api.put("default_class: batch")
    status, answer = await api.post("policy:rollback", {})
    assert (status, answer["revision"]["reverts"]) == (200, 1)
    assert (await api.post("policy:rollback", {"to": 77}))[0] == 404
    assert (await api.post("policy:rollback", {"to": "x"}))[0] == 400
    assert (await api.post("policy:rollback", "[1]"))[0] == 400
    assert (await api.post("policy:rollback", "{"))[0] == 400


async def test_row_64_an_invalid_document_changes_nothing_and_says_everything(api):
    before = await api.get("policy")
    status, answer = await api.put("pools:\n  short-chat: {max_budget_tokens: 0}\ndefault_clas: batch\n")
    assert (status, answer["error"]["code"]) == (422, "policy_invalid")
    assert answer["problems"][0]["path"] == "pools.short-chat.max_budget_tokens"
    assert (answer["problems"][0]["line"], answer["problems"][0]["column"]) == (2, 16)
    assert answer["problems"][1]["suggestion"] == "default_class"
    for body, expected in (
        ("", 400),
        ("[1, 2]", 400),
        ("a: [", 400),
        (b"\xff\xfe", 400),
        ("# " + "x" * 300_000, 413),
        ("# " + "x" * 2_000_000, 413),
        ('{"policy": {"default_class": "nobody"}}', 422),
    ):
        status, answer = await api.put(body)
        assert status == expected, answer
    assert (await api.call("PUT", "policy", {"policy": 3}, **{"If-Match": "*"}))[0] == 400
    assert await api.get("policy") == before
    assert await api.gateway.sample("headrace_policy_rejected_total") >= 7


async def test_s35_an_alias_bomb_is_refused(api):
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    status, answer = await api.put("\n".join(levels))
    assert status in (400, 422)
    assert any("aliases" in one["message"] for one in answer["problems"])


async def test_row_65_guard_rails_hold_until_forced(api):
    wanted = "pools: {elsewhere: {}}"
    status, answer = await api.put(wanted)
    assert (status, answer["error"]["code"]) == (409, "policy_guard")
    assert [one["rule"] for one in answer["guards"]] == ["empties_pool", "drops_capacity"]
    assert (await api.get("policy"))["revision"]["number"] == 1
    status, answer = await api.post("policy:check", wanted)
    assert answer["ok"]
    assert answer["guards"][0]["subject"] == "short-chat"
    status, answer = await api.put(wanted, query="?force=1")
    assert (status, len(answer["guards"])) == (200, 2)
    assert await api.gateway.sample("headrace_policy_guarded_total") == 1


async def test_row_65_a_model_in_use_is_kept(api):
    async with api.gateway.post({}) as answer:
        assert answer.status == 200
    status, answer = await api.put("models: {tiny: {served_as: nobody-serves-this}}")
    assert status == 409
    assert {"rule": "removes_model", "subject": "tiny"}.items() <= answer["guards"][1].items()


async def test_row_66_concurrent_editors(api):
    await api.get("policy")
    tag = api.etag

    async def edit(number: int) -> int:
        return (await Api(api.gateway).put(f"admission: {{max_queued: {number}}}", tag))[0]

    found = await asyncio.gather(*(edit(number) for number in range(8)))
    assert sorted(found) == [200] + [412] * 7
    status, answer = await api.put("{}", tag)
    assert (status, answer["current"]["number"]) == (412, 2)
    assert (await api.call("PUT", "policy", "{}"))[0] == 428
    assert (await api.put("{}", '"2"'))[0] == 200
    assert await api.gateway.sample("headrace_policy_conflicts_total") == 8


async def test_what_means_the_same_is_no_change(api):
    status, answer = await api.put("# nothing new\n{}")
    assert (status, answer["changed"], answer["changes"]) == (200, False, [])
    assert (await api.get("policy"))["revision"]["number"] == 1


async def test_diff_of_documents_and_of_revisions(api):
    status, answer = await api.post("policy:diff", "default_class: batch")
    assert (status, answer["different"]) == (200, True)
    assert "+default_class: batch" in answer["text"]
    await api.put("default_class: batch")
    status, answer = await api.post("policy:diff?from=1&to=2")
    assert (answer["from"]["number"], answer["to"]["number"], answer["different"]) == (1, 2, True)
    assert (await api.post("policy:diff", "default_class: batch"))[1]["different"] is False
    status, answer = await api.post("policy:diff", "nonsense: 1")
    assert (status, answer["ok"], len(answer["problems"])) == (200, False, 1)
    assert (await api.post("policy:diff"))[0] == 400
    assert (await api.post("policy:diff?from=9", "{}"))[0] == 404


async def test_check_says_everything_and_changes_nothing(api):
    status, answer = await Api(api.gateway, None).post("policy:check", "default_class: nobody")
    assert (status, answer["ok"]) == (200, False)
    assert answer["problems"][0]["path"] == "default_class"
    assert (await api.get("policy"))["revision"]["number"] == 1


async def test_every_change_and_every_refusal_is_audited(api, tmp_path):
    await api.put("default_class: batch", query="?author=ann&note=why")
    await api.put("default_class: nobody")
    await api.put("{}", "7")
    await api.put("pools: {elsewhere: {}}")
    entries = (await api.get("audit"))["entries"]
    assert [(one["action"], one["result"]) for one in reversed(entries)] == [
        ("policy.apply", "ok"),
        ("policy.apply", "policy_invalid"),
        ("policy.apply", "policy_conflict"),
        ("policy.apply", "policy_guard"),
    ]
    assert (entries[-1]["who"], entries[-1]["role"], entries[-1]["peer"]) == ("ann", "admin", "127.0.0.1")
    path = tmp_path / "state" / "audit.jsonl"
    assert verify(path).whole
    text = path.read_text()
    path.write_text(text.replace("ann", "bob", 1))
    answer = await api.get("audit")
    assert (answer["verified"], len(tail(path, 9))) == (False, 4)
    assert "line 1" in answer["fault"]


async def test_the_last_good_revision_comes_back_after_a_restart(tmp_path):
    async with plain_worker() as worker:
        path = tmp_path / "policy.yaml"
        path.write_text(POOLS)
        wanted = settings(tmp_path, [worker], policy=str(path))
        async with running(wanted) as gateway:
            await Api(gateway).put(POOLS + "default_class: batch\n")
            assert (await Api(gateway).get("policy/state"))["file"]["drift"]
        async with running(wanted) as gateway:
            api = Api(gateway)
            found = await api.get("policy")
            assert (found["revision"]["number"], found["policy"]["default_class"]) == (2, "batch")
            assert found["state"]["history_verified"]
            assert len((await api.get("policy/revisions"))["revisions"]) == 2


async def test_secrets_are_shown_nowhere(api):
    status, made = await api.post("keys", {"tenant": "acme", "note": "laptop"})
    assert status == 201
    secret = made["key"].rpartition("_")[2]
    for path in ("keys", "fleet", "policy", "audit", "tenants"):
        assert secret not in json.dumps(await api.get(path))
        assert ADMIN not in json.dumps(await api.get(path))
    assert secret not in api.gateway.log.read_text()
    assert ADMIN not in api.gateway.log.read_text()


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"admission: {max_queued: 0x" + b"f" * 200_000 + b"}", {}, (422, "policy_invalid", "too large a number")),
        (f'{{"policy": {{"admission": {{"max_queued": {"9" * 400}}}}}}}', JSON, (422, "policy_invalid", "too large")),
        (
            '{"policy": {"admission": {"max_queued": %s}}}' % ("9" * 5000),
            JSON,
            (400, "invalid_json", "too many digits"),
        ),
        ('{"policy": {"redis_loss": "open", "redis_loss": "closed"}}', JSON, (400, "invalid_json", "given twice")),
        ('{"policy": {}, "policy": {"redis_loss": "open"}}', JSON, (400, "invalid_json", "given twice")),
        ('{"policy": ' + "[" * 1000 + "]" * 1000 + "}", JSON, (400, "", "")),
        ('{"policy": {}, "note": "a\\u001b[2Jb"}', JSON, (400, "invalid_value", "cannot be shown: U+001B")),
        ('{"policy": {}, "author": "a\\u202eb"}', JSON, (400, "invalid_value", "cannot be shown: U+202E")),
        (b"{}", {"Content-Encoding": "gzip"}, (415, "unsupported_encoding", "taken as it is")),
        (b"\x1f\x8b\x08\x00", {"Content-Encoding": "br"}, (415, "unsupported_encoding", "taken as it is")),
    ],
    ids=range(10),
)
async def test_hostile_bodies_change_nothing(api, body, headers, expected):
    status, answer = await api.call("PUT", "policy", body, **{"If-Match": "*", **headers})
    assert status == expected[0], answer
    assert expected[1] in answer["error"]["code"]
    assert expected[2] in answer["error"]["message"]
    assert (await api.get("policy"))["revision"]["number"] == 1


async def test_words_of_any_script_may_be_said_of_a_change(api):
    status, answer = await api.put(
        {"policy": {"redis_loss": "open"}, "note": "\u0646\u0645\u06cc\u200c\u062e 👩\u200d🔧"}
    )
    assert (status, answer["changed"]) == (200, True)


async def test_a_change_that_a_role_may_not_make_is_audited(api, tmp_path):
    token = (tmp_path / "state" / "viewer.token").read_text().strip()
    status, _ = await Api(api.gateway, token).put("redis_loss: open")
    assert status == 403
    (entry,) = (await api.get("audit"))["entries"]
    assert (entry["role"], entry["action"], entry["target"]) == ("viewer", "denied", "PUT /admin/v1/policy")
    assert (await api.call("GET", "audit?limit=x"))[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("policy:rollback", {"too": 1}, "unknown member 'too'; did you mean to?"),
        ("policy:promote", {"x": 1}, "unknown member 'x'; known are note, author"),
        ("keys", {"tenant": "a", "trustd": True}, "did you mean trusted?"),
        ("workers/w1:cap", {"max_in_fligth": 2}, "did you mean max_in_flight?"),
    ],
)
async def test_a_misspelt_member_is_not_passed_over(api, path, body, told):
    if path == "policy:promote":
        await api.post("policy:try?mode=shadow", "redis_loss: open")
    status, answer = await api.post(path, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_value")
    assert told in answer["error"]["message"]
