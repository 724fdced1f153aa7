"""How many more attempts there may be, and when.

The budget keeps retries from multiplying an overload: each success earns a part of a retry, a floor comes with time,
and one retry costs one. Two kinds are free, because they add no engine work and cannot multiply: a connection that was
never made, and the further victims of one worker's crash (all that fail by a cut connection on one worker within
CRASH_S of the first); both are bounded by the attempts of each request, and crashed workers are ejected.
"""

from __future__ import annotations

from random import Random
from typing import Final

from gateway.scheduling.model import OutcomeKind

START_TOKENS: Final = 10.0
CAP_TOKENS: Final = 20.0
FLOOR_PER_S: Final = 10.0 / 60.0
CRASH_S: Final = 1.0
MAX_CRASHES: Final = 256


class RetryBudget:
    """A token bucket of retries for one pool."""

    __slots__ = ("_at", "_crashes", "tokens")

    def __init__(self, now: float) -> None:
        self.tokens = START_TOKENS
        self._at = now
        self._crashes: dict[str, float] = {}

    def earn(self, ratio: float) -> None:
        """A request succeeded."""
        if self.tokens < CAP_TOKENS:
            self.tokens = min(self.tokens + ratio, CAP_TOKENS)

    def try_spend(self, kind: OutcomeKind, worker: str, now: float) -> bool:
        """Take what a retry after such a failure costs; False if the budget doesn't hold it."""
        self.tokens = min(self.tokens + max(now - self._at, 0.0) * FLOOR_PER_S, CAP_TOKENS)
        self._at = now
        if kind is OutcomeKind.CONNECT_FAILED:
            return True
        if kind is OutcomeKind.RESET:
            began = self._crashes.get(worker)
            if began is not None and now - began <= CRASH_S:
                return True
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        if kind is OutcomeKind.RESET:
            self._remember(worker, now)
        return True

    def _remember(self, worker: str, now: float) -> None:
        self._crashes.pop(worker, None)
        if len(self._crashes) >= MAX_CRASHES:
            del self._crashes[next(iter(self._crashes))]
        self._crashes[worker] = now


def backoff_s(retry: int, base_s: float, cap_s: float, rng: Random) -> float:
    """Wait before the `retry`-th extra attempt, from 0: full jitter over a range that doubles up to `cap_s`."""
    return rng.random() * min(cap_s, base_s * 2.0 ** min(retry, 64))
