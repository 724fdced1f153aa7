"""The figures the project promises, one after another: `headrace loadtest simulate --suite evidence`.

Targets stand here and nowhere else. Windows are those that no knob was tuned on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from loadtest.baselines import RULES
from loadtest.fidelity import fidelity
from loadtest.figures import Figures
from loadtest.simulate import Scenario, mean_goodput, windows_of
from loadtest.traces import MEASURED

WINDOWS: Final = 5
Show = Callable[[str, float, str, bool], None]  # figure, value, target, reached

MODERATE: Final = Scenario()
HIGH: Final = replace(MODERATE, short_per_s=20.0, long_per_s=2.0)
CLASSIC: Final = ("round_robin", "least_requests", "two_choices")


@dataclass(slots=True)
class Suite:
    """Collects whether all figures were reached."""

    show: Show
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


def run_suite(show: Show) -> bool:
    """Run it all; True if every figure was reached."""
    suite = Suite(show)
    _fidelity(suite)
    _load(suite, "moderate load", MODERATE, 0.993, 0.95)
    high = _load(suite, "high load", HIGH, 0.93, 0.85)
    _short_latency(suite, high)
    _pools(suite)
    _errors(suite)
    _speed(suite)
    return suite.ok


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


def _load(
    suite: Suite, name: str, scenario: Scenario, all_at_least: float, long_at_least: float
) -> dict[str, list[Figures]]:
    """Goodput of the scheduler, and that it beats every baseline in every window."""
    runs = {
        router: [figures for _, figures in windows_of(replace(scenario, router=router), WINDOWS)]
        for router in (scenario.router, *RULES)
    }
    own = runs[scenario.router]
    everything, _, long_ = mean_goodput(own)
    suite.at_least(f"{name}: goodput, all", everything, all_at_least)
    suite.at_least(f"{name}: goodput, long prompts", long_, long_at_least)
    for rule in RULES:
        lead = min(mine.all.goodput - theirs.all.goodput for mine, theirs in zip(own, runs[rule], strict=True))
        suite.at_least(f"{name}: least lead over {rule} in a window", lead, 0.0)
    return runs


def _short_latency(suite: Suite, runs: dict[str, list[Figures]]) -> None:
    def worst(router: str) -> float:
        return sum(figures.short.ttft_p99_s for figures in runs[router]) / WINDOWS

    best = min(worst(rule) for rule in CLASSIC)
    suite.at_most("high load: short p99 TTFT over the best classic rule's", worst(HIGH.router) / best, 0.5)


def _pools(suite: Suite) -> None:
    for short, long_ in ((3, 5), (5, 3)):
        scenario = replace(MODERATE, pools=(("short-chat", short), ("long-context", long_)))
        everything, _, of_long = mean_goodput([figures for _, figures in windows_of(scenario, WINDOWS)])
        suite.at_least(f"pools {short}+{long_}: goodput, all", everything, 0.985)
        suite.at_least(f"pools {short}+{long_}: goodput, long prompts", of_long, 0.85)


def _errors(suite: Suite) -> None:
    for name, scenario in (
        ("prompt estimates, σ 0.6", replace(MODERATE, noise=0.6)),
        ("compute believed 2x, memory 0.5x", replace(MODERATE, belief=(2.0, 0.5))),
        ("compute believed 0.5x, memory 2x", replace(MODERATE, belief=(0.5, 2.0))),
    ):
        everything, _, _ = mean_goodput([figures for _, figures in windows_of(scenario, WINDOWS)])
        suite.at_least(f"{name}: goodput, all", everything, 0.985)


def _speed(suite: Suite) -> None:
    trace = MODERATE.trace()
    started = time.process_time()  # of this process: others on the machine do not count
    figures = MODERATE.run()
    elapsed = time.process_time() - started
    suite.at_least(
        f"times real, 8 workers, {len(trace) / MODERATE.seconds:.0f} requests/s", figures.virtual_s / elapsed, 200.0
    )
