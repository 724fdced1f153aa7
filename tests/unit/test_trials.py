"""Trials without a gateway: fair shares, stable sides, bounded memory."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway import trials as module
from gateway.policy_draft import Draft
from gateway.records import RequestRecord, Terminal
from gateway.trials import Arm, Mode, Trials
from policies.canaries import place_of
from policies.classify import Classifier, RequestFacts
from policies.document import Policy, parse_policy
from policies.endpoints import Endpoint
from policies.revisions import first_revision, next_revision

BASE = first_revision(Policy(), "{}", 1.0)
BATCH = Draft(parse_policy("default_class: batch"), "default_class: batch", "ann")


def trials() -> tuple[Trials, list[str]]:
    ended: list[str] = []
    return Trials(None, "f", now=lambda: 9.0, rng=Random(1), on_end=lambda trial, why: ended.append(why)), ended


def ended(**changes: Any) -> RequestRecord:
    record = RequestRecord("r", "POST", "/", "peer", class_name="batch", outcome=Terminal.OK, revision=2)
    for name, value in changes.items():
        setattr(record, name, value)
    return record


@given(st.text(max_size=8), st.floats(0.05, 0.95))
def test_shares_are_fair(salt, share):
    places = [place_of(salt, f"key {number}") for number in range(2000)]
    assert all(0 <= place < 1 for place in places)
    assert abs(sum(place < share for place in places) / 2000 - share) < 0.07


async def test_a_session_has_one_side_and_others_have_theirs():
    found, _ = trials()
    await found.start(Mode.CANARY, 0.3, BATCH, BASE)
    sides = {
        session: {found.choose("t", session, str(number)) is not None for number in range(5)}
        for session in map(str, range(200))
    }
    assert all(len(side) == 1 for side in sides.values())
    assert 30 < sum(True in side for side in sides.values()) < 90


async def test_it_ends_with_another_revision_and_not_with_its_own_base():
    found, why = trials()
    await found.start(Mode.CANARY, 0.5, BATCH, BASE)
    found.adopted(BASE)
    assert found.trial is not None
    found.adopted(next_revision(BASE, BATCH.policy, BATCH.text, "bob", "", 3.0))
    assert (found.trial, why) == (None, ["promoted"])
    await found.start(Mode.SHADOW, 1.0, BATCH, BASE)
    await found.start(Mode.CANARY, 1.0, BATCH, BASE)
    found.adopted(next_revision(BASE, parse_policy("default_class: interactive"), "x", "bob", "", 3.0))
    assert why[1:] == ["another trial was begun", "another revision became current"]


async def test_only_the_two_sides_are_counted():
    found, _ = trials()
    found.finished(ended())
    trial = await found.start(Mode.CANARY, 0.5, BATCH, BASE)
    assert trial is not None
    for record in (ended(), ended(revision=1), ended(revision=9), ended(class_name="")):
        found.finished(record)
    assert (trial.tried.requests, trial.rest.requests) == (1, 1)


def test_an_arm_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "SAMPLES", 10)
    arm = Arm()
    for number in range(1000):
        arm.add(ended(ttft_s=float(number), duration_s=2.0, output_tokens=3), Random(number))
    for outcome in (Terminal.REJECTED, Terminal.UPSTREAM_ERROR, Terminal.CANCELLED):
        arm.add(ended(outcome=outcome), Random(1))
    view = arm.view()
    assert len(arm.samples) == 10
    assert (view["requests"], view["ok"], view["rejected"], view["failed"]) == (1003, 1000, 1, 1)
    assert (view["e2e_mean_s"], view["ttft_mean_s"], view["output_tokens"]) == (2.0, 499.5, 3000)
    assert Arm().view()["ttft_p50_s"] is None


async def test_differences_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_DIFFERENCES", 3)
    found, _ = trials()
    pools = ", ".join(f"p{number}: {{max_budget_tokens: {number + 1}}}" for number in range(20))
    many = Draft(parse_policy(f"pools: {{{pools}}}"), "x", "ann")
    trial = await found.start(Mode.SHADOW, 1.0, many, BASE)
    assert trial is not None
    classifier = Classifier(Policy())
    for number in range(20):
        facts = RequestFacts(Endpoint.CHAT, "m", "t", number + 1, 0)
        answer = classifier.classify(facts)
        found.decided(facts, answer)  # type: ignore[arg-type]
    assert (trial.seen, trial.different, len(trial.differences)) == (20, 20, 3)
    assert found.choose("t", "", "r") is None, "a shadow decides nothing"


async def test_a_class_that_a_shadow_does_not_know():
    found, _ = trials()
    one = Draft(parse_policy("{classes: [{name: standard}], tenants: {}}"), "x", "ann")
    await found.start(Mode.SHADOW, 1.0, one, BASE)
    facts = RequestFacts(Endpoint.CHAT, "m", "t", 5, 5, asked_class="batch")
    found.decided(facts, Classifier(Policy()).classify(facts))  # type: ignore[arg-type]
    view = found.view()
    assert view is not None
    assert view["differences"] == [{"what": "refused", "from": "no", "to": "invalid_priority", "requests": 1}]
