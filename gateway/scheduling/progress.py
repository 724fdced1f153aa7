"""Whether a worker gets on with what it was sent: an engine may hang while its health endpoint answers.

A worker that holds leases shows life by a first token, by more tokens, by an answer that ends well, and by token
counters in its reports that move. Without any of these it stalls after the longest of

1. LEAST_S;
2. GAPS times the longest pause it made between tokens lately, about its 99th percentile;
3. MARGIN times what the longest prefill there should take: a long prompt is no stall;
4. the policy's time to first token, as long as nothing else is to go by: no recent report counts tokens, the report
   says that the engine has nothing to do (a client may read slowly), or the worker never answered anything, so that
   nobody knows how long its prefills take.

The figures of 1 and 2 are those of `facts/reliability.md` 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.scheduling.model import Lease, Signal
    from gateway.scheduling.worker import Worker

LEAST_S: Final = 15.0
GAPS: Final = 10.0
MARGIN: Final = 3.0
RECENT_S: Final = 3.0  # an older report says nothing about now
FADE: Final = 0.99  # the longest pause and the slowest prefill fade by this with each that is shorter
LEAST_PREFILL_S: Final = 0.1  # shorter predictions are below what the network adds


class Watch:
    """The signs of life of one incarnation of a worker. `checks_at`: when its timer comes up; None: it has none."""

    __slots__ = (
        "_counted_at",
        "_idle",
        "_longest_s",
        "_moved_at",
        "_pause_s",
        "_slowness",
        "_tokens",
        "checks_at",
        "worker",
    )

    def __init__(self, worker: Worker, now: float) -> None:
        self.worker = worker
        self.checks_at: float | None = None
        self._moved_at = now
        self._pause_s = 0.0
        self._slowness: float | None = None  # how many times as long as predicted first tokens take at worst
        self._longest_s = 0.0  # the longest prefill sent since it had none
        self._tokens: int | None = None
        self._counted_at: float | None = None
        self._idle = False

    def sent(self, lease: Lease) -> None:
        """A lease is about to be booked. What starts from nothing, or is to prove the worker, starts the clock."""
        worker, prefill_s = self.worker, lease.cost.prefill_s
        if not worker.leases or lease.canary:
            self._moved_at = lease.dispatched
        if prefill_s > self._longest_s or not worker.prefill_s:
            self._longest_s = prefill_s

    def answered(self, lease: Lease, now: float) -> None:
        """A first token has come."""
        self._moved_at = now
        if lease.predicted_ttft_s:
            seen = (now - lease.dispatched) / max(lease.predicted_ttft_s, LEAST_PREFILL_S)
            self._slowness = max(seen, (self._slowness or 0.0) * FADE)

    def produced(self, now: float) -> None:
        """More tokens have come. Pauses beside a prefill are the prefill's."""
        pause_s = now - self._moved_at
        if not self.worker.prefill_s:
            self._pause_s = max(pause_s, self._pause_s * FADE)
        self._moved_at = now

    def moved(self, now: float) -> None:
        """It did something else that a hung engine does not do, or nothing that we could have seen."""
        self._moved_at = now

    def reported(self, signal: Signal) -> None:
        """A report has come."""
        total = signal.tokens_total
        if total is None:
            return
        if total != self._tokens:
            self._tokens = total
            self._moved_at = signal.at
        self._counted_at = signal.at
        self._idle = not (signal.running or signal.waiting)

    def stalls_at(self, now: float, ttft_s: float) -> float:
        """When the worker counts as stalled if nothing moves until then; it has to hold leases."""
        worker = self.worker
        limit_s = max(LEAST_S, GAPS * self._pause_s)
        if worker.prefill_s:
            prefill_s = min(self._longest_s, worker.prefill_s) * worker.stretch
            limit_s = max(limit_s, MARGIN * prefill_s * max(self._slowness or 0.0, 1.0))
        counted = self._counted_at is not None and now - self._counted_at <= RECENT_S
        if not counted or self._idle or self._slowness is None:
            limit_s = max(limit_s, ttft_s)
        return self._moved_at + limit_s
