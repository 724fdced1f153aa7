"""What came of requests that were really sent: outcomes, times, shares. Pure; bounded by the number of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, log
from typing import Any, Final

from loadtest.fidelity import percentile

LATE_S: Final = 0.05
"""A client that is later than this tells on itself, where it happens more often than now and then."""
LATE_SHARE: Final = 0.01
LATE_OFTEN: Final = 2  # whatever the share

CODES: Final = 40  # kept apart; a server may invent any number of them
GROUPS: Final = 40
OTHERS: Final = "others"


class Outcome(StrEnum):
    """How a request ended. Each ends in exactly one way."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the server said no: 4xx, 503
    FAILED = "failed"  # no connection, a broken answer, 5xx
    TIMED_OUT = "timed out"  # our time for it was over, or the server's
    NOT_SENT = "not sent"  # too many were in flight
    CANCELLED = "cancelled"  # the run was ended before


def judge(status: int, kind: str = "") -> Outcome:
    """The outcome that an error means, by its status and its `type`."""
    if status == 504 or kind == "timeout_error":
        return Outcome.TIMED_OUT
    if 400 <= status < 500 or status == 503:
        return Outcome.REFUSED
    return Outcome.FAILED


@dataclass(slots=True)
class Record:
    """One request: what was recorded of it, and what came of it. Seconds; None: there was none."""

    index: int
    at_s: float  # from the start of the run
    prompt_tokens: int
    output_tokens: int
    outcome: Outcome | None = None  # None: still running
    code: str = ""  # of what went wrong
    status: int = 0
    message: str = ""
    late_s: float | None = None  # sent so much later than it should have been
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    pool: str = ""
    class_name: str = ""
    worker: str = ""
    request_id: str = ""

    def settle(self, outcome: Outcome, code: str = "", message: str = "") -> None:
        """The end, once."""
        assert self.outcome is None, f"request {self.index} ended twice: {self.outcome}, then {outcome}"
        self.outcome, self.code, self.message = outcome, code[:64], message[:300]

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return {"class" if name == "class_name" else name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Goal:
    """A good answer: whole, its first token and each further one in time."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1

    def met(self, record: Record) -> bool:
        """Whether a request got one."""
        if record.outcome is not Outcome.ANSWERED or record.ttft_s is None:
            return False
        return record.ttft_s <= self.ttft_s and (record.tpot_s is None or record.tpot_s <= self.tpot_s)


class Spread:
    """Very many times in few numbers: counts in steps of 2 % from 10 µs to beyond an hour."""

    __slots__ = ("_counts", "count")

    STEP: Final = log(1.02)
    LEAST_S: Final = 1e-5
    PLACES: Final = 1000

    def __init__(self) -> None:
        self._counts = [0] * self.PLACES
        self.count = 0

    def add(self, value_s: float) -> None:
        """One more."""
        place = 0 if value_s <= self.LEAST_S else ceil(log(value_s / self.LEAST_S) / self.STEP)
        self._counts[min(place, self.PLACES - 1)] += 1
        self.count += 1

    def above(self, limit_s: float) -> int:
        """How many are longer, give or take 2 %."""
        place = ceil(log(limit_s / self.LEAST_S) / self.STEP)
        return sum(self._counts[place + 1 :])

    def at(self, share: float) -> float | None:
        """The time that `share` (0 … 1) of all do not exceed, at most 2 % too long; None for none."""
        wanted = max(1, ceil(share * self.count))
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return self.LEAST_S * exp(place * self.STEP)
        return None


@dataclass(frozen=True, slots=True)
class Times:
    """50, 90 and 99 of 100 are not longer; None where there are none."""

    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None

    @staticmethod
    def of(values: Iterable[float | None]) -> Times:
        """Of exact values."""
        known = sorted(value for value in values if value is not None)
        return Times(*(percentile(known, share) for share in (0.5, 0.9, 0.99))) if known else Times()

    @staticmethod
    def spread(spread: Spread) -> Times:
        """Of counted ones."""
        return Times(*(spread.at(share) for share in (0.5, 0.9, 0.99)))

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the requests."""

    requests: int
    outcomes: dict[Outcome, int]
    goodput: float | None  # of those that were not cancelled; None for none
    ttft: Times
    tpot: Times
    total: Times
    tokens_in: int
    tokens_out: int

    @staticmethod
    def of(records: Sequence[Record], goal: Goal) -> Group:
        """Figures of these."""
        outcomes = Counter(one.outcome for one in records)
        counted = len(records) - outcomes[Outcome.CANCELLED]
        answered = [one for one in records if one.outcome is Outcome.ANSWERED]
        return Group(
            len(records),
            {outcome: outcomes[outcome] for outcome in Outcome},
            sum(map(goal.met, answered)) / counted if counted else None,
            Times.of(one.ttft_s for one in answered),
            Times.of(one.tpot_s for one in answered),
            Times.of(one.total_s for one in answered),
            sum(one.tokens_in for one in records),
            sum(one.tokens_out for one in records),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told: dict[str, Any] = {"requests": self.requests}
        told["outcomes"] = {str(outcome): count for outcome, count in self.outcomes.items()}
        told["goodput"] = self.goodput
        for name in ("ttft", "tpot", "total"):
            told[name] = getattr(self, name).as_dict()
        return told | {"tokens_in": self.tokens_in, "tokens_out": self.tokens_out}


@dataclass(slots=True)
class Trouble:
    """One way in which requests did not succeed."""

    outcome: Outcome
    code: str
    count: int = 0
    message: str = ""  # of the first


@dataclass(frozen=True, slots=True)
class Clock:
    """How well the client kept to its times. `lag`: how late its event loop came to what was due."""

    late: Times
    late_most_s: float
    lag: Times
    sent_late: int  # requests, by more than `LATE_S`
    looked_late: int  # of so many looks at the clock
    looks: int
    kept_up: bool

    @staticmethod
    def of(records: Iterable[Record], lag: Spread) -> Clock:
        """Of what was sent."""
        late = [one.late_s for one in records if one.late_s is not None]
        sent_late, looked_late = sum(value > LATE_S for value in late), lag.above(LATE_S)
        slow = any(
            count > max(LATE_OFTEN, LATE_SHARE * of) for count, of in ((sent_late, len(late)), (looked_late, lag.count))
        )
        return Clock(
            Times.of(late), max(late, default=0.0), Times.spread(lag), sent_late, looked_late, lag.count, not slow
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: getattr(self, name) for name in ("late_most_s", "sent_late", "looked_late", "looks", "kept_up")}
        return {"late": self.late.as_dict(), "lag": self.lag.as_dict(), **plain}


@dataclass(slots=True)
class Report:
    """All of a run."""

    seconds: float  # in which the requests were to be sent
    took_s: float  # until the last one had ended
    wanted_per_s: float
    reached_per_s: float
    all: Group
    gaps: Times  # between tokens
    troubles: list[Trouble]
    pools: dict[str, Group]
    classes: dict[str, Group]
    clock: Clock
    peak_in_flight: int
    interrupted: bool = False
    gone: bool = False  # the last request that was sent found nobody

    @property
    def answered(self) -> int:
        """Requests with a whole answer."""
        return self.all.outcomes[Outcome.ANSWERED]

    @property
    def summed(self) -> bool:
        """Whether each request is in exactly one outcome."""
        return sum(self.all.outcomes.values()) == self.all.requests

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seconds": self.seconds,
            "took_s": self.took_s,
            "wanted_per_s": self.wanted_per_s,
            "reached_per_s": self.reached_per_s,
            **self.all.as_dict(),
            "tokens_in_per_s": self.all.tokens_in / self.took_s if self.took_s else 0.0,
            "tokens_out_per_s": self.all.tokens_out / self.took_s if self.took_s else 0.0,
            "between_tokens": self.gaps.as_dict(),
            "peak_in_flight": self.peak_in_flight,
            "troubles": [
                {"outcome": str(one.outcome), "code": one.code, "count": one.count, "message": one.message}
                for one in self.troubles
            ],
            "pools": {name: group.as_dict() for name, group in self.pools.items()},
            "classes": {name: group.as_dict() for name, group in self.classes.items()},
            "client": self.clock.as_dict(),
            "interrupted": self.interrupted,
        }


def report(
    records: Sequence[Record],
    goal: Goal,
    *,
    seconds: float,
    took_s: float,
    gaps: Spread,
    lag: Spread,
    peak_in_flight: int,
    interrupted: bool = False,
) -> Report:
    """What these requests come to. Each must have ended."""
    sent = [one for one in records if one.late_s is not None]
    last_s = max((one.at_s + (one.late_s or 0.0) for one in sent), default=0.0)
    lasted = min(seconds, took_s) if interrupted else seconds
    return Report(
        seconds,
        took_s,
        len(records) / seconds if seconds else 0.0,
        len(sent) / max(lasted, last_s) if sent and max(lasted, last_s) > 0 else 0.0,
        Group.of(records, goal),
        Times.spread(gaps),
        _troubles(records),
        _grouped(records, goal, lambda one: one.pool),
        _grouped(records, goal, lambda one: one.class_name),
        Clock.of(records, lag),
        peak_in_flight,
        interrupted,
        gone=bool(sent) and max(sent, key=lambda one: one.index).code == "connect",
    )


def _troubles(records: Iterable[Record]) -> list[Trouble]:
    """What went wrong, the most frequent first."""
    found: dict[tuple[Outcome, str], Trouble] = {}
    for one in records:
        if one.outcome is None or one.outcome is Outcome.ANSWERED:
            continue
        key = (one.outcome, one.code)
        if key not in found and len(found) >= CODES:
            key = (one.outcome, OTHERS)
        trouble = found.setdefault(key, Trouble(*key, message=one.message))
        trouble.count += 1
    return sorted(found.values(), key=lambda trouble: -trouble.count)


def _grouped(records: Iterable[Record], goal: Goal, name_of: Callable[[Record], str]) -> dict[str, Group]:
    """By what the gateway said; those that it said nothing of are in none."""
    found: dict[str, list[Record]] = {}
    for one in records:
        name = name_of(one)
        if name:
            found.setdefault(name if name in found or len(found) < GROUPS else OTHERS, []).append(one)
    return {name: Group.of(found[name], goal) for name in sorted(found)}
