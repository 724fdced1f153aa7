"""Tunes the token budgets that part pools, where the policy lets them be: the shell around `policies/tuning.py`.

Each gateway goes by the requests that it served, so gateways of one fleet may differ by a step for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.scheduling.listeners import Onlooker
from gateway.scheduling.tuning import learn, staff_of
from policies.tuning import EVERY_S, BudgetChange, BudgetTuner

if TYPE_CHECKING:
    from gateway.policy_store import Current
    from gateway.recent import Recent
    from gateway.scheduling.model import Lease, Outcome
    from gateway.scheduling.snapshot import FleetSnapshot


class Tuning(Onlooker):
    """Watches every lease and passes it on to the recent requests. `told` gets every
    change."""

    def __init__(self, current: Current, recent: Recent, told: Callable[[BudgetChange], None]) -> None:
        self._recent = recent
        self._told = told
        self._current = current
        self._tuner = BudgetTuner(current.policy)
        self.adopt(current)

    @property
    def budgets(self) -> Mapping[str, int]:
        """The largest budgets that are at home in the pools that are tuned, as they are now."""
        return self._tuner.budgets

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease."""
        self._recent.dispatched(lease)

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        if self._tuner.active:
            learn(self._tuner, lease, outcome)
        self._recent.settled(lease, outcome)

    def adopt(self, current: Current) -> None:
        """Another policy holds: pools whose budget and bounds stay keep what was found."""
        self._current = current
        self._tuner.adopt(current.policy)
        current.classifier.budgets = self._tuner.budgets

    def decide(self, fleet: FleetSnapshot) -> list[BudgetChange]:
        """Move what has to be moved, and tell it."""
        changes = self._tuner.decide(staff_of(fleet))
        self._current.classifier.budgets = self._tuner.budgets
        for change in changes:
            self._told(change)
        return changes

    async def run(self, fleet: Callable[[], FleetSnapshot], every_s: float = EVERY_S) -> None:
        """Decide once in `every_s`, for ever."""
        while True:
            await asyncio.sleep(every_s)
            if self._tuner.active:
                self.decide(fleet())


def change_view(change: BudgetChange) -> dict[str, Any]:
    """A change for the log and for who listens."""
    return {"pool": change.pool, "before": change.before, "after": change.after, "why": change.why}
