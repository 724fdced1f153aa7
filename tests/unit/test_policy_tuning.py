"""Tuning of the budget that parts two pools: what it learns, when it moves, how far, and when it keeps still."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.classify import Classified, Classifier, Endpoint, RequestFacts
from policies.document import Policy, policy_from_mapping
from policies.problems import PolicyError
from policies.tuning import LEAST_REQUESTS, STEPS, BudgetTuner, Staff

EVEN = {"short": Staff(4), "long": Staff(4)}


def policy(start: int | None = 4096, low: int | None = 1024, high: int | None = 32_768, **pools: Any) -> Policy:
    short = {"max_budget_tokens": start, "tune_budget_from": low, "tune_budget_to": high}
    return policy_from_mapping({"pools": {"short": short, "long": {}, **pools}, "models": {}, "rules": []})


def tuner(*budgets: tuple[int, float], times: int = 100, rules: Policy | None = None) -> BudgetTuner:
    """One that has seen so much work at these budgets."""
    found = BudgetTuner(rules or policy())
    for _ in range(times):
        for budget, work_s in budgets:
            found.ended("short" if budget <= 4096 else "long", budget, work_s)
    return found


def test_steps_are_powers_of_two_and_what_is_between() -> None:
    assert STEPS[:6] == (64, 96, 128, 192, 256, 384)
    assert 4096 in STEPS
    assert 6144 in STEPS


def test_it_moves_one_step_at_a_time_towards_equal_loads() -> None:
    found = tuner((1000, 0.1), (5000, 1.0), (10_000, 1.0))
    assert found.budgets == {"short": 4096}
    (change,) = found.decide(EVEN)
    assert (change.pool, change.following, change.before, change.after) == ("short", "long", 4096, 6144)
    assert change.loads == pytest.approx((2.5, 50.0))
    assert change.expected == pytest.approx((27.5, 25.0))
    assert found.budgets == {"short": 6144}
    assert change.why == "short and long are loaded 2.5 to 50; 27.5 to 25 is expected"
    assert found.decide(EVEN) == [], "as equal as can be"


def test_it_goes_down_as_well() -> None:
    found = tuner((1000, 1.0), (4000, 1.0), (10_000, 0.1))
    (change,) = found.decide(EVEN)
    assert (change.before, change.after) == (4096, 3072)


def test_more_workers_may_do_more_work() -> None:
    found = tuner((1000, 1.0), (3000, 1.0), (10_000, 1.0))
    assert found.decide({"short": Staff(6), "long": Staff(3)}) == []
    (change,) = found.decide({"short": Staff(2), "long": Staff(6)})
    assert change.after == 3072


def test_a_small_gain_is_left() -> None:
    assert tuner((1000, 1.0), (5000, 0.1), (10_000, 1.15)).decide(EVEN) == []


def test_little_traffic_and_empty_pools_decide_nothing() -> None:
    few = tuner((1000, 0.1), (5000, 1.0), times=int(LEAST_REQUESTS) // 2 - 1)
    assert few.decide(EVEN) == []
    found = tuner((1000, 0.1), (5000, 1.0), (10_000, 1.0))
    for staff in (
        {},
        {"short": Staff(4)},
        {"short": Staff(0), "long": Staff(4)},
        {"short": Staff(4), "long": Staff(0)},
    ):
        assert found.decide(staff) == []


def test_old_traffic_is_forgotten() -> None:
    found = tuner((1000, 0.1), (5000, 1.0), (10_000, 1.0))
    for _ in range(60):
        found.decide({})
    for _ in range(100):
        found.ended("short", 1000, 1.0)
        found.ended("short", 3000, 1.0)
        found.ended("long", 10_000, 0.1)
    assert [change.after for change in found.decide(EVEN)] == [3072]


def test_bounds_and_contexts_are_kept() -> None:
    found = tuner((1000, 0.01), (5000, 1.0), (7000, 9.0), (9000, 9.0), rules=policy(high=6144))
    assert [change.after for change in found.decide(EVEN)] == []
    found = tuner((5000, 9.0), (7000, 9.0), (9000, 9.0), rules=policy(high=6144))
    assert [change.after for change in found.decide(EVEN)] == [6144]
    assert found.decide(EVEN) == [], "more would be better, and is not allowed"
    held = tuner((1000, 0.1), (5000, 1.0), (10_000, 1.0))
    assert held.decide({"short": Staff(4, max_model_len=5000), "long": Staff(4)}) == []
    (change,) = held.decide({"short": Staff(4, max_model_len=2048), "long": Staff(4)})
    assert change.after == 2048, "what its workers cannot hold is not at home there, whatever the gain"
    assert held.decide({"short": Staff(4, max_model_len=512), "long": Staff(4)}) == [], "below the bounds: as it was"


def test_what_rules_place_is_load_that_no_budget_moves() -> None:
    found = tuner((1000, 0.5), (5000, 1.0), (10_000, 1.0))
    for _ in range(400):
        found.ended("short", 0, 1.0)
        found.ended("elsewhere", 0, 9.0)
        found.ended("elsewhere", 3000, 9.0)
    assert [change.after for change in found.decide(EVEN)] == []


def test_a_policy_that_leaves_the_pools_alone_keeps_what_was_found() -> None:
    found = tuner((1000, 0.1), (5000, 1.0), (10_000, 1.0))
    found.decide(EVEN)
    found.adopt(policy(extra={}))
    assert found.budgets == {"short": 6144}
    found.adopt(policy(low=2048))
    assert found.budgets == {"short": 4096}
    found.adopt(Policy())
    assert (found.budgets, found.active) == ({}, False)


def test_the_next_pool_is_one_that_takes_the_same_and_holds_more() -> None:
    between = {"embed": {"endpoints": ["embeddings"]}, "less": {"max_budget_tokens": 2000}}
    short = {"max_budget_tokens": 4096, "tune_budget_from": 1024, "tune_budget_to": 8192}
    rules = {"models": {}, "rules": []}
    found = BudgetTuner(policy_from_mapping({"pools": {"short": short, **between, "long": {}}, **rules}))
    assert found._pairs["short"].following == "long"
    assert not BudgetTuner(policy_from_mapping({"pools": {"short": short, **between}, **rules})).active


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"low": None}, "pools.short.tune_budget_to: needs both ends"),
        ({"high": None}, "pools.short.tune_budget_from: needs both ends"),
        ({"start": None}, "pools.short.tune_budget_from: tunes max_budget_tokens, which is not given"),
        (
            {"start": 512},
            "pools.short.max_budget_tokens: must be from tune_budget_from (1024) to tune_budget_to (32768)",
        ),
    ],
)
def test_bounds_that_do_not_fit_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match="tune_budget") as caught:
        policy(**changes)
    assert told in str(caught.value)


def test_requests_go_by_the_tuned_budget_and_are_told_so() -> None:
    classifier = Classifier(policy())

    def placed(tokens: int) -> Classified:
        found = classifier.classify(RequestFacts(Endpoint.CHAT, "m", "t", tokens, 0))
        assert isinstance(found, Classified)
        return found

    assert (placed(5000).pool, placed(4096).pool) == ("long", "short")
    assert placed(4096).home_budget_tokens == 4096
    classifier.budgets = {"short": 6144}
    assert (placed(5000).pool, placed(6145).pool) == ("short", "long")
    assert placed(5000).why == "endpoint chat, budget up to 6144 (tuned); class by default"
    ruled = policy_from_mapping({"pools": {"a": {}, "b": {}}, "models": {}, "rules": [{"pool": "b"}]})
    found = Classifier(ruled).classify(RequestFacts(Endpoint.CHAT, "m", "t", 5000, 0))
    assert isinstance(found, Classified)
    assert (found.pool, found.home_budget_tokens) == ("b", 0)


@settings(max_examples=80, deadline=None)
@given(
    works=st.lists(st.tuples(st.integers(1, 200_000), st.floats(0.001, 100)), min_size=60, max_size=150),
    workers=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    start=st.sampled_from([1024, 5000, 32_768]),
    length=st.sampled_from([None, 3000, 20_000]),
)
def test_with_steady_traffic_it_comes_to_rest_within_bounds_and_never_loads_more(
    works: list[tuple[int, float]], workers: tuple[int, int], start: int, length: int | None
) -> None:
    found = BudgetTuner(policy(start=start))
    staff = {"short": Staff(workers[0], length), "long": Staff(workers[1])}
    moves = 0
    for _ in range(40):
        for budget, work_s in works:
            found.ended("long", budget, work_s)
        for change in found.decide(staff):
            moves += 1
            assert 1024 <= change.after <= 32_768
            assert length is None or change.after <= length
            assert change.before > (length or 32_768) or change.after in STEPS
    assert moves <= len(STEPS)
    assert found.decide(staff) == []
