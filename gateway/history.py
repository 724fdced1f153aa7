"""Latencies of the last quarter of an hour by class, in steps of ten seconds: what the dashboard draws.

Each step keeps a sketch for each class: counts by logarithmic bucket, so that a percentile is within `ERROR` of the
true one whatever the values are, and a step takes the same bounded memory for ten requests and for ten million.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.records import Terminal
from gateway.series import OTHER

if TYPE_CHECKING:
    from gateway.records import RequestRecord

STEP_S: Final = 10.0
STEPS: Final = 90
LATELY_STEPS: Final = 6
MAX_CLASSES: Final = 33
"""Classes of one step; what comes after counts under `other`. A policy has at most 16, and may have been changed."""

GROWTH: Final = 1.05
ERROR = GROWTH**0.5 - 1
"""Largest relative error of a percentile, between `LEAST_S` and `MOST_S`: a bucket is told by its geometric middle."""

LEAST_S: Final = 1e-5
MOST_S: Final = 3600.0
_LOG: Final = math.log(GROWTH)
_LOWEST: Final = round(math.log(LEAST_S) / _LOG)
_HIGHEST: Final = round(math.log(MOST_S) / _LOG)


class Sketch:
    """How many values (seconds) fell where; at most `_HIGHEST - _LOWEST + 1` buckets."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        place = min(max(math.floor(math.log(seconds) / _LOG), _LOWEST), _HIGHEST) if seconds > 0.0 else _LOWEST
        self._counts[place] = self._counts.get(place, 0) + 1
        self.count += 1

    def add(self, other: Sketch) -> None:
        """Count what `other` counted too."""
        for place, count in other._counts.items():
            self._counts[place] = self._counts.get(place, 0) + count
        self.count += other.count

    def told(self) -> dict[str, int]:
        """For JSON: counts by bucket, as `from_told` takes them."""
        return {str(place): count for place, count in self._counts.items()}

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> Sketch:
        """The sketch that was told. Raises ValueError for what is none."""
        found = cls()
        for name, count in told.items():
            place = int(name)
            if not _LOWEST <= place <= _HIGHEST or type(count) is not int or count < 0:
                raise ValueError(f"no count of a bucket: {name[:20]!r}")
            found._counts[place] = count
            found.count += count
        return found

    def quantile(self, share: float) -> float | None:
        """The value that this share of the values does not exceed; None without values."""
        if not self.count:
            return None
        left = max(1, math.ceil(share * self.count))
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return float(GROWTH ** (place + 0.5))
        raise AssertionError("the counts add up to `count`")


class _Class:
    """One class in one step."""

    __slots__ = ("failed", "itl", "rejected", "requests", "ttft")

    def __init__(self) -> None:
        self.ttft = Sketch()
        self.itl = Sketch()
        self.requests = self.rejected = self.failed = 0

    def add(self, other: _Class) -> None:
        self.ttft.add(other.ttft)
        self.itl.add(other.itl)
        self.requests += other.requests
        self.rejected += other.rejected
        self.failed += other.failed

    def view(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "rejected": self.rejected,
            "failed": self.failed,
            "ttft_p50_s": _short(self.ttft.quantile(0.5)),
            "ttft_p95_s": _short(self.ttft.quantile(0.95)),
            "itl_p50_s": _short(self.itl.quantile(0.5)),
            "itl_p95_s": _short(self.itl.quantile(0.95)),
        }


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.4g}")


_OK: Final = Terminal.OK
REJECTED: Final = frozenset({Terminal.REJECTED, Terminal.EVICTED})
FAILED: Final = frozenset({Terminal.UPSTREAM_ERROR, Terminal.TIMEOUT, Terminal.INTERNAL})


class History:
    """The steps, the newest last. `now` is any clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, dict[str, _Class]]] = deque(maxlen=STEPS)
        self._ends = -math.inf  # the last step does not go on beyond this time
        self._last: dict[str, _Class] = {}  # its classes
        self._asked = ""  # the class that was asked for last in it, under `_found`; a class's name is never empty
        self._found = _Class()

    def __len__(self) -> int:
        return len(self._steps)

    def first_token(self, class_name: str, seconds: float, now: float) -> None:
        """A request's first token came after `seconds`."""
        self._at(class_name, now).ttft.observe(seconds)

    def itl(self, class_name: str, seconds: float, now: float) -> None:
        """The mean gap between the events of a stretch of one stream."""
        self._at(class_name, now).itl.observe(seconds)

    def finished(self, record: RequestRecord, now: float) -> None:
        """A request ended. One that was refused before it had a class is not of any."""
        if not record.class_name:
            return
        found = self._at(record.class_name, now)
        found.requests += 1
        outcome = record.outcome
        if outcome is not _OK:
            found.rejected += outcome in REJECTED
            found.failed += outcome in FAILED

    def view(self, now: float) -> dict[str, Any]:
        """For JSON: the steps that saw anything, the oldest first. `number`: by this host's clock, the same for all its
        processes. `age_s`: since the step's end, negative while it is not over."""
        oldest = int(now // STEP_S) - STEPS
        return {
            "step_s": STEP_S,
            "steps": [
                {
                    "number": number,
                    "age_s": round(now - (number + 1) * STEP_S, 3),
                    "classes": {name: each.view() for name, each in classes.items()},
                }
                for number, classes in self._steps
                if number > oldest
            ],
        }

    def lately(self, now: float) -> dict[str, Any]:
        """For JSON: the last minute by class."""
        found: dict[str, _Class] = {}
        first = int(now // STEP_S) - LATELY_STEPS
        for number, classes in self._steps:
            if number >= first:
                for name, each in classes.items():
                    found.setdefault(name, _Class()).add(each)
        return {name: each.view() for name, each in found.items()}

    def _at(self, class_name: str, now: float) -> _Class:
        if now >= self._ends:
            number = int(now // STEP_S)
            self._ends = (number + 1) * STEP_S
            self._last = {}
            self._asked = ""
            self._steps.append((number, self._last))
        if class_name == self._asked and class_name:
            return self._found
        asked, classes = class_name, self._last
        found = classes.get(class_name)
        if found is None:
            if len(classes) >= MAX_CLASSES - 1:
                class_name = OTHER
            found = classes.setdefault(class_name, _Class())
        self._asked, self._found = asked, found
        return found
