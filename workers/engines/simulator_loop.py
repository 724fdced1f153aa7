"""Real time for the simulated engine: one timer drives `EngineCore` at a chosen speed.

A step begun at virtual time t is shown to clients when the clock reaches its end; a busy engine's steps follow one
another without drift. Behind time, several steps are done at one wake-up, so that throughput stays what the model
says; steps shorter than a timer can tell apart are done together, and their tokens reach clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from workers.engines.timing import EngineCore, Run, Sequence, StepResult

SHORTEST_SLEEP_S: Final = 0.001  # real; below this timers cost more than steps
LONGEST_LAG_S: Final = 0.5  # real; time lost beyond it (a stopped process) is not caught up
MOST_STEPS_A_WAKE: Final = 64  # then connections get their turn


class EngineLoop:
    """Runs a core on an event loop. `on_step` sees each result with the clock's time at its end."""

    def __init__(
        self,
        core: EngineCore,
        loop: asyncio.AbstractEventLoop,
        speed: float,
        on_step: Callable[[StepResult, float], None],
    ) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self.core = core
        self.speed = speed
        self._loop = loop
        self._on_step = on_step
        self._epoch = loop.time()  # real time of virtual 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._awake = False  # inside _wake: what the callbacks submit is scheduled by its loop

    def now(self) -> float:
        """Virtual time, seconds."""
        return (self._loop.time() - self._epoch) * self.speed

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Give the engine sequences that arrive now."""
        now = self.now()
        for seq in sequences:
            self.core.add(seq, now)
        self._arm()

    def pause(self, on: bool) -> None:
        """Stop making steps (a hung engine), or go on."""
        self._paused = on
        if on:
            self._cancel()
        else:
            self._arm()

    def close(self) -> None:
        """Make no further step."""
        self.pause(True)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """See to it that a wake-up is due if there is anything to do."""
        if self._timer is not None or self._paused or self._awake:
            return
        run = self.core.run or self.core.begin(self.now())
        if run is not None:
            real = self._epoch + (run.start + run.first_s) / self.speed
            self._timer = self._loop.call_at(max(real, self._loop.time() + SHORTEST_SLEEP_S), self._wake)

    def _forget_lag(self) -> None:
        """Set the virtual clock back by the time that will not be caught up."""
        run = self.core.run
        if run is not None:
            lag = self._loop.time() - (self._epoch + (run.start + run.first_s) / self.speed)
            self._epoch += max(0.0, lag - LONGEST_LAG_S)

    def _steps_due(self, run: Run) -> int:
        """How many steps of a run to end at once: one, unless steps are too short to be told apart."""
        if run.first_s >= SHORTEST_SLEEP_S * self.speed:
            return 1
        elapsed = self.now() - run.start
        steps = run.steps_until(elapsed)
        return steps - 1 if steps > 1 and run.duration_s(steps) > elapsed else steps

    def _wake(self) -> None:
        self._timer = None
        self._forget_lag()
        core = self.core
        self._awake = True
        try:
            for _ in range(MOST_STEPS_A_WAKE):
                run = core.run
                due_in = 0.0 if run is None else run.start + run.first_s - self.now()
                if run is None or due_in > SHORTEST_SLEEP_S * self.speed or self._paused:
                    break
                result = core.end(self._steps_due(run))
                end = run.start + result.duration_s
                self._on_step(result, self._epoch + end / self.speed)
                core.begin(end)
        finally:
            self._awake = False
        self._arm()
