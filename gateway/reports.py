"""What the workers' reports have told us so far: which are new, who fell silent, which could not be believed.

Pure: bytes and the time come in, changes go out. Age is the time since *we* saw a new sequence number, counted only
while Redis answers: neither a wrong clock on another host nor a Redis that is gone makes a worker disappear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.advice import History
from workers.report import BadReport, WorkerReport, decode

SILENT_OUT_S = 10.0
MAX_POLL_GAP_S = 2.0
"""Most silence that one poll may add: after a Redis outage the agents get their time to speak again."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one poll has brought."""

    fresh: list[WorkerReport] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    invalid: list[BadReport] = field(default_factory=list)  # every bad report read
    newly_invalid: list[tuple[str, BadReport]] = field(default_factory=list)  # those whose worker was fine before


@dataclass(slots=True)
class _Seen:
    report: WorkerReport
    silent_s: float = 0.0


class ReportBook:
    """The last good report of every worker, how long it has been silent, and its history for advice."""

    def __init__(self) -> None:
        self.history = History()
        self._seen: dict[str, _Seen] = {}
        self._bad: frozenset[str] = frozenset()
        self._last_poll: float | None = None

    def poll(self, raw: Mapping[str, bytes], now: float) -> Changes:
        """Take in one successful reading of Redis: the value under every announced worker's key that had one."""
        step = 0.0 if self._last_poll is None else min(now - self._last_poll, MAX_POLL_GAP_S)
        self._last_poll = now
        changes = Changes()
        bad: set[str] = set()
        for worker_id, value in raw.items():
            try:
                report = decode(value, worker_id)
            except BadReport as error:
                bad.add(worker_id)
                changes.invalid.append(error)
                if worker_id not in self._bad:
                    changes.newly_invalid.append((worker_id, error))
                continue
            seen = self._seen.get(worker_id)
            if seen is None:
                self._seen[worker_id] = _Seen(report, silent_s=-step)
                changes.fresh.append(report)
            elif (report.incarnation, report.sequence) != (seen.report.incarnation, seen.report.sequence):
                # Not "larger": an agent that starts again counts from the beginning.
                seen.report, seen.silent_s = report, -step
                changes.fresh.append(report)
        for report in changes.fresh:
            self.history.observe(report, now)
        self._bad = frozenset(bad)
        for worker_id, seen in list(self._seen.items()):
            seen.silent_s += step
            if seen.silent_s >= SILENT_OUT_S:
                del self._seen[worker_id]
                self.history.forget(worker_id)
                changes.gone.append(worker_id)
        return changes

    def report(self, worker_id: str) -> WorkerReport | None:
        """The last good report of a worker that is still known."""
        seen = self._seen.get(worker_id)
        return seen.report if seen is not None else None

    def silent_s(self, worker_id: str) -> float | None:
        """Seconds of Redis answering without anything new from this worker."""
        seen = self._seen.get(worker_id)
        return seen.silent_s if seen is not None else None
