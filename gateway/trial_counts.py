"""What a trial has counted: the two sides of a canary, or what a shadow would have done otherwise.

Each gateway counts its own requests and tells the others; counts add up, percentiles included, so that the comparison
is the fleet's whichever gateway is asked. Bounded whatever the traffic is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.history import FAILED, REJECTED, Sketch
from gateway.records import Terminal

if TYPE_CHECKING:
    from gateway.records import RequestRecord

MAX_DIFFERENCES: Final = 200
MAX_WORD_CHARS: Final = 300
_MOST: Final = 2**53
_COUNTED: Final = ("requests", "ok", "failed", "rejected", "output_tokens", "ttft_count")
_SUMMED: Final = ("e2e_s", "ttft_s")

Difference = tuple[str, str, str]
"""(what, as it was decided, as the tried policy would have)."""


@dataclass(slots=True)
class Arm:
    """One side of a canary."""

    requests: int = 0
    ok: int = 0
    failed: int = 0
    rejected: int = 0
    output_tokens: int = 0
    ttft_count: int = 0
    e2e_s: float = 0.0  # summed over those that went well
    ttft_s: float = 0.0
    ttft: Sketch = field(default_factory=Sketch)

    def observe(self, record: RequestRecord) -> None:
        """One request of this side ended."""
        self.requests += 1
        self.ok += record.outcome is Terminal.OK
        self.failed += record.outcome in FAILED
        self.rejected += record.outcome in REJECTED
        self.output_tokens += record.output_tokens or 0
        if record.outcome is Terminal.OK:
            self.e2e_s += record.duration_s
        if record.ttft_s is not None:
            self.ttft_s += record.ttft_s
            self.ttft_count += 1
            self.ttft.observe(record.ttft_s)

    def add(self, other: Arm) -> None:
        """Count what another gateway counted."""
        for name in (*_COUNTED, *_SUMMED):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.add(other.ttft)

    def view(self) -> dict[str, Any]:
        """For people, as JSON."""
        return {
            "requests": self.requests,
            "ok": self.ok,
            "failed": self.failed,
            "rejected": self.rejected,
            "output_tokens": self.output_tokens,
            "e2e_mean_s": self.e2e_s / self.ok if self.ok else None,
            "ttft_mean_s": self.ttft_s / self.ttft_count if self.ttft_count else None,
            "ttft_p50_s": self.ttft.quantile(0.5),
            "ttft_p95_s": self.ttft.quantile(0.95),
        }

    def told(self) -> dict[str, Any]:
        """For other gateways."""
        return {**{name: getattr(self, name) for name in (*_COUNTED, *_SUMMED)}, "ttft": self.ttft.told()}


@dataclass(slots=True)
class Counts:
    """What one gateway, or several, counted of one trial."""

    rest: Arm = field(default_factory=Arm)
    tried: Arm = field(default_factory=Arm)
    seen: int = 0
    different: int = 0
    differences: Counter[Difference] = field(default_factory=Counter)

    def differ(self, found: Iterable[Difference]) -> None:
        """A shadow was asked about one request; `found` is what it would have decided otherwise."""
        told = list(found)
        self.seen += 1
        self.different += bool(told)
        self._count(dict.fromkeys(told, 1))

    def add(self, other: Counts) -> None:
        """Count what another gateway counted."""
        self.rest.add(other.rest)
        self.tried.add(other.tried)
        self.seen += other.seen
        self.different += other.different
        self._count(other.differences)

    def _count(self, found: Mapping[Difference, int]) -> None:
        for difference, count in found.items():
            if difference in self.differences or len(self.differences) < MAX_DIFFERENCES:
                self.differences[difference] += count

    def told(self) -> dict[str, Any]:
        """For other gateways."""
        return {
            "rest": self.rest.told(),
            "tried": self.tried.told(),
            "seen": self.seen,
            "different": self.different,
            "differences": [[*difference, count] for difference, count in self.differences.items()],
        }


def counts_from(told: Mapping[str, Any]) -> Counts:
    """What another gateway told. Raises ValueError for what none of them says: nothing in Redis is trusted."""
    try:
        found = Counts(_arm(told["rest"]), _arm(told["tried"]), _count(told["seen"]), _count(told["different"]))
        listed = list(told["differences"])[:MAX_DIFFERENCES]
        for what, was, would, count in listed:
            found.differences[str(what)[:MAX_WORD_CHARS], str(was)[:MAX_WORD_CHARS], str(would)[:MAX_WORD_CHARS]] += (
                _count(count)
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not the counts of a trial") from error
    return found


def _arm(told: Mapping[str, Any]) -> Arm:
    arm = Arm(**{name: _count(told[name]) for name in _COUNTED}, ttft=Sketch.from_told(told["ttft"]))
    for name in _SUMMED:
        value = told[name]
        if type(value) not in (int, float) or not 0 <= value < _MOST:
            raise ValueError(f"{name} is no sum of seconds")
        setattr(arm, name, float(value))
    return arm


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("not a count")
    return value
