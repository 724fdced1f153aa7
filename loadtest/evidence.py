"""The figures the project promises, one after another: `headrace loadtest simulate --suite evidence`.

Targets stand here and nowhere else. Windows are those that no knob was tuned on (`simulate.WINDOWS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from loadtest.baselines import RULES
from loadtest.contests import fairness, floor
from loadtest.decisions import best_of, busy, idle
from loadtest.fidelity import fidelity
from loadtest.figures import Figures
from loadtest.hour import PER_S, an_hour
from loadtest.runs import Done, Runs
from loadtest.simulate import OMNISCIENT, PRODUCTION, Scenario, mean_goodput
from loadtest.traces import MEASURED

Show = Callable[[str, float, str, bool], None]  # figure, value, target, reached

CLASSIC: Final = ("round_robin", "least_requests", "two_choices")
QUICK_S: Final = 200.0


@dataclass(frozen=True, slots=True)
class Load:
    """A load of the traces, and what it has to reach."""

    name: str
    scenario: Scenario
    all: float
    long: float


MODERATE: Final = Load("moderate load", Scenario(), 0.993, 0.95)
HIGH: Final = Load("high load", Scenario(short_per_s=20.0, long_per_s=2.0), 0.93, 0.85)
PREFIX_RICH: Final = Scenario(short_per_s=0.0, long_per_s=1.5, prefixes=True)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of it to run."""

    windows: tuple[int, ...] = (1, 2, 3, 4, 5)
    seconds: float = 600.0
    rules: tuple[str, ...] = tuple(RULES)
    splits: tuple[tuple[int, int], ...] = ((3, 5), (5, 3), (4, 4))
    gateways: tuple[int, ...] = (4, 8)
    prefixes: bool = True
    timed: bool = True  # also what depends on the machine

    def windows_of(self, scenario: Scenario) -> list[Scenario]:
        """A scenario in each window."""
        return [replace(scenario, window=number, seconds=self.seconds) for number in self.windows]


FULL: Final = Extent()
QUICK: Final = Extent((4,), QUICK_S, ("least_requests", "lmetric"), ((5, 3),), (4,), prefixes=False, timed=False)


@dataclass(slots=True)
class Suite:
    """Collects whether all figures were reached."""

    show: Show
    runs: Runs
    extent: Extent
    ok: bool = True

    def at_least(self, figure: str, value: float, target: float) -> None:
        """A figure that must reach `target`."""
        self._add(figure, value, f">= {target:g}", value >= target)

    def at_most(self, figure: str, value: float, target: float) -> None:
        """A figure that must not exceed `target`."""
        self._add(figure, value, f"<= {target:g}", value <= target)

    def _add(self, figure: str, value: float, target: str, ok: bool) -> None:
        self.ok = self.ok and ok
        self.show(figure, value, target, ok)

    def of(self, scenario: Scenario) -> list[Figures]:
        """Results of a scenario in all windows."""
        return self.runs.of(self.extent.windows_of(scenario))


def run_suite(
    show: Show, extent: Extent = FULL, processes: int = 1, done: Done = lambda: None, seed: int = 0
) -> tuple[bool, dict[str, list[Figures]]]:
    """Run it all. Whether every figure was reached, and the results by load and router, for plots."""
    with Runs(processes, done) as runs:
        suite = Suite(show, runs, extent)
        _fidelity(suite)
        plots: dict[str, list[Figures]] = {}
        for load in (MODERATE, HIGH):
            by_router = _load(suite, replace(load, scenario=replace(load.scenario, seed=seed)))
            plots |= {f"{load.name}: {router}": found for router, found in by_router.items()}
        base = replace(MODERATE.scenario, seed=seed)
        _pools(suite, base)
        _errors(suite, base)
        _gateways(suite, base)
        if extent.prefixes:
            _prefixes(suite, replace(PREFIX_RICH, seed=seed))
    _contests(suite)
    if extent.timed:
        _decisions(suite)
        _speed(suite)
    return suite.ok, plots


def scenarios(extent: Extent) -> int:
    """How many simulations a suite of that extent makes."""
    loads = 2 * (1 + len(extent.rules))
    wrong = len(_wrong(MODERATE.scenario))
    return len(extent.windows) * (
        loads + len(extent.splits) + wrong + len(extent.gateways) + (4 if extent.prefixes else 0)
    )


def _fidelity(suite: Suite) -> None:
    margins = {"rtx4090": (0.02, 0.04), "rtxpro6000": (0.08, 0.08)}
    for name in MEASURED:
        real, simulated = fidelity(name)
        error = real.error_of(simulated)
        mean, tail = margins[name]
        for figure, margin in (
            *((each, mean) for each in ("ttft_mean", "tpot_mean", "makespan")),
            *((each, tail) for each in ("ttft_p99", "tpot_p99")),
        ):
            suite.at_most(f"engine fidelity {name}: {figure} error", abs(error[figure]), margin)


