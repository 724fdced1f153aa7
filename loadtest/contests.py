"""Traffic made to show one property: two tenants that both want everything, and a class that is never its turn."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.scheduling.fairness import service
from loadtest.fleet import Fleet, FleetResult, Job, WorkerPlan
from loadtest.routers import ProductionRouter
from loadtest.traces import TraceRequest
from policies.document import Policy, policy_from_mapping
from policies.work import DEFAULT_PRESET, PRESETS
from workers.engines.timing import EngineConfig

PLACES: Final = 8  # on each worker: few, so that who waits, waits in the gateway
WINDOW_S: Final = 10.0
OUTPUT: Final = 128
LARGE, SMALL = 32_000, 200
JOB: Final = (150, 32)  # prompt and output of a batch request
MEAN_PERSON: Final = 1040.0  # tokens of an interactive request, as fairness counts them


def _fleet(policy: Policy, classes: dict[str, str], workers: int, seed: int) -> Fleet:
    preset = PRESETS[DEFAULT_PRESET]
    engine = EngineConfig(
        preset.step,
        preset.kv_tokens or 400_000,
        max_num_seqs=preset.max_num_seqs,
        max_num_batched_tokens=preset.max_num_batched_tokens,
    )
    plans = [WorkerPlan(f"w{number}", engine, "short-chat", DEFAULT_PRESET) for number in range(workers)]
    return Fleet(plans, ProductionRouter(policy, Random(seed), classes=classes))


def _work(job: Job) -> float:
    return service(job.trace.prompt_tokens, job.trace.output_tokens)


@dataclass(frozen=True, slots=True)
class Fairness:
    """How far apart the work served to two backlogged tenants of one weight got, in tokens, and what is allowed."""

    apart: float
    largest: float  # request

    @property
    def requests_apart(self) -> float:
        """The distance in units of the largest request."""
        return self.apart / self.largest


def fairness(large_requests: int = 60, workers: int = 4, seed: int = 0) -> Fairness:
    """One tenant with prompts of 32,000 tokens, one with prompts of 200; both have everything waiting at once."""
    policy = policy_from_mapping(
        {
            "limits": {"max_in_flight_per_worker": PLACES},
            "admission": {"max_queued": 1_000_000},
            "classes": [{"name": "standard", "queue_timeout_s": 3600}],
            "default_class": "standard",
            "tenants": {"default": {"max_class": "standard"}},
        }
    )
    largest = service(LARGE, OUTPUT)
    each = round(1.2 * large_requests * largest / service(SMALL, OUTPUT))
    trace = [TraceRequest(0.0, SMALL, OUTPUT, "small")] * each
    trace += [TraceRequest(0.0, LARGE, OUTPUT, "large")] * large_requests
    jobs = _fleet(policy, {}, workers, seed).run(trace).jobs
    started = sorted((job for job in jobs if job.dispatched is not None), key=_dispatched)
    last = {job.trace.tenant: _dispatched(job) for job in started}
    served = {"large": 0.0, "small": 0.0}
    apart = 0.0
    for at, job in enumerate(started):
        now = _dispatched(job)
        if now >= min(last.values()):
            break  # one of them has nothing waiting any more
        served[job.trace.tenant] += _work(job)
        # Until the queue has formed, whoever comes first takes the free places.
        if now > 0.0 and (at + 1 == len(started) or _dispatched(started[at + 1]) > now):
            apart = max(apart, abs(served["large"] - served["small"]))
    return Fairness(apart, largest)


def _dispatched(job: Job) -> float:
    assert job.dispatched is not None
    return job.dispatched


@dataclass(frozen=True, slots=True)
class Floor:
    """What a class got while a higher one wanted more than there is: its least share of the work sent in 10 s."""

    least_share: float
    promised: float
    load: float  # wanted by the higher class, as a share of what the fleet can do


def floor(
    seconds: float = 120.0, workers: int = 4, overload: float = 1.2, promised: float = 0.02, seed: int = 0
) -> Floor:
    """Interactive requests at `overload` times what the fleet can do, and batch requests always waiting."""
    rng = Random(seed)
    capacity = _capacity(workers, seed)
    rate = overload * capacity
    policy = _floor_policy(promised)
    classes = {"people": "interactive", "jobs": "batch"}
    trace = _people(rng, rate, seconds)
    trace += [TraceRequest(0.0, *JOB, "jobs")] * round(3 * promised * capacity * seconds * MEAN_PERSON / service(*JOB))
    result = _fleet(policy, classes, workers, seed).run(sorted(trace, key=lambda one: one.arrival_s))
    return Floor(least_share(result, "jobs", seconds), promised, rate / capacity)


def least_share(result: FleetResult, tenant: str, seconds: float) -> float:
    """The least share of the work sent in any 10 s that was a tenant's, from when places are all taken."""
    started = [job for job in result.jobs if job.dispatched is not None]
    least = 1.0
    for number in range(1, int(seconds / WINDOW_S)):
        begin, end = number * WINDOW_S, (number + 1) * WINDOW_S
        sent = [job for job in started if begin <= _dispatched(job) < end]
        work = sum(map(_work, sent))
        own = sum(_work(job) for job in sent if job.trace.tenant == tenant)
        least = min(least, own / work if work else 0.0)
    return least


def _floor_policy(promised: float) -> Policy:
    return policy_from_mapping(
        {
            "limits": {"max_in_flight_per_worker": PLACES},
            "admission": {"max_queued": 1_000_000},
            "classes": [
                {"name": "interactive", "queue_timeout_s": 5, "ttft_slo_s": 2.0, "tpot_slo_s": 0.1},
                {"name": "batch", "queue_timeout_s": 3600, "floor": promised},
            ],
            "default_class": "interactive",
            "tenants": {"default": {"max_class": "interactive"}},
        }
    )


def _people(rng: Random, rate: float, seconds: float) -> list[TraceRequest]:
    found, now = [], 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        found.append(TraceRequest(now, rng.choice((200, 600, 1500)), rng.choice((40, 120, 250)), "people"))
    return found


def _capacity(workers: int, seed: int) -> float:
    """Interactive requests a second that the fleet can do."""
    seconds = 40.0
    trace = _people(Random(seed + 1), 40.0 * workers, seconds)
    result = _fleet(_floor_policy(0.0), {"people": "interactive"}, workers, seed).run(trace)
    ended = [job for job in result.jobs if job.finished is not None and WINDOW_S <= job.finished < seconds]
    return len(ended) / (seconds - WINDOW_S)
