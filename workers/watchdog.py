"""Whether an engine hangs, judged by its reports: it does not answer, or it has requests and makes nothing. Pure.

vLLM's `/health` answers 200 while its core hangs, so answering is not enough: with requests in the batch some counter
has to move. A look that failed repeats the last report under its old number (`workers/observation.py`), so a report
that is seen again says that nobody answered, and nothing of what the engine does.
"""

from __future__ import annotations

from workers.report import WorkerReport

SILENT = frozenset({"unreachable", "starting"})
"""Reported states of an engine that has not been seen at work; of one that is judged, it has been ready already."""


class Watchdog:
    """Judges one engine start that has become ready; `patience_s` 0 never judges. Times are of one monotonic clock."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._number: tuple[str, int] | None = None
        self._progress: tuple[int, int, int, int] | None = None
        self._silent_since: float | None = None  # it has not answered since then
        self._stuck_since: float | None = None  # whenever it answered since then, it had requests and made nothing

    def observe(self, report: WorkerReport, now: float) -> str | None:
        """Why it hangs, in one line, once that has lasted as long as patience does; else None."""
        number = (report.incarnation, report.sequence)
        repeated = number == self._number
        self._number = number
        if repeated or report.state in SILENT:
            since = self._silent_since = now if self._silent_since is None else self._silent_since
            why = "does not answer"
        else:
            self._silent_since = None
            progress = _progress(report)
            if not report.running or progress != self._progress:
                self._stuck_since = None
                self._progress = progress
                return None
            since = self._stuck_since = now if self._stuck_since is None else self._stuck_since
            why = f"makes nothing of {report.running} running requests"
        lasted = now - since
        if not self._patience_s or lasted < self._patience_s:
            return None
        return f"{why} for {lasted:.0f} s"


def _progress(report: WorkerReport) -> tuple[int, int, int, int]:
    return (report.prompt_tokens, report.generation_tokens, report.preemptions, report.prefix_queries)
