"""Every metric: names, labels, and where each number comes from. `python -m gateway.metrics` prints the reference.

Label values come from closed enums, the policy's names and the ids of known workers, never from a client; anything
else counts under `other`, and what no name applies to (a request refused before it had a pool) under `none`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.modes import Mode
from gateway.scheduling.model import WorkerState
from gateway.series import (
    OTHER,
    Counts,
    Family,
    Histograms,
    Kind,
    Labels,
    LateCounter,
    LateHistogram,
    gauge,
    make_room,
)  # fmt: skip
from gateway.tally import Tallied, Tally, TallyLabels
from policies.endpoints import Endpoint

if TYPE_CHECKING:
    from gateway.records import RequestRecord
    from gateway.scheduling.snapshot import FleetSnapshot, WorkerSnapshot
    from policies.document import Policy

NONE = "none"

# Seconds. Prefills take from milliseconds to minutes; 600 s is the longest a request may take by default.
LATENCY_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0,
)  # fmt: skip
GAP_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0, 30.0, 600.0,
)  # fmt: skip
WAIT_S = (0.0001, 0.001, *LATENCY_S)
OVERHEAD_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 10.0, 600.0,
)  # fmt: skip

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PC = ("pool", "class")
_W = ("worker", "pool")

REQUESTS = Family("headrace_requests_total", _C, "Client requests, once each, by how they ended.", ("endpoint", *_PC, "outcome"))  # fmt: skip # noqa: E501
ATTEMPTS = Family("headrace_attempts_total", _C, "Upstream tries by their result; a retried request has several.", ("pool", "worker", "result"))  # fmt: skip # noqa: E501
RETRIES = Family("headrace_retries_total", _C, "Tries beyond a request's first.", ("pool",))
QUARANTINED = Family("headrace_poison_quarantined_total", _C, "Requests kept from all workers because some died of them.")  # fmt: skip # noqa: E501
CONTINUATIONS = Family("headrace_continuations_total", _C, "Streams that broke off and were to go on at another worker, by how they ended.", ("pool", "outcome"))  # fmt: skip # noqa: E501
TOKENS = Family("headrace_tokens_total", _C, "Tokens as the engines counted them, prompt and output.", (*_PC, "direction"))  # fmt: skip # noqa: E501
TENANT_TOKENS = Family("headrace_tenant_tokens_total", _C, "The same by tenant named in the policy.", ("tenant", "direction"))  # fmt: skip # noqa: E501
DISCONNECTS = Family("headrace_disconnects_total", _C, "Clients that left early, by what the request was doing.", ("state",))  # fmt: skip # noqa: E501

TTFT = Family("headrace_ttft_seconds", _H, "From the request's arrival to its first token.", _PC, LATENCY_S)
ITL = Family("headrace_itl_seconds", _H, "Between two pieces of a stream.", _PC, GAP_S)
TPOT = Family("headrace_tpot_seconds", _H, "Per output token after the first, one value a request.", _PC, GAP_S)
E2E = Family("headrace_e2e_seconds", _H, "From arrival to the last byte of successful requests.", _PC, LATENCY_S)
QUEUE_WAIT = Family("headrace_queue_wait_seconds", _H, "In the gateway's queue.", _PC, WAIT_S)
OVERHEAD = Family("headrace_overhead_seconds", _H, "The gateway's own time to read what a request asks for and to classify it.", (), OVERHEAD_S)  # fmt: skip # noqa: E501

LEASES = Family("headrace_worker_leases", _G, "Requests this gateway runs on the worker.", _W)
IN_FLIGHT = Family("headrace_worker_in_flight", _G, "Places they take: one for each sequence asked for.", _W)
LIMIT = Family("headrace_worker_limit", _G, "Places there are for this gateway now.", _W)
PREFILL = Family("headrace_worker_booked_prefill_seconds", _G, "Prefill work not answered by a first token yet.", _W)
DECODE = Family("headrace_worker_booked_decode_seconds", _G, "Decode work still expected.", _W)
KV_BOOKED = Family("headrace_worker_booked_kv_tokens", _G, "KV tokens booked by this gateway's requests.", _W)
KV_USED = Family("headrace_worker_kv_used_tokens", _G, "KV tokens booked here and reported.", _W, across="max")
KV_CAPACITY = Family("headrace_worker_kv_capacity_tokens", _G, "KV tokens the worker has.", _W, across="max")
SLOTS = Family("headrace_worker_slots", _G, "Places leased to this gateway; none where leases do not govern.", _W)
SIGNAL_AGE = Family(
    "headrace_worker_report_age_seconds", _G, "Since the worker's last report came in.", _W, across="max"
)
WORKER_STATE = Family("headrace_worker_state", _G, "1 for the state the worker is in.", (*_W, "state"), across="max")
QUEUE_DEPTH = Family("headrace_queue_depth", _G, "Requests waiting.", _PC)
QUEUE_OLDEST = Family("headrace_queue_oldest_seconds", _G, "Age of the longest waiting request.", _PC, across="max")
QUEUE_BYTES = Family("headrace_queue_bytes", _G, "Bodies of the requests waiting.")
RUNNING = Family("headrace_leases", _G, "Requests running on all workers.")
CONNECTIONS = Family("headrace_connections", _G, "Open client connections.")
CONNECTIONS_REFUSED = Family("headrace_connections_refused_total", _C, "Clients turned away because there were too many.")  # fmt: skip # noqa: E501
EXCHANGES = Family("headrace_requests_in_flight", _G, "Requests between their first byte and their last.")
READY = Family("headrace_ready", _G, "1 while /readyz answers 200.", across="max")
REDIS_UP = Family("headrace_redis_up", _G, "1 while Redis answers, also when none is used.", across="min")
MODE = Family("headrace_mode", _G, "1 for the degraded mode this gateway is in.", ("mode",))
GATEWAYS = Family("headrace_gateways", _G, "Gateways that share the workers' slots, this one included.", across="max")
LEASE_EPOCH = Family("headrace_lease_epoch", _G, "Grows when Redis may have lost what was leased.", across="max")
LEASE_SILENT = Family("headrace_lease_silent_seconds", _G, "Since this gateway's leases were renewed.", across="max")
REDIS_ERRORS = Family("headrace_redis_errors_total", _C, "Failed Redis operations by kind.", ("kind",))
BAD_REPORTS = Family("headrace_reports_invalid_total", _C, "Worker reports that were not believed.")
PROBES = Family("headrace_worker_probes_total", _C, "Questions to static workers by result.", ("result",))
BUDGET = Family("headrace_pool_budget_tokens", _G, "Largest token budget at home in a pool whose budget is tuned.", ("pool",), across="max")  # fmt: skip # noqa: E501
BUDGETS_TUNED = Family("headrace_pool_budget_changes_total", _C, "Moves of a pool's largest budget by tuning.", ("pool",))  # fmt: skip # noqa: E501
REVISION = Family("headrace_policy_revision", _G, "Number of the policy revision in use.", across="max")
POLICY_REJECTED = Family("headrace_policy_rejected_total", _C, "Policy documents that were refused.")
POLICY_GUARDED = Family("headrace_policy_guarded_total", _C, "Policy changes held back by guard rails.")
POLICY_CONFLICTS = Family("headrace_policy_conflicts_total", _C, "Policy changes by somebody who had not seen the current revision.")  # fmt: skip # noqa: E501
POLICY_LAG = Family("headrace_policy_lag_seconds", _G, "For how long this replica has not known that its policy is the fleet's.", across="max")  # fmt: skip # noqa: E501
LOG_DROPPED = Family("headrace_log_dropped_total", _C, "Log lines lost because nobody took them in time.")
LOOP_LAG = Family("headrace_loop_lag_seconds", _H, "How late the event loop ran a timer, sampled.", (), WAIT_S)
ERRORS = Family("headrace_internal_errors_total", _C, "Exceptions nobody expected.")
BUILD = Family("headrace_build_info", _G, "1; version and Python in the labels.", ("version", "python"), across="max")

FAMILIES = (
    REQUESTS, ATTEMPTS, RETRIES, QUARANTINED, CONTINUATIONS, TOKENS, TENANT_TOKENS, DISCONNECTS,
    TTFT, ITL, TPOT, E2E, QUEUE_WAIT, OVERHEAD,
    LEASES, IN_FLIGHT, LIMIT, PREFILL, DECODE, KV_BOOKED, KV_USED, KV_CAPACITY, SIGNAL_AGE, SLOTS, WORKER_STATE,
    RUNNING, QUEUE_DEPTH, QUEUE_OLDEST, QUEUE_BYTES, CONNECTIONS, CONNECTIONS_REFUSED, EXCHANGES, READY,
    MODE, GATEWAYS, LEASE_EPOCH, LEASE_SILENT, REDIS_UP, REDIS_ERRORS, BAD_REPORTS, PROBES,
    BUDGET, BUDGETS_TUNED, REVISION, POLICY_REJECTED, POLICY_GUARDED, POLICY_CONFLICTS, POLICY_LAG,
    LOG_DROPPED, LOOP_LAG, ERRORS, BUILD,
)  # fmt: skip

_ENDPOINTS = frozenset(str(endpoint) for endpoint in Endpoint)


@dataclass(slots=True)
class Gauges:
    """What is read at the moment of a scrape, on the event loop."""

    fleet: FleetSnapshot | None = None
    classes: tuple[str, ...] = ()
    connections: int = 0
    exchanges: int = 0
    ready: bool = False
    redis_up: bool = True
    mode: str = ""
    gateways: int | None = None
    lease_epoch: int = 0
    lease_silent_s: float = 0.0
    revision: int = 0
    budgets: Mapping[str, int] = field(default_factory=dict)
    policy_lag_s: float = 0.0
    log_dropped: int = 0
    build: Labels = field(default=("", ""))


@dataclass(slots=True, eq=False)
class _Tried:
    """What an attempt on a worker counts in."""

    pool: str
    result: str
    counter: LateCounter


class Metrics:
    """Counts what happens. One event loop writes; `expose` may run in another thread.

    `gateway.telemetry` gives it what the data plane reports.
    """

    def __init__(self) -> None:
        self._counts = {family.name: Counts(family) for family in FAMILIES if family.kind is Kind.COUNTER}
        self._histograms = {family.name: Histograms(family) for family in FAMILIES if family.kind is Kind.HISTOGRAM}
        counts, histograms = self._counts, self._histograms
        self._attempts = counts[ATTEMPTS.name]
        self._itl = histograms[ITL.name]
        self._tallied = Tallied(
            counts[REQUESTS.name], counts[RETRIES.name], counts[CONTINUATIONS.name],
            counts[TOKENS.name], counts[TENANT_TOKENS.name],
            histograms[QUEUE_WAIT.name], histograms[TTFT.name], histograms[TPOT.name], histograms[E2E.name],
        )  # fmt: skip
        self.vocabulary = 0
        """Which names are label values; another number with every policy."""
        # Looked up once; forgotten with the names that they go by.
        self._tried: dict[Labels, LateCounter] = {}
        self._last_tried: dict[str, _Tried] = {}  # of each worker, the last of them
        self._gaps: dict[Labels, LateHistogram] = {}
        self._overhead = self._histograms[OVERHEAD.name].at()
        self._lag = self._histograms[LOOP_LAG.name].at()
        self._pools = self._classes = self._tenants = self._workers = frozenset[str]()
        self.gauges = Gauges()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Exporter(self))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    # -- which label values there are ------------------------------------------------------------------------------

    def adopt(self, policy: Policy) -> None:
        """Know the names of this policy."""
        self._pools = frozenset((*policy.pools, NONE))
        self._classes = frozenset((*(each.name for each in policy.classes), NONE))
        self._tenants = frozenset(policy.tenants)
        self.vocabulary += 1
        self._forget_tried()
        self._gaps.clear()

    def know_worker(self, worker_id: str) -> None:
        """This worker id may be a label from now on."""
        self._workers |= {worker_id}
        self._forget_tried()

    def forget_worker(self, worker_id: str) -> None:
        """The worker is gone for good: drop its series, or a fleet that scales up and down would grow them forever."""
        self._workers -= {worker_id}
        self._attempts.forget("worker", worker_id)
        self._forget_tried()

    def _forget_tried(self) -> None:
        self._tried.clear()
        self._last_tried.clear()

    def _pool(self, name: str) -> str:
        return name if name in self._pools else NONE if not name else OTHER

    def _class(self, name: str) -> str:
        return name if name in self._classes else NONE if not name else OTHER

    # -- what happens ----------------------------------------------------------------------------------------------

    def attempt(self, pool: str, worker: str, result: str) -> None:
        """One upstream try ended; `result` is an `OutcomeKind`."""
        last = self._last_tried.get(worker)
        if last is None or last.result != result or last.pool != pool:
            key = pool, worker, result
            counter = self._tried.get(key)
            if counter is None:
                make_room(self._tried)
                known = worker if worker in self._workers else OTHER
                counter = self._tried[key] = LateCounter(self._attempts, (self._pool(pool), known, result))
            make_room(self._last_tried)
            last = self._last_tried[worker] = _Tried(pool, result, counter)
        last.counter.add(1.0)

    def itl(self, pool: str, class_name: str, seconds: float) -> None:
        """One piece of a stream came `seconds` after the one before."""
        key = pool, class_name
        series = self._gaps.get(key)
        if series is None:
            make_room(self._gaps)
            series = self._gaps[key] = LateHistogram(self._itl, (self._pool(pool), self._class(class_name)))
        series.observe(seconds)

    def overhead(self, seconds: float) -> None:
        """The gateway's own time for one request."""
        self._overhead.observe(seconds)

    def lag(self, seconds: float) -> None:
        """A timer ran that much late."""
        self._lag.observe(seconds)

    def count(self, family: Family, *labels: str, amount: float = 1.0) -> None:
        """Count in one of the families above; label values must be of a closed set."""
        self._counts[family.name].inc(labels, amount)

    def tally(self, record: RequestRecord) -> Tally:
        """What a finished request counts in, and all that have the same names do while `vocabulary` is the same."""
        endpoint = record.endpoint
        if endpoint not in _ENDPOINTS:
            endpoint = OTHER if endpoint else NONE
        tenant = record.tenant if record.tenant in self._tenants else OTHER
        pool, class_name = self._pool(record.pool), self._class(record.class_name)
        return Tally(self._tallied, TallyLabels(endpoint, pool, class_name, tenant, record.outcome))

    # -- reading ---------------------------------------------------------------------------------------------------

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Everything in the text format that `accept` asks for, and its content type.

        `gauges` must have been filled just before. Safe in another thread than the one that counts.
        """
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Every family as Prometheus reads it."""
        for counts in self._counts.values():
            if counts.family is not LOG_DROPPED:
                yield counts.metric()
        for histograms in self._histograms.values():
            yield histograms.metric()
        yield from _gauges(self.gauges)