def _load(suite: Suite, load: Load) -> dict[str, list[Figures]]:
    """Goodput of the scheduler, and that it beats every baseline in every window."""
    routers = (PRODUCTION, *suite.extent.rules)
    per_router = [suite.extent.windows_of(replace(load.scenario, router=router)) for router in routers]
    found = iter(suite.runs.of(each for scenarios in per_router for each in scenarios))
    runs = {router: [next(found) for _ in windows] for router, windows in zip(routers, per_router, strict=True)}
    own = runs[PRODUCTION]
    everything, _, long_ = mean_goodput(own)
    suite.at_least(f"{load.name}: goodput, all", everything, load.all)
    suite.at_least(f"{load.name}: goodput, long prompts", long_, load.long)
    for rule in suite.extent.rules:
        lead = min(mine.all.goodput - theirs.all.goodput for mine, theirs in zip(own, runs[rule], strict=True))
        suite.at_least(f"{load.name}: least lead over {rule} in a window", lead, 0.0)
    best = min(_short_p99_s(runs[rule]) for rule in CLASSIC if rule in runs)
    suite.at_most(f"{load.name}: short p99 TTFT over the best classic rule's", _short_p99_s(own) / best, 0.5)
    return runs


def _short_p99_s(found: Iterable[Figures]) -> float:
    listed = [figures.short.ttft_p99_s for figures in found]
    return sum(listed) / len(listed)


def _pools(suite: Suite, base: Scenario) -> None:
    for short, long_ in suite.extent.splits:
        found = suite.of(replace(base, pools=(("short-chat", short), ("long-context", long_))))
        everything, _, of_long = mean_goodput(found)
        suite.at_least(f"pools {short}+{long_}: goodput, all", everything, 0.985)
        suite.at_least(f"pools {short}+{long_}: goodput, long prompts", of_long, 0.85)


def _wrong(base: Scenario) -> tuple[tuple[str, Scenario], ...]:
    return (
        ("prompt estimates, σ 0.6", replace(base, noise=0.6)),
        ("compute believed 2x, memory 0.5x", replace(base, belief=(2.0, 0.5))),
        ("compute believed 0.5x, memory 2x", replace(base, belief=(0.5, 2.0))),
    )


def _errors(suite: Suite, base: Scenario) -> None:
    for name, scenario in _wrong(base):
        everything, _, _ = mean_goodput(suite.of(scenario))
        suite.at_least(f"{name}: goodput, all", everything, 0.985)


def _gateways(suite: Suite, base: Scenario) -> None:
    alone, _, _ = mean_goodput(suite.of(base))
    for count in suite.extent.gateways:
        everything, _, _ = mean_goodput(suite.of(replace(base, gateways=count, gossip_s=0.2)))
        suite.at_most(f"{count} gateways, gossip 200 ms: goodput lost to one gateway", alone - everything, 0.005)


def _prefixes(suite: Suite, rich: Scenario) -> None:
    own, blind, knowing = (suite.of(replace(rich, prefixes_known=known)) for known in (True, False, None))
    following = suite.of(replace(rich, router=OMNISCIENT))

    def cached(found: list[Figures]) -> float:
        return sum(figures.cached_share for figures in found)

    suite.at_least("prefixes: cached share over that of an omniscient router", cached(own) / cached(following), 0.9)
    suite.at_least("prefixes: cached share over that of true knowledge", cached(own) / cached(knowing), 0.9)
    gain = mean_goodput(own)[0] - mean_goodput(blind)[0]
    suite.at_least("prefixes: goodput gained over not knowing them", gain, 0.0)


def _contests(suite: Suite) -> None:
    suite.at_most("fairness, 32k against 200 tokens: requests apart", fairness().requests_apart, 2.0)
    got = floor()
    suite.at_least(f"batch under {got.load:.0%} interactive load: least share in 10 s", got.least_share, got.promised)


def _decisions(suite: Suite) -> None:
    few, many = best_of(3, lambda: busy(64, 1000, 10_000)), best_of(3, lambda: busy(64, 100_000, 5000))
    suite.at_least("dispatches/s, 64 workers, 1,000 waiting", few.dispatches_per_s, 20_000)
    largest = best_of(2, lambda: busy(1000, 100_000, 3000))
    suite.at_least("dispatches/s, 1,000 workers, 100,000 waiting", largest.dispatches_per_s, 5000)
    growth = few.dispatches_per_s / many.dispatches_per_s
    suite.at_most("cost of 100,000 waiting over 1,000 (log: 1.67)", growth, 5 / 3)
    some, more = best_of(3, lambda: idle(64, 5000)), best_of(3, lambda: idle(256, 2000))
    suite.at_most("cost of 256 eligible workers over 64 (linear: 4)", more.life_s / some.life_s, 4.0)
    least = best_of(3, lambda: idle(8, 10_000))
    suite.at_most("a request's whole life with 8 workers, µs", 1e6 * least.life_s, 50.0)


def _speed(suite: Suite) -> None:
    base = MODERATE.scenario
    trace = base.trace()
    began = time.process_time()  # of this process: others on the machine do not count
    figures = base.run()
    elapsed = time.process_time() - began
    suite.at_least(
        f"times real, 8 workers, {len(trace) / base.seconds:.0f} requests/s", figures.virtual_s / elapsed, 200.0
    )
    # What an operator waits for before a change, on one core.
    suite.at_most(f"policy simulate, an hour at {PER_S:.0f} requests/s: processor seconds", an_hour()[0], 30.0)
