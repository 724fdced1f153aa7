"""Trials without a gateway: fair shares, stable sides, bounded memory."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import trial_counts as counting
from gateway.history import ERROR
from gateway.policy_draft import ConflictError, Draft
from gateway.records import RequestRecord, Terminal
from gateway.trial_counts import Arm, Counts, counts_from
from gateway.trials import Mode, Trials
from policies.canaries import place_of
from policies.classify import Classifier, RequestFacts
from policies.document import Policy, parse_policy
from policies.endpoints import Endpoint
from policies.revisions import Revision, first_revision, next_revision

BASE = first_revision(Policy(), "{}", 1.0)
BATCH = Draft(parse_policy("default_class: batch"), "default_class: batch", "ann")


def trials(held: Callable[[], Revision] = lambda: BASE) -> tuple[Trials, list[str]]:
    ended: list[str] = []
    on_end = lambda trial, why: ended.append(why)  # noqa: E731
    return Trials(None, "f", "me", now=lambda: 9.0, held=held, on_end=on_end), ended


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
    assert (trial.counts.tried.requests, trial.counts.rest.requests) == (1, 1)


def test_an_arm_is_bounded():
    arm = Arm()
    for number in range(1000):
        arm.observe(ended(ttft_s=float(number), duration_s=2.0, output_tokens=3))
    for outcome in (Terminal.REJECTED, Terminal.UPSTREAM_ERROR, Terminal.CANCELLED):
        arm.observe(ended(outcome=outcome))
    view = arm.view()
    assert len(orjson.dumps(arm.told())) < 20_000
    assert (view["requests"], view["ok"], view["rejected"], view["failed"]) == (1003, 1000, 1, 1)
    assert (view["e2e_mean_s"], view["ttft_mean_s"], view["output_tokens"]) == (2.0, 499.5, 3000)
    assert view["ttft_p50_s"] == pytest.approx(499, rel=ERROR + 0.001)
    assert Arm().view()["ttft_p50_s"] is None


async def test_a_trial_begins_only_beside_what_holds():
    """Somebody was faster: a canary of a revision that is gone would be compared with nothing and never be promoted."""
    other = next_revision(BASE, parse_policy("default_class: interactive"), "x", "bob", "", 3.0)
    found, _ = trials(lambda: other)
    with pytest.raises(ConflictError) as caught:
        await found.start(Mode.CANARY, 0.5, BATCH, BASE)
    assert (caught.value.current, found.trial) == (other, None)


RECORDS = st.builds(
    ended,
    outcome=st.sampled_from(Terminal),
    ttft_s=st.none() | st.floats(0.0, 100.0),
    duration_s=st.integers(0, 9).map(float),
    output_tokens=st.none() | st.integers(0, 1000),
)
DIFFERENCES = st.lists(
    st.tuples(st.sampled_from(["pool", "class"]), st.text(max_size=3), st.text(max_size=3)), max_size=3
)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), RECORDS, DIFFERENCES), max_size=30))
def test_what_several_gateways_counted_adds_up_to_what_one_would_have(events):
    whole, parts = Counts(), [Counts() for _ in range(3)]
    for gateway, tried, record, differences in events:
        for counts in (whole, parts[gateway]):
            (counts.tried if tried else counts.rest).observe(record)
            counts.differ(differences)
    together = Counts()
    for part in parts:
        together.add(counts_from(orjson.loads(orjson.dumps(part.told()))))
    for one, other in ((together.rest, whole.rest), (together.tried, whole.tried)):
        assert one.view() == pytest.approx(other.view())
    assert (together.seen, together.different) == (whole.seen, whole.different)
    assert together.differences == whole.differences


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["rest", "tried", "seen", "different", "differences", "rest.ttft", "tried.e2e_s"]), JSON_VALUES)
def test_what_no_gateway_tells_is_not_counted(place, value):
    told = Counts().told()
    section, _, inner = place.partition(".")
    if inner:
        told[section][inner] = value
    else:
        told[section] = value
    try:
        found = counts_from(told)
    except ValueError:
        return
    assert min(found.seen, found.different, found.rest.requests) >= 0
    assert found.tried.e2e_s >= 0


async def test_differences_are_bounded(monkeypatch):
    monkeypatch.setattr(counting, "MAX_DIFFERENCES", 3)
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
    assert (trial.counts.seen, trial.counts.different, len(trial.counts.differences)) == (20, 20, 3)
    assert found.choose("t", "", "r") is None, "a shadow decides nothing"


async def test_a_class_that_a_shadow_does_not_know():
    found, _ = trials()
    one = Draft(parse_policy("{classes: [{name: standard}], tenants: {}}"), "x", "ann")
    await found.start(Mode.SHADOW, 1.0, one, BASE)
    facts = RequestFacts(Endpoint.CHAT, "m", "t", 5, 5, asked_class="batch")
    found.decided(facts, Classifier(Policy()).classify(facts))  # type: ignore[arg-type]
    view = await found.view()
    assert view is not None
    assert view["differences"] == [{"what": "refused", "from": "no", "to": "invalid_priority", "requests": 1}]
