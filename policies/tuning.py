"""Moves the token budget that parts two pools so that both are equally loaded.

The budget at which requests leave a pool for the next one is a guess about traffic that changes. Where the policy gives
bounds (`pools.*.tune_budget_from`, `tune_budget_to`), the work of the requests that ended is counted by their budgets,
the older the less, and once a minute the budget is chosen that makes the larger of the two pools' loads least:

    load of a pool = its requests' work in seconds of an engine / its workers that take requests

Only for a gain of over 15 %, and by one step (powers of two and the midpoints between them) at a time, so that it
neither follows noise nor swings (`facts/workload.md` D2). Requests that a rule placed count where they were placed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from policies.document import Policy

EVERY_S: Final = 60.0
HALF_LIFE_S: Final = 600.0
LEAST_GAIN: Final = 0.15
LEAST_REQUESTS: Final = 50.0  # that a choice rests on, older ones counted as what is left of them
STEPS: Final = tuple(sorted({round(2**power * part) for power in range(6, 24) for part in (1.0, 1.5)}))
"""Budgets to choose from: 64, 96, 128, 192 … 12,582,912."""


class Staff(NamedTuple):
    """Who works in a pool: how many take requests, and the longest context that all of them hold; None: unknown."""

    workers: int
    max_model_len: int | None = None


class BudgetChange(NamedTuple):
    """A pool's budget moved. Loads are of the two pools, in seconds of work a worker, before and as expected."""

    pool: str
    following: str
    before: int
    after: int
    loads: tuple[float, float]
    expected: tuple[float, float]

    @property
    def why(self) -> str:
        """For people."""
        return (
            f"{self.pool} and {self.following} are loaded {self.loads[0]:.3g} to {self.loads[1]:.3g}; "
            f"{self.expected[0]:.3g} to {self.expected[1]:.3g} is expected"
        )


class _Pair:
    """A pool whose budget may move, and the one that gets what is above it."""

    __slots__ = ("counts", "first", "fixed", "following", "high", "low", "start", "works")

    def __init__(self, first: str, following: str, start: int, low: int, high: int) -> None:
        self.first, self.following = first, following
        self.start, self.low, self.high = start, low, high
        self.works = [0.0] * (len(STEPS) + 1)  # seconds by the first step that holds the budget
        self.counts = 0.0
        self.fixed = {first: 0.0, following: 0.0}  # of requests that no budget placed

    def fade(self, part: float) -> None:
        self.works = [work * part for work in self.works]
        self.counts *= part
        self.fixed = {pool: work * part for pool, work in self.fixed.items()}

    def loads(self, budget: int, first: Staff, following: Staff) -> tuple[float, float]:
        """Of both pools, should the budget be that one."""
        below = sum(self.works[: bisect_right(STEPS, budget)])
        above = sum(self.works) - below
        return (
            (below + self.fixed[self.first]) / first.workers,
            (above + self.fixed[self.following]) / following.workers,
        )


class BudgetTuner:
    """The budgets of all pools that may be tuned. `budgets`: what they are now, of these pools only."""

    def __init__(self, policy: Policy) -> None:
        self.budgets: dict[str, int] = {}
        self._pairs: dict[str, _Pair] = {}
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Go by this policy. What was learned is kept where a pool's bounds and budget stay as they were."""
        before = self._pairs
        self._pairs = {}
        for pair in _pairs_of(policy):
            known = before.get(pair.first)
            if known is not None and _shape(known) == _shape(pair):
                pair = known
            else:
                self.budgets.pop(pair.first, None)
            self._pairs[pair.first] = pair
        self.budgets = {name: self.budgets.get(name, pair.start) for name, pair in self._pairs.items()}

    @property
    def active(self) -> bool:
        """Whether there is anything to tune."""
        return bool(self._pairs)

    def ended(self, home: str, budget_tokens: int, work_s: float) -> None:
        """A request ended that did so much work. `budget_tokens`: what placed it; 0: something else did."""
        for pair in self._pairs.values():
            if home not in pair.fixed:
                continue
            if budget_tokens:
                pair.works[bisect_left(STEPS, budget_tokens)] += work_s
                pair.counts += 1.0
            else:
                pair.fixed[home] += work_s

    def decide(self, staff: Mapping[str, Staff]) -> list[BudgetChange]:
        """Every `EVERY_S`: what has to move. `budgets` is as it says from then on."""
        changes = []
        for pair in self._pairs.values():
            first, following = staff.get(pair.first), staff.get(pair.following)
            change = None
            if first is not None and following is not None and first.workers and following.workers:
                change = self._choose(pair, first, following)
            pair.fade(0.5 ** (EVERY_S / HALF_LIFE_S))
            if change is not None:
                self.budgets = {**self.budgets, pair.first: change.after}
                changes.append(change)
        return changes

    def _choose(self, pair: _Pair, first: Staff, following: Staff) -> BudgetChange | None:
        now = self.budgets[pair.first]
        high = pair.high if first.max_model_len is None else min(pair.high, first.max_model_len)
        steps = [step for step in STEPS if pair.low <= step <= high]
        if not steps or (pair.counts < LEAST_REQUESTS and now <= high):
            return None
        loads = pair.loads(now, first, following)
        best = min(steps, key=lambda step: (max(pair.loads(step, first, following)), abs(step - now)))
        if now > high:
            # Workers with shorter contexts have come: what they cannot hold must not be at home with them.
            after = steps[-1]
        elif max(pair.loads(best, first, following)) >= (1.0 - LEAST_GAIN) * max(loads):
            return None
        else:
            after = _towards(steps, now, best)
        return BudgetChange(pair.first, pair.following, now, after, loads, pair.loads(after, first, following))


def _towards(steps: list[int], now: int, best: int) -> int:
    """The step next to `now` on the way to `best`, which is another one."""
    if best > now:
        return steps[bisect_right(steps, now)]
    return steps[bisect_left(steps, now) - 1]


def _shape(pair: _Pair) -> tuple[str, int, int, int]:
    return pair.following, pair.start, pair.low, pair.high


def _pairs_of(policy: Policy) -> list[_Pair]:
    """Pools with bounds, each with the next one that serves an endpoint of its own and holds more."""
    names = list(policy.pools)
    found = []
    for place, name in enumerate(names):
        pool = policy.pools[name]
        start, low, high = pool.max_budget_tokens, pool.tune_budget_from, pool.tune_budget_to
        if start is None or low is None or high is None:
            continue
        for other in names[place + 1 :]:
            most = policy.pools[other].max_budget_tokens
            if policy.shares_endpoint(name, other) and (most is None or most > start):
                found.append(_Pair(name, other, start, low, high))
                break
    return found
