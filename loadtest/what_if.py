"""What recorded traffic would have met under another policy: `python -m loadtest.what_if`, as `policy simulate` does.

The first line of the input is JSON: both policies' texts and the workers; the others are the gateway's record of
traffic (`docs/admin-api.md`). Both policies get the same requests, the same simulated engines and the same seed; the
production scheduler decides. The output is one JSON value.

The gateway starts this as a process of its own: a simulation takes a core for seconds, and nothing may import us.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from typing import Any, Final

import orjson

from gateway.scheduling.model import Reason, Request, WorkerSpec
from loadtest.fidelity import percentile
from loadtest.fleet import Fleet, Job, Placement, WorkerPlan
from loadtest.routers import OutputGuess, ProductionRouter
from loadtest.traces import TraceRequest
from policies.classify import Classified, Endpoint, Refusal, RequestFacts
from policies.document import Policy, parse_policy
from policies.endpoints import GENERATING
from policies.work import preset_for
from workers.engines.timing import EngineConfig, EngineCore

DEFAULT_KV_TOKENS: Final = 400_000
DEFAULT_OUTPUT: Final = 128
MAX_REQUESTS: Final = 400_000
MAX_SPAN_S: Final = 86_400  # also of silence, which costs too: engines report while they wait
MOST_MOVES: Final = 50
MAX_CPU_S: Final = 300
NICE: Final = 10  # the gateway's own streams come first
INVALID_PRIORITY: Final = "invalid_priority"
NOTES: Final = (
    "Engines are simulated by the presets that the workers name; real ones differ by some per cent.",
    "Requests that match rules by header are taken for requests without headers: headers are not recorded.",
    "Outputs of requests that were refused when they were recorded are guessed from the tenant's others.",
)


@dataclass(frozen=True, slots=True)
class Recorded(TraceRequest):
    """One request of the gateway's record."""

    asked_class: str | None = None
    model: str = ""
    endpoint: Endpoint = Endpoint.CHAT
    stream: bool = True
    max_output_tokens: int | None = None
    sequences: int = 1
    recorded_pool: str = ""
    recorded_ttft_s: float | None = None
    session: str = ""  # its hash


class InputError(ValueError):
    """What was sent cannot be replayed; one line says why."""


def read_traffic(lines: Iterable[bytes]) -> list[Recorded]:
    """The record's requests by arrival, times from the first one on. Lines that are none are left out.

    The header line says which fields there are; without one they are as this version writes them.
    """
    fields: tuple[str, ...] = FIELDS
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("fields"), list):
            fields = tuple(map(str, entry["fields"]))
        elif isinstance(entry, list) and len(entry) == len(fields):
            found.append(dict(zip(fields, entry, strict=True)))
        if len(found) >= MAX_REQUESTS:
            break
    guesses = _typical_outputs(found)
    start_s = min((entry["at"] for entry in found if isinstance(entry.get("at"), int | float)), default=0.0)
    requests = [request for entry in found if (request := _recorded(entry, guesses, start_s)) is not None]
    requests.sort(key=lambda request: request.arrival_s)
    if requests and requests[-1].arrival_s > MAX_SPAN_S:
        days = requests[-1].arrival_s / 86400
        raise InputError(f"the record spans {days:.3g} days; {MAX_SPAN_S // 86400} is the most that is replayed")
    return requests


FIELDS: Final = (
    "at", "tenant", "asked_class", "class", "pool", "model", "endpoint", "stream", "prompt_tokens",
    "max_output_tokens", "sequences", "output_tokens", "session", "prefix", "outcome", "ttft_s", "duration_s",
)  # fmt: skip


