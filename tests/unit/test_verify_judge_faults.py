"""Each promise of `headrace verify` about changes, misuse and losses: kept, and broken in every way it must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loadtest.verify_client import Fate, Told
from loadtest.verify_figures import Figure
from loadtest.verify_judge_faults import (
    Asked,
    BadInput,
    BadPolicy,
    Doors,
    Drained,
    EngineLoss,
    Full,
    Keys,
    LivePolicy,
    RedisLoss,
    Replicas,
    Stopped,
    differences,
    judge_bad_input,
    judge_bad_policy,
    judge_doors,
    judge_drained,
    judge_engine_loss,
    judge_full,
    judge_keys,
    judge_live_policy,
    judge_redis_loss,
    judge_replicas,
    judge_stopped,
)


def told(fate: Fate = Fate.ANSWERED, **more: Any) -> Told:
    return Told(**{"sent_s": 0.0, "fate": fate, "status": 200, "ended_s": 1.0, **more})


def by(revision: int, pool: str = "short-chat", **more: Any) -> Told:
    return told(headers={"x-headrace-revision": str(revision), "x-headrace-pool": pool}, **more)


def full(**headers: str) -> Told:
    usual = {"retry-after": "2", "x-should-retry": "true"}
    return told(Fate.REFUSED, status=429, code="queue_full", headers={**usual, **headers})


def missed(figures: list[Figure]) -> list[int]:
    return [number for number, figure in enumerate(figures) if not figure.ok]


LOST = told(Fate.BROKEN)
OLD, BETWEEN, NEW = by(1), by(1, ended_s=3.0), by(2, "long-context", sent_s=2.5, ended_s=3.0)
LIVE = LivePolicy(1, 2, "long-context", 2.0, [OLD, BETWEEN, NEW])
REFUSED = Asked("a typo", (422, ""), (422, ""))
POLICY = {"policy": {"a": [1, 2]}, "revision": 3}
BAD_POLICY = BadPolicy([REFUSED], 1, 1, POLICY, POLICY, [told()])
DRAINED = Drained([told()], before=3, leases=0, taken_up=0, others=5, again=2)
FULL = Full([told(), told(), full(), full()], room=2, later=told())
ASKED = Asked("half a body", (400, "invalid_json"), (400, "invalid_json"))
BAD_INPUT = BadInput([ASKED], 0, told())
DOORS = Doors([Asked("/metrics", (404, "not_found"), (404, ""))], [Asked("policy", (401, ""), (401, ""))], 0)
KEYS = Keys([(401, "invalid_api_key")] * 3, told(), tenant_kept=True, generations=0)
CUT = told(Fate.TOLD, code="upstream_reset")
MOVED = told(headers={"x-headrace-attempts": "2", "x-headrace-worker": "b"})
ENGINE = EngineLoss([CUT], 1, [MOVED, told()], [told()], "a", [told()])
REDIS = RedisLoss([told()], [told()], noticed=True, back=True)
STOPPED = Stopped([told()], [told(Fate.BROKEN, status=0)], 0, 4, unready=True)
REPLICAS = Replicas(4, 4, 2, [told()])

JUDGES: dict[type, Callable[[Any], list[Figure]]] = {
    LivePolicy: judge_live_policy,
    BadPolicy: judge_bad_policy,
    Drained: judge_drained,
    Full: judge_full,
    BadInput: judge_bad_input,
    Doors: judge_doors,
    Keys: judge_keys,
    EngineLoss: judge_engine_loss,
    RedisLoss: judge_redis_loss,
    Stopped: judge_stopped,
    Replicas: judge_replicas,
}


@pytest.mark.parametrize(
    "facts",
    [LIVE, BAD_POLICY, DRAINED, FULL, BAD_INPUT, DOORS, KEYS, ENGINE, REDIS, STOPPED, REPLICAS],
    ids=lambda facts: type(facts).__name__,
)
def test_what_is_kept_is_seen_as_kept(facts: Any) -> None:
    assert missed(JUDGES[type(facts)](facts)) == []


@pytest.mark.parametrize(
    ("why", "facts", "figures"),
    [
        ("one was lost", replace(LIVE, told=[*LIVE.told, replace(OLD, fate=Fate.BROKEN)]), [0]),
        ("not in force", replace(LIVE, told=[OLD, replace(NEW, headers=OLD.headers)]), [1]),
        ("in force, and goes elsewhere", replace(LIVE, told=[OLD, by(2, sent_s=2.5, ended_s=3.0)]), [1]),
        ("nothing came after it", replace(LIVE, told=[OLD]), [1]),
        ("nothing came before it", replace(LIVE, told=[NEW]), [2]),
        ("in force before it was applied", replace(LIVE, told=[by(2), NEW]), [2]),
        ("a revision that nobody made", replace(LIVE, told=[OLD, NEW, by(9, ended_s=3.0)]), [3]),
        ("accepted", replace(BAD_POLICY, tried=[replace(REFUSED, got=(200, ""))]), [0]),
        ("nothing tried", replace(BAD_POLICY, tried=[]), [0]),
        ("no place named", replace(BAD_POLICY, placed=0), [1]),
        ("a value changed", replace(BAD_POLICY, after={"policy": {"a": [1, 3]}, "revision": 3}), [2]),
        ("a new revision", replace(BAD_POLICY, after={"policy": {"a": [1, 2]}, "revision": 4}), [2]),
        ("one was lost meanwhile", replace(BAD_POLICY, told=[LOST]), [3]),
        ("no traffic", replace(BAD_POLICY, told=[]), [3]),
        ("one was lost in a drain", replace(DRAINED, told=[LOST]), [0]),
        ("one runs for ever", replace(DRAINED, leases=1), [1]),
        ("it had nothing to drain", replace(DRAINED, before=0), [1, 2]),
        ("it got one more", replace(DRAINED, taken_up=1), [2]),
        ("no traffic while it was drained", replace(DRAINED, others=0), [1, 2]),
        ("it gets nothing ever again", replace(DRAINED, again=0), [3]),
        ("one too many found room", replace(FULL, told=[told(), told(), told(), full()]), [0, 1]),
        ("a queued one was lost", replace(FULL, told=[told(), LOST, full(), full()]), [1]),
        ("no Retry-After", replace(FULL, told=[told(), told(), full(), full(**{"retry-after": ""})]), [0]),
        ("Retry-After of a day", replace(FULL, told=[told(), told(), full(), full(**{"retry-after": "86400"})]), [0]),
        ("another code", replace(FULL, told=[told(), told(), full(), replace(full(), code="shed")]), [0]),
        ("it never was full", replace(FULL, told=[told(), told()]), [0]),
        ("it stays full", replace(FULL, later=full()), [2]),
        ("500 for a typing mistake", replace(BAD_INPUT, asked=[replace(ASKED, got=(500, "internal"))]), [0]),
        ("the right status, another code", replace(BAD_INPUT, asked=[replace(ASKED, got=(400, "bad"))]), [0]),
        ("it reached an engine", replace(BAD_INPUT, generations=1), [1]),
        ("good ones are refused since", replace(BAD_INPUT, good=full()), [2]),
        ("metrics for everybody", replace(DOORS, paths=[Asked("/metrics", (200, ""), (404, ""))]), [0]),
        ("a change without a token", replace(DOORS, changes=[Asked("policy", (200, ""), (401, ""))]), [1]),
        ("an engine heard of it", replace(DOORS, engine_requests=1), [2]),
        ("served without a key", replace(KEYS, without=[(200, ""), (401, "invalid_api_key")]), [0]),
        ("and an engine worked for it", replace(KEYS, generations=1), [1]),
        ("the right key is refused", replace(KEYS, right=told(Fate.REFUSED)), [2]),
        ("a header chose the tenant", replace(KEYS, tenant_kept=False), [3]),
        ("one was not retried", replace(ENGINE, second=[told(Fate.REFUSED)]), [0, 2]),
        ("retried at the dead engine", replace(ENGINE, lost_worker="b"), [0]),
        ("it had nothing unbegun", replace(ENGINE, unbegun=0), [0]),
        ("a cut stream looks complete", replace(ENGINE, begun=[told()]), [1]),
        ("a cut stream says nothing", replace(ENGINE, begun=[LOST]), [1]),
        ("it had begun nothing", replace(ENGINE, begun=[]), [1]),
        ("a stream of another engine broke", replace(ENGINE, others=[LOST]), [2]),
        ("nothing works afterwards", replace(ENGINE, later=[full()]), [3]),
        ("a request failed without Valkey", replace(REDIS, after=[LOST]), [0]),
        ("nobody noticed", replace(REDIS, noticed=False), [0, 1]),
        ("it stays away", replace(REDIS, back=False), [1]),
        ("an accepted request was lost", replace(STOPPED, told=[LOST]), [0]),
        ("nothing ran", replace(STOPPED, running=0), [0]),
        ("one that came later got half an answer", replace(STOPPED, later=[told(Fate.BROKEN)]), [1]),
        ("it still said that it is ready", replace(STOPPED, unready=False), [2]),
        ("it did not end", replace(STOPPED, status=None), [3]),
        ("it ended with an error", replace(STOPPED, status=1), [3]),
        ("two gateways gave out one place twice", replace(REPLICAS, most=5), [0]),
        ("one gateway alone", replace(REPLICAS, processes=1), [1]),
        ("one was lost between them", replace(REPLICAS, told=[LOST]), [2]),
    ],
)
def test_what_is_broken_falls_short(why: str, facts: Any, figures: list[int]) -> None:
    assert missed(JUDGES[type(facts)](facts)) == figures, why


def test_what_came_back_in_place_of_what_should_have_is_said() -> None:
    found = judge_bad_input(replace(BAD_INPUT, asked=[replace(ASKED, got=(0, ""))]))[0]
    assert found.target == "all 1; not half a body: got nothing, wanted 400 invalid_json"


def test_differences_are_counted_by_leaf() -> None:
    assert differences(POLICY, POLICY) == 0
    assert differences({"a": 1, "b": {"c": 2}}, {"a": 2, "b": {}}) == 2
    assert differences([1, 2], [1]) == 1
