"""Which rate to try next, and what the tried ones say: `headrace loadtest ramp`. Pure.

1. Up by a factor for as long as a rate is kept.
2. Where the first one is not, down by the factor, a few times.
3. Between the greatest that was kept and the least that was not, a few times: half-way, on a logarithmic scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Any, Final

from loadtest.live_figures import Outcome, Report

DOWN: Final = 4
CLOSE: Final = 1.03  # rates nearer to each other than this are not told apart
REACHED: Final = 0.95  # of the rate: a client that sends less has not tried it
MAX_STEPS: Final = 64


class Ending(StrEnum):
    """Why it went no further."""

    GOODPUT = "goodput"  # a greater rate is not kept
    TO = "to"  # the greatest that was to be tried is kept
    CLIENT = "client"  # the client did not keep up with a greater one
    GONE = "gone"  # the gateway went away
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Range:
    """What to try."""

    from_per_s: float
    to_per_s: float
    factor: float = 1.5
    bisections: int = 3


def next_rate(tried: Sequence[tuple[float, bool]], between: Range) -> float | None:
    """The rate to try after these, each with whether it was kept; None: that is all."""
    if not tried:
        return between.from_per_s
    if len(tried) >= MAX_STEPS:
        return None
    good, bad = greatest(tried), min((rate for rate, kept in tried if not kept), default=None)
    if bad is None:
        assert good is not None
        return None if good >= between.to_per_s else min(good * between.factor, between.to_per_s)
    if good is None:
        return None if len(tried) > DOWN else bad / between.factor
    # All that came after the first pair of a kept one and one that was not lay between.
    kinds = [kept for _, kept in tried]
    halved = len(tried) - 1 - max(kinds.index(True), kinds.index(False))
    if halved >= between.bisections or bad / good <= CLOSE:
        return None
    return sqrt(good * bad)


def greatest(tried: Sequence[tuple[float, bool]]) -> float | None:
    """The greatest rate that was kept."""
    return max((rate for rate, kept in tried if kept), default=None)


@dataclass(frozen=True, slots=True)
class Step:
    """One rate, and what came of it."""

    per_s: float
    report: Report
    goodput: float  # wanted

    @property
    def kept(self) -> bool:
        """Whether the rate was reached and enough of its answers were good."""
        found = self.report.all.goodput
        return found is not None and found >= self.goodput and not self.short

    @property
    def short(self) -> bool:
        """Whether the client sent less than it was to."""
        sent_less = self.report.reached_per_s < REACHED * self.report.wanted_per_s
        return sent_less or self.report.all.outcomes[Outcome.NOT_SENT] > 0

    @property
    def clients_fault(self) -> bool:
        """Whether the client may be why the rate was not kept."""
        return not self.kept and (self.short or not self.report.clock.kept_up)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"rate_per_s": self.per_s, "kept": self.kept, **self.report.as_dict()}


@dataclass(frozen=True, slots=True)
class Result:
    """What a ramp found."""

    steps: tuple[Step, ...]
    ending: Ending

    @property
    def per_s(self) -> float | None:
        """The greatest rate that was kept."""
        return greatest([(step.per_s, step.kept) for step in self.steps])

    @property
    def first_not_kept(self) -> float | None:
        """The least rate that was not."""
        return min((step.per_s for step in self.steps if not step.kept), default=None)


def ending(steps: Sequence[Step]) -> Ending:
    """Why a ramp that was not cut off went no further."""
    lost = [step for step in steps if not step.kept]
    if not lost:
        return Ending.TO
    return Ending.CLIENT if min(lost, key=lambda step: step.per_s).clients_fault else Ending.GOODPUT
