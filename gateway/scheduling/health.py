"""Whether a worker is fit for work, judged by what became of the requests it got.

    READY ──failures, a stall──► EJECTED ──time is over──► PROBING ──its request succeeds──► READY, slowly
                                    ▲                         │
                                    └── its request fails ────┘  each time for longer

Only what the worker did counts: client errors, clients that left and our own faults teach nothing; 429 and 503 mean
"busy" and rest the worker for as long as it asks. A failure leaves a penalty that fades, so that a worker that fails
fast never looks idle.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from gateway.scheduling.model import Outcome, OutcomeKind, WorkerState
from gateway.scheduling.successes import Successes

if TYPE_CHECKING:
    from policies.document import Health as HealthPolicy

FAILURE_PENALTY_S: Final = 2.0
PENALTY_CAP_S: Final = 60.0
BUSY_DEFAULT_S: Final = 1.0
BUSY_CAP_S: Final = 60.0
JITTER: Final = 0.2

# Failures of the worker; all other kinds teach nothing about its health.
FAILURES: Final = frozenset(
    {
        OutcomeKind.CONNECT_FAILED,
        OutcomeKind.RESET,
        OutcomeKind.PROTOCOL,
        OutcomeKind.SERVER_ERROR,
        OutcomeKind.TTFT_TIMEOUT,
        OutcomeKind.GAP_TIMEOUT,
    }
)

# Bound once: each look-up on an Enum costs more than what these are compared for.
_READY: Final = WorkerState.READY
_EJECTED: Final = WorkerState.EJECTED
_PROBING: Final = WorkerState.PROBING


class Health:
    """The health of one incarnation of a worker."""

    __slots__ = (
        "connect_failures",
        "cool_until",
        "ejected_until",
        "ejections",
        "failures",
        "penalty",
        "penalty_at",
        "ramp_from",
        "ready_since",
        "soft",
        "state",
        "successes",
    )

    def __init__(self, now: float, *, ramp: bool) -> None:
        self.state = _READY
        self.failures = 0
        self.connect_failures = 0
        self.ejections = 0
        self.ejected_until = 0.0
        self.soft = False  # ejected for a reason that the share of ejected workers bounds
        self.cool_until = 0.0
        self.penalty = 0.0
        self.penalty_at = now
        self.ramp_from: float | None = now if ramp else None
        self.ready_since = now
        self.successes = Successes()

    @property
    def ejected(self) -> bool:
        """Whether it is out of rotation."""
        return self.state is _EJECTED

    @property
    def probing(self) -> bool:
        """Whether it gets one request at a time."""
        return self.state is _PROBING

    def penalty_s(self, now: float, fade_s: float) -> float:
        """Seconds that recent failures add to its score: fading in a straight line, gone after `fade_s`."""
        if not self.penalty:
            return 0.0
        return self.penalty * max(1.0 - max(now - self.penalty_at, 0.0) / fade_s, 0.0)

    def succeed(self, canary: bool, now: float) -> bool:
        """A request went well. True when that lets the worker back in."""
        self.failures = self.connect_failures = 0
        if self.state is _READY:
            self.successes.count(True, now)
            return False
        if not (canary and self.probing):
            return False
        self.state = _READY
        self.ready_since = self.ramp_from = now
        self.soft = False
        return True

    def rest(self, outcome: Outcome, now: float) -> None:
        """The engine said it is busy: leave it alone for as long as it asks, within bounds."""
        asked = outcome.retry_after_s
        wait = BUSY_DEFAULT_S if asked is None or not asked >= 0.0 else min(asked, BUSY_CAP_S)
        self.cool_until = max(self.cool_until, now + wait)

    def fail(
        self, kind: OutcomeKind, canary: bool, now: float, rules: HealthPolicy, rng: Random, may_eject: bool
    ) -> str | None:
        """A request failed by the worker's fault. The reason, when that ejects it.

        `may_eject`: the pool can spare one more worker for soft reasons. Refused connections eject regardless: a
        worker that nobody can reach serves nothing either way.
        """
        self.penalty = min(self.penalty_s(now, 5.0) + FAILURE_PENALTY_S, PENALTY_CAP_S)
        self.penalty_at = now
        if self.ejected:
            return None
        if self.probing:
            # What was sent before the ejection says nothing about the worker now.
            return self._eject(f"probe failed: {kind}", self.soft, now, rules, rng) if canary else None
        self.successes.count(False, now)
        if kind is OutcomeKind.CONNECT_FAILED:
            self.connect_failures += 1
            if self.connect_failures >= rules.connect_failures:
                return self._eject(f"{self.connect_failures} failed connections", False, now, rules, rng)
        else:
            self.failures += 1
        if not may_eject:
            return None
        if self.failures >= rules.consecutive_failures:
            return self._eject(f"{self.failures} failures in a row", True, now, rules, rng)
        too_few = self.successes.too_few(now)
        return None if too_few is None else self._eject(too_few, True, now, rules, rng)

    def stall(self, now: float, rules: HealthPolicy, rng: Random) -> str:
        """It does nothing with what it was sent: this ejects it, and says why."""
        return self._eject("no progress", self.soft or not self.probing, now, rules, rng)

    def _eject(self, why: str, soft: bool, now: float, rules: HealthPolicy, rng: Random) -> str:
        # After a long time in good health the next ejection is a first one again.
        if self.state is _READY and now - self.ready_since > rules.ejection_cap_s:
            self.ejections = 0
        span = min(rules.ejection_s * 2.0 ** min(self.ejections, 32), rules.ejection_cap_s)
        span *= 1.0 + JITTER * (2.0 * rng.random() - 1.0)
        self.state = _EJECTED
        self.soft = soft
        self.ejections += 1
        self.ejected_until = now + span
        self.failures = self.connect_failures = 0
        self.successes.clear()
        return why

    def readmit(self, now: float) -> None:
        """Somebody says that the worker is well: forget what was held against it, and let it start slowly."""
        if self.state is not _READY:
            self.ready_since = self.ramp_from = now
        self.state = _READY
        self.soft = False
        self.successes.clear()
        self.failures = self.connect_failures = self.ejections = 0
        self.cool_until = self.penalty = 0.0

    def end_ejection(self, now: float) -> bool:
        """Start probing if the ejection is over. True when that changed the state."""
        if not self.ejected or now < self.ejected_until:
            return False
        self.state = _PROBING
        return True
