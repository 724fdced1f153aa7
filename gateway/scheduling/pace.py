"""How fast requests end, and what to tell those that are turned away."""

from __future__ import annotations

from math import ceil, exp
from random import Random
from typing import Final

MIN_RETRY_AFTER_S: Final = 1.0
MAX_RETRY_AFTER_S: Final = 60.0
SPAN_S: Final = 10.0
RUNS: Final = 50
LEAST_RUNS: Final = 20
UNKNOWN_PER_S: Final = 1.0
LEAST_PER_S: Final = 1e-3


class Pace:
    """Requests that ended per second, an average that fades over SPAN_S."""

    __slots__ = ("_at", "_began", "_mean_s", "_rate", "_runs")

    def __init__(self) -> None:
        self._rate = 0.0
        self._runs = 0
        self._mean_s = 0.0
        self._at = 0.0
        self._began: float | None = None

    def took(self, seconds: float) -> None:
        """A request that ended well ran for so long."""
        self._runs += 1
        self._mean_s += (seconds - self._mean_s) / (self._runs if self._runs < RUNS else RUNS)

    @property
    def took_s(self) -> float | None:
        """How long requests run, a mean of the last RUNS or so; None while none was seen."""
        return self._mean_s if self._runs else None

    @property
    def sure(self) -> bool:
        """Whether enough were seen to refuse a request by their mean."""
        return self._runs >= LEAST_RUNS

    def ended(self, now: float) -> None:
        """One request ended."""
        if self._began is None:
            self._began = self._at = now
        if now > self._at:
            self._rate *= exp((self._at - now) / SPAN_S)
        self._rate += 1.0 / SPAN_S
        self._at = now

    @property
    def measured(self) -> bool:
        """Whether any request ended yet."""
        return self._began is not None

    def per_s(self, now: float) -> float:
        """Requests per second lately; a guess before there were any."""
        if self._began is None:
            return UNKNOWN_PER_S
        # Early on the average has only seen a part of its span.
        seen = 1.0 - exp(-max(now - self._began, 1.0) / SPAN_S)
        return self._rate * exp(-max(now - self._at, 0.0) / SPAN_S) / seen

    def retry_after_s(self, backlog: int, now: float, rng: Random, freed_per_s: float = 0.0) -> float:
        """Whole seconds until a place is likely, spread by up to a half so that not all come back at once.

        `freed_per_s`: places that become free a second by what runs there now. What ended lately says less where
        little was asked for lately.
        """
        wait = (backlog + 1) / max(self.per_s(now), freed_per_s, LEAST_PER_S)
        return clamp_retry_after(wait * (1.0 + 0.5 * rng.random()))


def clamp_retry_after(seconds: float) -> float:
    """`seconds` as a Retry-After: whole, rounded up so that nobody comes back early, within 1 … 60."""
    return min(max(float(ceil(min(seconds, MAX_RETRY_AFTER_S))), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
