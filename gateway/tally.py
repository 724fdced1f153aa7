"""What finished requests of one kind count in: their series, looked up once instead of with every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.records import Terminal
from gateway.series import Counts, Histograms, LateCounter, LateHistogram

if TYPE_CHECKING:
    from gateway.records import RequestRecord

_OK: Final = Terminal.OK


@dataclass(slots=True, eq=False)
class Tallied:
    """The families that finished requests count in."""

    requests: Counts
    retries: Counts
    continuations: Counts
    tokens: Counts
    queue_wait: Histograms
    ttft: Histograms
    tpot: Histograms
    e2e: Histograms


class Tally:
    """The series of one endpoint, pool and class."""

    __slots__ = (
        "_e2e",
        "_families",
        "_outcomes",
        "_output",
        "_place",
        "_pool",
        "_prompt",
        "_queue_wait",
        "_tpot",
        "_ttft",
    )  # fmt: skip

    def __init__(self, families: Tallied, endpoint: str, pool: str, class_name: str) -> None:
        labels = pool, class_name
        self._families = families
        self._place = endpoint, pool, class_name
        self._pool = pool
        self._outcomes: dict[str, LateCounter] = {}
        self._queue_wait = LateHistogram(families.queue_wait, labels)
        self._ttft = LateHistogram(families.ttft, labels)
        self._tpot = LateHistogram(families.tpot, labels)
        self._e2e = LateHistogram(families.e2e, labels)
        self._prompt = LateCounter(families.tokens, (*labels, "prompt"))
        self._output = LateCounter(families.tokens, (*labels, "output"))

    def finished(self, record: RequestRecord) -> None:
        """One request of this kind ended."""
        outcome = record.outcome
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = LateCounter(self._families.requests, (*self._place, outcome.value))
            self._outcomes[outcome] = counter
        counter.add(1.0)
        prompt_tokens, output_tokens = record.prompt_tokens, record.output_tokens
        if record.attempts:
            if record.attempts > 1:
                self._families.retries.inc((self._pool,), float(record.attempts - 1))
            self._queue_wait.observe(record.queue_s)
        if record.continued:
            self._families.continuations.inc((self._pool, outcome.value))
        if record.ttft_s is not None:
            self._ttft.observe(record.ttft_s)
            if output_tokens is not None and output_tokens > 1 and record.stream:
                self._tpot.observe((record.duration_s - record.ttft_s) / (output_tokens - 1))
        if outcome is _OK:
            self._e2e.observe(record.duration_s)
        if prompt_tokens:
            self._prompt.add(float(prompt_tokens))
        if output_tokens:
            self._output.add(float(output_tokens))
