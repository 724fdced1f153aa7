"""A token budget that parts two pools badly, with and without tuning: recorded traffic, seeded."""

from __future__ import annotations

from dataclasses import replace

from loadtest.figures import Figures
from loadtest.fleet import Fleet
from loadtest.routers import ProductionRouter
from loadtest.simulate import Scenario
from policies.document import Policy, policy_from_mapping

APART = Scenario(window=4, seconds=240.0, pools=(("short-chat", 4), ("long-context", 4)))


def rules(budget: int, tune: bool) -> Policy:
    short: dict[str, object] = {"max_budget_tokens": budget}
    if tune:
        short |= {"tune_budget_from": 1024, "tune_budget_to": 65_536}
    return policy_from_mapping({"pools": {"short-chat": short, "long-context": {}}, "models": {}, "rules": []})


def test_tuning_mends_a_budget_that_leaves_one_pool_idle() -> None:
    budget = 1024
    goodput: dict[bool, float] = {}
    for tune in (False, True):
        scenario = replace(APART, policy=rules(budget, tune))
        router = scenario.build_router()
        assert isinstance(router, ProductionRouter)
        goodput[tune] = Figures.of(Fleet(scenario.plans(), router).run(scenario.trace())).all.goodput
        assert bool(router.changes) is tune
        if tune:
            steps = [change.after for change in router.changes]
            assert len(steps) == len(set(steps)), "it does not swing"
            assert all(abs(change.after - 4096) < abs(budget - 4096) for change in router.changes)
    assert goodput[True] >= goodput[False] + 0.1
