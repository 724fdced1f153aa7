"""Runs scenarios, each once, over the processors there are, and tells how far they are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from loadtest.figures import Figures
from loadtest.simulate import Scenario

Done = Callable[[], None]


class Runs:
    """Results of scenarios. `processes`: how many run at once; `done` is called for each that has ended."""

    def __init__(self, processes: int = 1, done: Done = lambda: None) -> None:
        self._processes = processes
        self._done = done
        self._pool: ProcessPoolExecutor | None = None
        self._found: list[tuple[Scenario, Figures]] = []

    def __enter__(self) -> Runs:
        if self._processes > 1:
            # Not forked: whoever calls may have threads, and a fork would keep their locks.
            self._pool = ProcessPoolExecutor(self._processes, mp_context=get_context("spawn"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def of(self, scenarios: Iterable[Scenario]) -> list[Figures]:
        """Their results, in order; those that ran before are not run again."""
        asked = list(scenarios)
        missing: list[Scenario] = []
        for scenario in asked:
            if self._known(scenario) is None and scenario not in missing:
                missing.append(scenario)
        self._found += zip(missing, self._run(missing), strict=True)
        return [found for scenario in asked if (found := self._known(scenario)) is not None]

    def _known(self, scenario: Scenario) -> Figures | None:
        return next((figures for one, figures in self._found if one == scenario), None)

    def _run(self, scenarios: Sequence[Scenario]) -> Iterable[Figures]:
        results = map(run, scenarios) if self._pool is None else self._pool.map(run, scenarios)
        for figures in results:
            self._done()
            yield figures


def run(scenario: Scenario) -> Figures:
    """One scenario, without looking for garbage on the way: all of it lives until the end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return scenario.run()
    finally:
        if enabled:
            gc.enable()
