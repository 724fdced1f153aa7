"""Prompts that share prefixes, over engines that cache them: the scheduler's index against knowing the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from gateway.scheduling.prefixes import PrefixIndex
from loadtest.figures import Figures
from loadtest.fleet import Fleet
from loadtest.routers import ProductionRouter
from loadtest.simulate import Scenario
from loadtest.traces import MOONCAKE_BLOCK_TOKENS

RICH = Scenario(seconds=400.0, short_per_s=0.0, long_per_s=1.5, prefixes=True)
WINDOWS = (1, 2, 3)


class TrueCaches(PrefixIndex):
    """What the engines really have at the moment of the decision."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet

    def cached(self, hashes: Sequence[int], ends: Sequence[int], most: int) -> dict[str, int]:
        return {
            worker: MOONCAKE_BLOCK_TOKENS * found
            for worker, engine in self.fleet._engines.items()
            if (found := engine.core.pool.match(hashes, most // MOONCAKE_BLOCK_TOKENS)[0])
        }


def omniscient(scenario: Scenario) -> Figures:
    """The same scheduler, its index replaced by the truth."""
    router = scenario.build_router()
    assert isinstance(router, ProductionRouter)
    fleet = Fleet(scenario.plans(), router)
    router.scheduler._fleet.prefixes = TrueCaches(fleet)
    return Figures.of(fleet.run(scenario.trace()))


def test_the_index_finds_nearly_what_is_there_and_costs_no_goodput() -> None:
    scenarios = [replace(RICH, window=window) for window in WINDOWS]
    own = [scenario.run() for scenario in scenarios]
    blind = [replace(scenario, prefixes_known=False).run() for scenario in scenarios]
    knowing = [omniscient(scenario) for scenario in scenarios]

    def cached(runs: list[Figures]) -> float:
        return fmean(run.cached_share for run in runs)

    def good(runs: list[Figures]) -> float:
        return fmean(run.all.goodput for run in runs)

    assert cached(own) >= 0.9 * cached(knowing)
    assert cached(own) >= 1.5 * cached(blind)
    assert good(own) >= good(blind) - 0.002  # one request in 500


def test_where_caching_is_off_claims_are_given_up() -> None:
    scenario = replace(RICH, seconds=200.0, long_per_s=2.5)
    plans = [replace(plan, engine=replace(plan.engine, prefix_caching=False)) for plan in scenario.plans()]
    router = scenario.build_router()
    assert isinstance(router, ProductionRouter)
    figures = Figures.of(Fleet(plans, router).run(scenario.trace()))
    assert figures.cached_share == 0.0
    blind = replace(scenario, prefixes=False).run()
    assert figures.all.goodput >= blind.all.goodput - 0.02
    holdings = router.scheduler._fleet.prefixes._holdings.values()
    assert len(holdings) == 8
    assert fmean(holding.trust for holding in holdings) < 0.7
