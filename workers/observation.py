"""Turns what an agent saw of its engine, look by look, into reports. Pure: no clock, no sockets, no randomness.

1. A look that succeeded becomes a report with the next sequence number.
2. A look that failed repeats the last report under its old number, so that readers see it grow older instead of
   believing old figures; a repeated report only keeps its key alive.
3. After `MISSES` failed looks in a row, or at once when nothing listens at the address any more, the worker is
   reported `unreachable` (before its first success: `starting`), with new numbers from then on.
4. An engine that started anew gets a new incarnation: it says another start time, or a total went backwards.
5. Percentiles are those of about the last minute, out of the engine's histograms.
6. A supervisor may say `starting` or `draining` of an engine that looks ready, and move it to another pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from workers.engines.base import Card, Reading
from workers.histograms import Window
from workers.report import WorkerReport, encode

MISSES = 3


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """The engine an agent stands beside, and what its operator says of it. What is said wins over what is seen."""

    id: str
    url: str  # http(s)://host[:port]
    pool: str
    fleet: str = "default"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    preset: str | None = None
    supports_priority: bool = False  # vLLM takes `priority` in silence whatever its policy is, so it must be told
    token: str | None = None  # sent to the engine as its bearer token
    metrics_url: str | None = None  # where its metrics are, if not at `url`
    devices: tuple[str, ...] = ()  # ids of the devices it runs on, as they are told by the driver
    device_kind: str = ""  # whose devices these ids are: nvidia, ascend; empty: anyone's
    weights: str = ""  # fingerprint of what it serves


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What the driver says of an engine's devices now."""

    utilization: float | None = None  # 0 … 1, of the busiest
    used_bytes: int | None = None  # summed
    total_bytes: int | None = None
    driver: str = ""


class Observer:
    """Everything known about one engine. `sequence` is the number of the first report; `fresh` makes random ids."""

    def __init__(
        self, target: AgentTarget, engine: str, *, continues: bool, sequence: int, fresh: Callable[[], str]
    ) -> None:
        self._target = target
        self._fresh = fresh
        self._misses = 0
        self._reading: Reading | None = None
        self._told: str | None = None
        self._load = DeviceLoad()
        self._ttft = Window()
        self._itl = Window()
        self._report = WorkerReport(
            id=target.id,
            incarnation=fresh(),
            sequence=sequence,
            url=target.url,
            engine=engine,
            pool=target.pool,
            models=(),
            state="starting",
            max_model_len=target.max_model_len,
            max_num_seqs=target.max_num_seqs,
            max_num_batched_tokens=target.max_num_batched_tokens,
            kv_tokens=target.kv_tokens,
            preset=target.preset,
            supports_priority=target.supports_priority,
            supports_continuation=continues,
            weights=target.weights,
        )

    @property
    def report(self) -> WorkerReport:
        """The report that holds now."""
        return self._report

    def is_new_start(self, reading: Reading) -> bool:
        """Whether this engine is another one than the last reading came from: its card must be read again."""
        last = self._reading
        return last is None or reading.started != last.started or _went_back(last, reading)

    def observe(self, reading: Reading, card: Card) -> WorkerReport:
        """A look succeeded. Raises `BadReport`, and remembers nothing, for what no reader would believe."""
        incarnation = self._report.incarnation
        if self.is_new_start(reading):
            incarnation = self._name_incarnation(reading)
            self._ttft.clear()
            self._itl.clear()
        self._ttft.observe(reading.ttft)
        self._itl.observe(reading.itl)
        target, load = self._target, self._load
        report = replace(
            self._report,
            incarnation=incarnation,
            sequence=self._report.sequence + 1,
            models=card.models,
            state=self._told or "ready",
            max_model_len=target.max_model_len or card.max_model_len,
            max_num_seqs=target.max_num_seqs or card.max_num_seqs,
            kv_tokens=target.kv_tokens or reading.kv_tokens or card.kv_tokens,
            kv_usage=reading.kv_usage,
            running=reading.running,
            waiting=reading.waiting,
            preemptions=reading.preemptions,
            prompt_tokens=reading.prompt_tokens,
            generation_tokens=reading.generation_tokens,
            prefix_queries=reading.prefix_queries,
            prefix_hits=reading.prefix_hits,
            version=card.version,
            ttft_p50_s=self._ttft.quantile(0.5),
            ttft_p95_s=self._ttft.quantile(0.95),
            itl_p50_s=self._itl.quantile(0.5),
            itl_p95_s=self._itl.quantile(0.95),
            device_utilization=load.utilization,
            device_used_bytes=load.used_bytes,
            device_bytes=load.total_bytes,
            adapters=card.adapters,
            driver=load.driver,
        )
        encode(report)
        self._reading = reading
        self._misses = 0
        self._report = report
        return report

    def observe_miss(self, *, refused: bool) -> WorkerReport:
        """A look failed; `refused`: nothing listens there."""
        self._misses += 1
        if refused or self._misses >= MISSES:
            self._report = replace(
                self._report,
                sequence=self._report.sequence + 1,
                state="starting" if self._reading is None else "unreachable",
                kv_usage=None,
            )
        return self._report

    def observe_devices(self, load: DeviceLoad) -> None:
        """What the driver says; it is part of the next report."""
        self._load = load

    def tell(self, told: str | None, pool: str) -> WorkerReport:
        """What a supervisor says of it from now on: `starting`, `draining`, or None for what it looks like."""
        self._told = told
        state = self._report.state
        if state != "unreachable" and self._reading is not None:
            state = told or "ready"
        if (state, pool) != (self._report.state, self._report.pool):
            self._report = replace(self._report, sequence=self._report.sequence + 1, state=state, pool=pool)
        return self._report

    def _name_incarnation(self, reading: Reading) -> str:
        # Made from the engine's own start time where it tells one, so that an agent started anew beside a running
        # engine keeps its name. Totals that went back under the same start time have no such name.
        last = self._reading
        if not reading.started or (last is not None and reading.started == last.started):
            return self._fresh()
        seed = f"{self._target.id}\0{self._target.url}\0{reading.started}"
        return hashlib.sha256(seed.encode()).hexdigest()[:16]


def _went_back(last: Reading, now: Reading) -> bool:
    return (
        now.prompt_tokens < last.prompt_tokens
        or now.generation_tokens < last.generation_tokens
        or now.preemptions < last.preemptions
    )