class _Exporter(Collector):
    """Lets the registry read us without describing (and thus collecting) at registration."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.collect()


def _gauges(now: Gauges) -> Iterator[Metric]:
    dropped = Counts(LOG_DROPPED)
    dropped.inc(amount=now.log_dropped)
    yield dropped.metric()
    yield gauge(CONNECTIONS, [((), now.connections)])
    yield gauge(EXCHANGES, [((), now.exchanges)])
    yield gauge(READY, [((), now.ready)])
    if now.mode:
        yield gauge(MODE, (((str(mode),), float(now.mode == mode)) for mode in Mode))
    if now.gateways is not None:
        yield gauge(GATEWAYS, [((), now.gateways)])
        yield gauge(LEASE_EPOCH, [((), now.lease_epoch)])
        yield gauge(LEASE_SILENT, [((), now.lease_silent_s)])
    yield gauge(REDIS_UP, [((), now.redis_up)])
    yield gauge(BUDGET, (((pool,), tokens) for pool, tokens in now.budgets.items()))
    yield gauge(REVISION, [((), now.revision)])
    yield gauge(POLICY_LAG, [((), now.policy_lag_s)])
    yield gauge(BUILD, [(now.build, 1)])
    if now.fleet is not None:
        yield from _worker_gauges(now.fleet.workers)
        yield from _queue_gauges(now.fleet, now.classes)


def _worker_gauges(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    # Two incarnations of one worker may be here while the old one's leases finish: their work adds up.
    merged: dict[Labels, list[WorkerSnapshot]] = {}
    for worker in workers:
        merged.setdefault((worker.id, worker.pool), []).append(worker)
    for family, of in _WORKER_SUMS:
        yield gauge(family, ((labels, sum(map(of, each))) for labels, each in merged.items()))
    current = {labels: each[-1] for labels, each in merged.items()}
    for family, read in _WORKER_FACTS:
        found = ((labels, read(worker)) for labels, worker in current.items())
        yield gauge(family, ((labels, value) for labels, value in found if value is not None))
    states = (
        ((*labels, str(state)), float(worker.state is state))
        for labels, worker in current.items()
        for state in WorkerState
    )
    yield gauge(WORKER_STATE, states)


_WORKER_SUMS: tuple[tuple[Family, Callable[[WorkerSnapshot], float]], ...] = (
    (LEASES, lambda worker: worker.leases),
    (IN_FLIGHT, lambda worker: worker.in_flight),
    (PREFILL, lambda worker: worker.booked_prefill_s),
    (DECODE, lambda worker: worker.booked_decode_s),
    (KV_BOOKED, lambda worker: worker.booked_kv_tokens),
)
_WORKER_FACTS: tuple[tuple[Family, Callable[[WorkerSnapshot], float | None]], ...] = (
    (LIMIT, lambda worker: worker.limit),
    (KV_USED, lambda worker: worker.kv_used_tokens),
    (KV_CAPACITY, lambda worker: worker.kv_capacity_tokens),
    (SIGNAL_AGE, lambda worker: worker.signal_age_s),
    (SLOTS, lambda worker: worker.slots),
)


def _queue_gauges(fleet: FleetSnapshot, classes: Sequence[str]) -> Iterator[Metric]:
    depth: dict[Labels, float] = {}
    oldest: dict[Labels, float] = {}
    for queue in fleet.queues:
        labels = (queue.pool, classes[queue.klass] if queue.klass < len(classes) else OTHER)
        depth[labels] = depth.get(labels, 0) + queue.queued
        oldest[labels] = max(oldest.get(labels, 0.0), queue.oldest_wait_s)
    yield gauge(QUEUE_DEPTH, depth.items())
    yield gauge(QUEUE_OLDEST, oldest.items())
    yield gauge(QUEUE_BYTES, [((), fleet.queued_bytes)])
    yield gauge(RUNNING, [((), fleet.in_flight)])


def reference() -> str:
    """The metrics as a page of documentation."""
    lines = [
        "# Metrics",
        "",
        "Read at `/metrics` on the admin listener. Made from `gateway/metrics.py` by `python -m gateway.metrics`.",
        "Times are seconds. Process figures (`process_*`, `python_*`) are the Prometheus client's own.",
        "",
        "| name | kind | labels | what |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    states = ", ".join(f"`{state}`" for state in WorkerState)
    lines += [
        "",
        "Label values",
        "",
        "- `endpoint`, `outcome`, `result`, `state`, `direction`, `kind`: closed sets in the code.",
        f"- `state` of a worker: {states}.",
        "- `pool`, `class`, `tenant`: names in the policy. `worker`: ids of known workers; a gone one's series go too.",
        "- `other`: a name that is none of these. `none`: no name applies, as for a request that never had a pool.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
