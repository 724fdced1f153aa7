"""What finished requests that have the same labels count in: the series, looked up once instead of with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.records import Terminal
from gateway.series import Counts, Histograms, LateCounter, LateHistogram

if TYPE_CHECKING:
    from gateway.records import RequestRecord


@dataclass(slots=True, eq=False)
class Tallied:
    """The families that finished requests count in."""

    requests: Counts
    retries: Counts
    continuations: Counts
    tokens: Counts
    tenant_tokens: Counts
    queue_wait: Histograms
    ttft: Histograms
    tpot: Histograms
    e2e: Histograms


class TallyLabels(NamedTuple):
    """Values that are all labels."""

    endpoint: str
    pool: str
    class_name: str
    tenant: str
    outcome: Terminal


class Tally:
    """The series of one endpoint, pool, class, tenant and outcome."""

    __slots__ = (
        "_continuations",
        "_e2e",
        "_output",
        "_prompt",
        "_queue_wait",
        "_requests",
        "_retries",
        "_tenant_output",
        "_tenant_prompt",
        "_tpot",
        "_ttft",
    )

    def __init__(self, families: Tallied, of: TallyLabels) -> None:
        labels, outcome = (of.pool, of.class_name), of.outcome.value
        self._requests = LateCounter(families.requests, (of.endpoint, *labels, outcome))
        self._retries = LateCounter(families.retries, (of.pool,))
        self._continuations = LateCounter(families.continuations, (of.pool, outcome))
        self._prompt = LateCounter(families.tokens, (*labels, "prompt"))
        self._output = LateCounter(families.tokens, (*labels, "output"))
        self._tenant_prompt = LateCounter(families.tenant_tokens, (of.tenant, "prompt"))
        self._tenant_output = LateCounter(families.tenant_tokens, (of.tenant, "output"))
        self._queue_wait = LateHistogram(families.queue_wait, labels)
        self._ttft = LateHistogram(families.ttft, labels)
        self._tpot = LateHistogram(families.tpot, labels)
        self._e2e = LateHistogram(families.e2e, labels) if of.outcome is Terminal.OK else None

    def finished(self, record: RequestRecord) -> None:
        """One request with these labels ended."""
        self._requests.add(1.0)
        if record.attempts:
            if record.attempts > 1:
                self._retries.add(float(record.attempts - 1))
            self._queue_wait.observe(record.queue_s)
        if record.continued:
            self._continuations.add(1.0)
        output_tokens = record.output_tokens
        if record.ttft_s is not None:
            self._ttft.observe(record.ttft_s)
            if output_tokens is not None and output_tokens > 1 and record.stream:
                self._tpot.observe((record.duration_s - record.ttft_s) / (output_tokens - 1))
        if self._e2e is not None:
            self._e2e.observe(record.duration_s)
        if record.prompt_tokens:
            self._prompt.add(float(record.prompt_tokens))
            self._tenant_prompt.add(float(record.prompt_tokens))
        if output_tokens:
            self._output.add(float(output_tokens))
            self._tenant_output.add(float(output_tokens))
