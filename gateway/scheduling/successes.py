"""The share of a worker's requests that went well lately: counts in a ring of one-second buckets."""

from __future__ import annotations

from typing import Final

SPAN_S: Final = 10  # seconds, and buckets, that count
LEAST_SHARE: Final = 0.8  # of them that have to go well
LEAST_SAMPLES: Final = 20  # fewer say nothing


class Successes:
    """Requests of one worker that went well and that failed by its fault, over the last SPAN_S.

    Failures in a row miss a worker that fails every other request; this one does not. Share, span and least number
    are those of `facts/reliability.md` 5.
    """

    __slots__ = ("_at", "_failed", "_failed_now", "_now", "_second", "_well", "_well_now")

    def __init__(self) -> None:
        self._second = [-1] * SPAN_S  # which second each bucket counts
        self._well = [0] * SPAN_S
        self._failed = [0] * SPAN_S
        # The second that was counted in last, its bucket, and what is to be added to that.
        self._now = -1
        self._at = self._well_now = self._failed_now = 0

    def count(self, well: bool, now: float) -> None:
        """One more request ended."""
        second = int(now)
        if second != self._now:
            self._begin(second)
        if well:
            self._well_now += 1
        else:
            self._failed_now += 1

    def _add(self) -> None:
        if self._now >= 0:
            self._well[self._at] += self._well_now
            self._failed[self._at] += self._failed_now
        self._well_now = self._failed_now = 0

    def _begin(self, second: int) -> None:
        self._add()
        self._now = second
        self._at = at = second % SPAN_S
        if self._second[at] != second:
            self._second[at] = second
            self._well[at] = self._failed[at] = 0

    def too_few(self, now: float) -> str | None:
        """What to say of it if enough of them failed to judge the worker by; None if not."""
        self._add()
        oldest = int(now) - SPAN_S
        fresh = [at for at, second in enumerate(self._second) if second > oldest]
        well = sum(self._well[at] for at in fresh)
        samples = well + sum(self._failed[at] for at in fresh)
        if samples < LEAST_SAMPLES or well >= LEAST_SHARE * samples:
            return None
        return f"only {well} of {samples} requests went well in {SPAN_S} s"

    def clear(self) -> None:
        """What was counted says nothing about the worker any more."""
        self._well_now = self._failed_now = 0
        self._second = [-1] * SPAN_S
        self._now = -1
