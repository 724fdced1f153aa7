"""Whether an engine hangs, judged by its reports: it does not answer, or it has requests and makes nothing. Pure.

vLLM's `/health` answers 200 while its core hangs, so answering is not enough: with requests in the batch some counter
has to move.
"""

from __future__ import annotations

from workers.report import WorkerReport

SILENT = frozenset({"unreachable", "starting"})
"""Reported states of an engine that has not been seen at work; of one that is judged, it has been ready already."""


class Watchdog:
    """Judges one engine start that has become ready; `patience_s` 0 never judges. Times are of one monotonic clock."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._progress: tuple[int, int, int, int] | None = None
        self._since: float | None = None  # nothing good was seen since then
        self._why = ""

    def observe(self, report: WorkerReport, now: float) -> str | None:
        """Why it hangs, in one line, once that has lasted as long as patience does; else None."""
        if report.state in SILENT:
            why = "does not answer"
        elif report.running and self._progress == _progress(report):
            why = f"makes nothing of {report.running} running requests"
        else:
            self._since, self._why = None, ""
            self._progress = _progress(report)
            return None
        if self._since is None or why.split()[0] != self._why.split()[0]:
            self._since, self._why = now, why
        lasted = now - self._since
        if not self._patience_s or lasted < self._patience_s:
            return None
        return f"{why} for {lasted:.0f} s"


def _progress(report: WorkerReport) -> tuple[int, int, int, int]:
    return (report.prompt_tokens, report.generation_tokens, report.preemptions, report.prefix_queries)