def _typical_outputs(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    known: dict[str, list[int]] = {}
    for entry in entries:
        tokens = entry.get("output_tokens")
        if type(tokens) is int and tokens > 0:
            known.setdefault(str(entry.get("tenant")), []).append(tokens)
    return {tenant: round(median(tokens)) for tenant, tokens in known.items()}


def _recorded(entry: Mapping[str, Any], guesses: Mapping[str, int], start_s: float) -> Recorded | None:
    """One request; None for an entry that says nothing sensible."""
    try:
        endpoint = Endpoint(entry["endpoint"])
        tenant = str(entry["tenant"]) or "default"
        limit = entry["max_output_tokens"]
        output = entry["output_tokens"] or min(guesses.get(tenant, DEFAULT_OUTPUT), limit or sys.maxsize)
        return Recorded(
            arrival_s=float(entry["at"]) - start_s,
            prompt_tokens=max(1, int(entry["prompt_tokens"])),
            output_tokens=max(1, int(output)) if endpoint in GENERATING else 1,
            tenant=tenant,
            source="recorded",
            asked_class=entry["asked_class"],
            model=str(entry["model"]),
            endpoint=endpoint,
            stream=entry["stream"] is True,
            max_output_tokens=None if limit is None else int(limit),
            sequences=max(1, int(entry["sequences"])),
            recorded_pool=str(entry["pool"]),
            recorded_ttft_s=entry["ttft_s"],
            session=str(entry.get("session") or ""),
        )
    except (ValueError, TypeError, KeyError):
        return None


@dataclass(slots=True)
class ReplayRouter(ProductionRouter):
    """The production scheduler, given what the gateway knew of each request, for workers as they are."""

    specs: Mapping[str, WorkerSpec] = field(default_factory=dict)
    classified: dict[Job, Classified] = field(default_factory=dict)
    refusals: dict[Job, str] = field(default_factory=dict)

    def join(self, plan: WorkerPlan, now: float) -> list[Placement]:
        """A worker exists."""
        return self._placements(self.scheduler.observe(self.specs[plan.id], None, now))

    def submit(self, job: Job, now: float) -> list[Placement]:
        """A request has arrived."""
        recorded = job.trace
        assert isinstance(recorded, Recorded)
        found = self._classifier.classify(
            RequestFacts(
                recorded.endpoint,
                recorded.model,
                recorded.tenant,
                recorded.prompt_tokens,
                recorded.max_output_tokens,
                recorded.sequences,
                recorded.stream,
                recorded.asked_class,
                prompt_exact=True,
                key=f"{recorded.tenant}\0{recorded.session}" if recorded.session else str(job.index),
            )
        )
        if isinstance(found, Refusal):
            self.refusals[job] = found.code
            return [(job, None)]
        self.classified[job] = found
        guess = self._guesses.setdefault(recorded.tenant, OutputGuess())
        limit = recorded.max_output_tokens if recorded.max_output_tokens is not None else sys.maxsize
        lifetime_s = self.policy.timeouts.total_s if found.deadline_s is None else found.deadline_s
        asked = Request(
            id=str(job.index),
            tenant=found.tenant,
            klass=found.klass,
            model=found.served_model,
            pools=found.pools,
            prompt_tokens=recorded.prompt_tokens,
            max_output_tokens=recorded.max_output_tokens,
            expected_output=max(1, min(round(guess.mean), limit)),
            p90_output=max(1, min(round(guess.high), limit)),
            sequences=recorded.sequences,
            generates=recorded.endpoint in GENERATING,
            queue_timeout_s=found.queue_timeout_s,
            deadline=now + lifetime_s,
            fallback_pools=found.fallback_pools,
            prompt_exact=True,
        )
        job.ticket, effects = self.scheduler.submit(asked, job, now)
        return self._placements(effects)

    def report(self, plan: WorkerPlan, core: EngineCore, now: float) -> list[Placement]:
        """Nothing: the gateway's own ledger says all that a simulated engine would, and nobody else sends to it."""
        return []


@dataclass(slots=True)
class Side:
    """One policy's run."""

    jobs: list[Job]
    router: ReplayRouter
    kv_peak: dict[str, float]
    busy: dict[str, float]


def run_side(policy: Policy, specs: Sequence[WorkerSpec], traffic: Sequence[Recorded]) -> Side:
    """Replay the traffic under one policy."""
    # An engine ends what its cache cannot hold any more: the record may be of a fleet with larger ones.
    room = {spec.id: _engine(spec).kv_tokens for spec in specs}
    specs = [replace(one, max_model_len=min(one.max_model_len or room[one.id], room[one.id])) for one in specs]
    least = min(room.values())
    traffic = [
        one
        if one.prompt_tokens + one.output_tokens <= least
        else replace(one, output_tokens=max(1, min(one.output_tokens, least - one.prompt_tokens)))
        for one in traffic
    ]
    plans = [WorkerPlan(spec.id, _engine(spec), spec.pool, spec.preset, spec.max_model_len) for spec in specs]
    router = ReplayRouter(policy, Random(1), specs={spec.id: spec for spec in specs})
    result = Fleet(plans, router).run(traffic)
    peak: dict[str, float] = {}
    busy: dict[str, list[float]] = {}
    for spec, figures in zip(specs, result.workers, strict=True):
        peak[spec.pool] = max(peak.get(spec.pool, 0.0), figures.peak_kv)
        busy.setdefault(spec.pool, []).append(figures.busy_s / result.ended if result.ended else 0.0)
    return Side(result.jobs, router, peak, {pool: sum(shares) / len(shares) for pool, shares in busy.items()})


def _engine(spec: WorkerSpec) -> EngineConfig:
    preset = preset_for(spec.preset)
    return EngineConfig(
        preset.step,
        spec.kv_tokens or preset.kv_tokens or DEFAULT_KV_TOKENS,
        max_num_seqs=spec.max_num_seqs or preset.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        prefix_caching=False,
    )


# === figures ===


def compare(before: Side, after: Side, specs: Sequence[WorkerSpec], policies: tuple[Policy, Policy]) -> dict[str, Any]:
    """Both sides, and which requests went elsewhere."""
    pool_of = {spec.id: spec.pool for spec in specs}
    moves: Counter[tuple[str, str]] = Counter()
    for one, other in zip(before.jobs, after.jobs, strict=True):
        pair = _ended_in(one, before, pool_of), _ended_in(other, after, pool_of)
        if pair[0] != pair[1]:
            moves[pair] += 1
    return {
        "requests": len(before.jobs),
        "moved": sum(moves.values()),
        "moves": [{"from": old, "to": new, "requests": count} for (old, new), count in moves.most_common(MOST_MOVES)],
        "before": _figures(before, policies, pool_of),
        "after": _figures(after, policies, pool_of),
    }


def _ended_in(job: Job, side: Side, pool_of: Mapping[str, str]) -> str:
    if job in side.router.refusals or job.refused is not None:
        return f"rejected: {_reason(job, side)}"
    return pool_of.get(job.worker, "")


def _reason(job: Job, side: Side) -> str:
    return side.router.refusals.get(job) or str(job.refused or Reason.NO_WORKER)


def _figures(side: Side, policies: tuple[Policy, Policy], pool_of: Mapping[str, str]) -> dict[str, Any]:
    slos = {one.name: (one.ttft_slo_s, one.tpot_slo_s) for policy in reversed(policies) for one in policy.classes}
    groups: dict[str, dict[str, list[Job]]] = {"classes": {}, "tenants": {}, "pools": {}}
    rejects: Counter[str] = Counter()
    for job in side.jobs:
        found = side.router.classified.get(job)
        rejected = job in side.router.refusals or job.refused is not None
        if rejected:
            rejects[_reason(job, side)] += 1
        groups["classes"].setdefault(found.class_name if found is not None else "none", []).append(job)
        groups["tenants"].setdefault(job.trace.tenant, []).append(job)
        groups["pools"].setdefault("none" if rejected else pool_of.get(job.worker, "none"), []).append(job)
    return {
        "all": _group(side.jobs, side, slos),
        **{
            name: {key: _group(jobs, side, slos) for key, jobs in sorted(parts.items())}
            for name, parts in groups.items()
        },
        "rejects": dict(rejects.most_common()),
        "kv_peak": {pool: round(share, 4) for pool, share in sorted(side.kv_peak.items())},
        "busy": {pool: round(share, 4) for pool, share in sorted(side.busy.items())},
    }


def _group(jobs: Sequence[Job], side: Side, slos: Mapping[str, tuple[float | None, float | None]]) -> dict[str, Any]:
    ttft = [job.ttft_s for job in jobs if job.ttft_s is not None]
    tpot = [job.tpot_s for job in jobs if job.tpot_s is not None and job.trace.output_tokens > 1]
    good = sum(_good(job, side, slos) for job in jobs)
    return {
        "requests": len(jobs),
        "goodput": good / len(jobs) if jobs else 1.0,
        "ttft_p50_s": _percentile(ttft, 0.5),
        "ttft_p95_s": _percentile(ttft, 0.95),
        "ttft_p99_s": _percentile(ttft, 0.99),
        "tpot_p50_s": _percentile(tpot, 0.5),
        "tpot_p99_s": _percentile(tpot, 0.99),
        "rejected": sum(job.refused is not None or job in side.router.refusals for job in jobs),
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    """None of no values: a group without a success has no latency, which is not one of 0 s."""
    return percentile(values, share) if values else None


def _good(job: Job, side: Side, slos: Mapping[str, tuple[float | None, float | None]]) -> bool:
    """Whether a request met what its class is meant to get; where nothing is promised, that it was answered."""
    found, ttft_s, tpot_s = side.router.classified.get(job), job.ttft_s, job.tpot_s
    if found is None or ttft_s is None or tpot_s is None:
        return False
    most_ttft_s, most_tpot_s = slos.get(found.class_name, (None, None))
    return (most_ttft_s is None or ttft_s <= most_ttft_s) and (most_tpot_s is None or tpot_s <= most_tpot_s)


# === the process ===


def replay(head: Mapping[str, Any], lines: Iterable[bytes]) -> dict[str, Any]:
    """The whole answer. Raises `InputError` for traffic or workers that there are none of, and `PolicyError`."""
    began = time.perf_counter()
    policies = parse_policy(head["before"]), parse_policy(head["after"])
    specs = [_spec(one) for one in head["workers"]]
    traffic = read_traffic(lines)
    if not traffic:
        raise InputError("there is no recorded traffic in this time")
    if not specs:
        raise InputError("there are no workers to simulate")
    sides = [run_side(policy, specs, traffic) for policy in policies]
    answer = compare(sides[0], sides[1], specs, policies)
    span_s = traffic[-1].arrival_s - traffic[0].arrival_s
    return {
        **answer,
        "seconds": round(span_s, 3),
        "took_s": round(time.perf_counter() - began, 3),
        "cpu_s": round(time.process_time(), 3),
        "recorded": _recorded_figures(traffic),
        "notes": list(NOTES),
    }


def _recorded_figures(traffic: Sequence[Recorded]) -> dict[str, Any]:
    """What really happened, beside what the simulation makes of it under the policy in force."""
    ttft = [request.recorded_ttft_s for request in traffic if request.recorded_ttft_s is not None]
    return {
        "requests": len(traffic),
        "ttft_p50_s": _percentile(ttft, 0.5),
        "ttft_p95_s": _percentile(ttft, 0.95),
        "ttft_p99_s": _percentile(ttft, 0.99),
    }


def _spec(one: Mapping[str, Any]) -> WorkerSpec:
    return WorkerSpec(
        id=one["id"],
        pool=one["pool"],
        models=frozenset(one["models"]),
        max_model_len=one.get("max_model_len"),
        max_num_seqs=one.get("max_num_seqs"),
        kv_tokens=one.get("kv_tokens"),
        max_num_batched_tokens=one.get("max_num_batched_tokens") or 2048,
        preset=one.get("preset"),
    )


def main() -> int:
    """Read from stdin, write to stdout; the exit status: 0 done, 2 nothing to replay or not readable."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    gc.disable()  # nothing here is garbage before the end, and looking for it takes a fifth of the time
    try:
        answer = replay(orjson.loads(sys.stdin.buffer.readline()), sys.stdin.buffer)
    except (ValueError, KeyError, TypeError) as error:
        sys.stdout.buffer.write(orjson.dumps({"error": str(error) or type(error).__name__}))
        return 2
    sys.stdout.buffer.write(orjson.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
