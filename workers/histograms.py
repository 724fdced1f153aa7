"""Percentiles out of an engine's histograms, over the last looks rather than since its start. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

MAX_BOUNDS = 256
WINDOW_LOOKS = 60  # about a minute at one look a second: long enough for some requests, short enough to be now


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts up to each upper bound, as Prometheus has them; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    def since(self, earlier: Histogram) -> Histogram:
        """What was counted after `earlier`; all of it where that is of another engine start or other bounds."""
        if earlier.bounds != self.bounds or any(
            now < then for now, then in zip(self.counts, earlier.counts, strict=True)
        ):
            return self
        return Histogram(self.bounds, tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True)))

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the observations lie, interpolated within its bucket; None without any.

        As Prometheus' `histogram_quantile`: the lowest bucket begins at 0, and what lies past the last finite bound
        is told as that bound.
        """
        if not self.counts or self.counts[-1] <= 0:
            return None
        rank = share * self.counts[-1]
        index = next(index for index, count in enumerate(self.counts) if count >= rank)
        if math.isinf(self.bounds[index]):
            return self.bounds[index - 1] if index else None
        low, below = (self.bounds[index - 1], self.counts[index - 1]) if index else (0.0, 0.0)
        inside = self.counts[index] - below
        return low + (self.bounds[index] - low) * ((rank - below) / inside if inside else 1.0)


def from_buckets(buckets: Iterable[tuple[str, float]]) -> Histogram | None:
    """A histogram out of (`le`, cumulative count) pairs of one or several series, which add up; None without an `+Inf`.

    Series with different bounds cannot be added and give None too, as do counts that fall.
    """
    sums: dict[float, float] = {}
    times: dict[float, int] = {}
    for le, count in buckets:
        try:
            bound = float(le)
        except ValueError:
            return None
        sums[bound] = sums.get(bound, 0.0) + count
        times[bound] = times.get(bound, 0) + 1
    if math.inf not in sums or len(sums) > MAX_BOUNDS or len(set(times.values())) != 1 or any(map(math.isnan, sums)):
        return None
    bounds = tuple(sorted(sums))
    counts = tuple(sums[bound] for bound in bounds)
    if any(after < before for before, after in pairwise(counts)):
        return None
    return Histogram(bounds, counts)


class Window:
    """The histogram of the last `looks` looks at one engine start."""

    def __init__(self, looks: int = WINDOW_LOOKS) -> None:
        self._seen: deque[Histogram] = deque(maxlen=looks)

    def observe(self, histogram: Histogram | None) -> None:
        """One look; None: the engine has no such histogram."""
        if histogram is None:
            self._seen.clear()
        else:
            self._seen.append(histogram)

    def quantile(self, share: float) -> float | None:
        """Over what was counted within the window; None where nothing was."""
        if len(self._seen) < 2:
            return None
        return self._seen[-1].since(self._seen[0]).quantile(share)

    def clear(self) -> None:
        """The engine started anew."""
        self._seen.clear()
