"""A limit that an engine's own reports lower and use raises again.

Lowered to DECREASE of what is in flight when the engine preempted, or when in two reports running it had requests
waiting although its KV cache was full or, where nobody said how many it batches, although no prefill under way
explains it. (That requests wait for a second is otherwise how engines take in prompts: lowering the limit for it cost
four points of goodput at high load in simulation.) Raised by one each GROW_S while the limit is really used, until it
is above what the other limits allow and falls away. What clients do teaches nothing: only reports count.
"""

from __future__ import annotations

from typing import Final

from gateway.scheduling.model import Signal

DECREASE: Final = 0.8
GROW_S: Final = 2.0
REST_S: Final = 2.0  # between two decreases: the first has to show first
FULL: Final = 0.97  # share of the KV cache from which requests wait for room in it
ROOM: Final = 0.8  # share of the KV cache above which the limit does not grow


class Adaptive:
    """The adaptive limit of one worker; `limit` is None while it has nothing to say."""

    __slots__ = ("_grown_at", "_lowered_at", "_preemptions", "_waiting", "limit")

    def __init__(self, now: float) -> None:
        self.limit: int | None = None
        self._preemptions: int | None = None
        self._waiting = 0
        self._grown_at = now
        self._lowered_at = now - REST_S

    def observe(
        self, signal: Signal, in_flight: int, ceiling: int, kv_capacity: int, over_commit: int, unexplained: bool
    ) -> bool:
        """Take in a report; True when the limit changed.

        `ceiling`: what all other limits allow. `unexplained`: requests that wait there are for want of places, as far
        as the ledger knows.
        """
        now = signal.at
        preempted = self._preemptions is not None and signal.preemptions > self._preemptions
        self._preemptions = signal.preemptions
        full = kv_capacity > 0 and signal.kv_used_tokens > FULL * kv_capacity
        stuck = signal.waiting > over_commit and (full or unexplained)
        self._waiting = self._waiting + 1 if stuck else 0
        if preempted or self._waiting >= 2:
            if now - self._lowered_at < REST_S or in_flight < 1:
                return False
            self._lowered_at = self._grown_at = now
            self._waiting = 0
            lowered = max(int(min(in_flight, ceiling) * DECREASE), 1)
            changed = lowered != self.limit
            self.limit = lowered
            return changed
        if self.limit is None or now - self._grown_at < GROW_S:
            return False
        self._grown_at = now
        crowded = kv_capacity > 0 and signal.kv_used_tokens > ROOM * kv_capacity
        if signal.waiting or crowded or 2 * in_flight < self.limit:
            return False
        self.limit = self.limit + 1 if self.limit < ceiling else None
        return True
