"""What a run of a simulated fleet comes to: goodput, latencies, fairness of load. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any, Final

from loadtest.fidelity import percentile
from loadtest.fleet import FleetResult, Job

LONG_TOKENS: Final = 8192  # prompts above are long


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer is; a refused or failed request is not good."""

    ttft_s: float = 2.0
    long_ttft_s_per_token: float = 1 / 4000  # more time for a long prompt, for each of its tokens
    tpot_s: float = 0.1

    def met(self, job: Job) -> bool:
        """Whether a request got a good answer."""
        ttft_s, tpot_s = job.ttft_s, job.tpot_s
        if ttft_s is None or tpot_s is None:
            return False
        prompt = job.trace.prompt_tokens
        allowed = self.ttft_s + (prompt * self.long_ttft_s_per_token if prompt > LONG_TOKENS else 0.0)
        return ttft_s <= allowed and tpot_s <= self.tpot_s


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of some of the requests. Goodput is a share, 0 … 1; seconds elsewhere."""

    requests: int
    goodput: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float

    @staticmethod
    def of(jobs: Seq[Job], slo: Slo) -> Group:
        """Figures of these."""
        ttft = [job.ttft_s for job in jobs if job.ttft_s is not None]
        tpot = [job.tpot_s for job in jobs if job.tpot_s is not None]
        return Group(
            len(jobs),
            sum(map(slo.met, jobs)) / len(jobs) if jobs else 1.0,
            percentile(ttft, 0.5),
            percentile(ttft, 0.9),
            percentile(ttft, 0.99),
            percentile(tpot, 0.5),
            percentile(tpot, 0.99),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run."""

    all: Group
    short: Group
    long: Group
    tenants: dict[str, Group]
    refused: dict[str, int]
    preemptions: int
    retried: int
    cached_share: float  # of prompt tokens, found in the engines' prefix caches
    busy_cv: float  # spread of the workers' busy time: standard deviation over mean
    peak_kv: float  # highest share of KV in use on any worker
    virtual_s: float

    @staticmethod
    def of(result: FleetResult, slo: Slo | None = None) -> Figures:
        """Figures of a run's result."""
        slo = slo or Slo()
        jobs = result.jobs
        tenants = sorted({job.trace.tenant for job in jobs})
        prompts = sum(worker.prompt_tokens for worker in result.workers)
        return Figures(
            Group.of(jobs, slo),
            Group.of([job for job in jobs if job.trace.prompt_tokens <= LONG_TOKENS], slo),
            Group.of([job for job in jobs if job.trace.prompt_tokens > LONG_TOKENS], slo),
            {name: Group.of([job for job in jobs if job.trace.tenant == name], slo) for name in tenants},
            dict(Counter(str(job.refused) for job in jobs if job.refused is not None)),
            sum(worker.preemptions for worker in result.workers),
            sum(job.attempts > 1 for job in jobs),
            sum(worker.cached_tokens for worker in result.workers) / prompts if prompts else 0.0,
            spread([worker.busy_s for worker in result.workers]),
            max((worker.peak_kv for worker in result.workers), default=0.0),
            result.ended,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        flat: dict[str, Any] = {}
        for name in ("all", "short", "long"):
            flat[name] = _dict(getattr(self, name))
        flat["tenants"] = {name: _dict(group) for name, group in self.tenants.items()}
        for name in ("refused", "preemptions", "retried", "cached_share", "busy_cv", "peak_kv", "virtual_s"):
            flat[name] = getattr(self, name)
        return flat


def _dict(group: Group) -> dict[str, float]:
    return {name: getattr(group, name) for name in Group.__slots__}


def spread(values: Iterable[float]) -> float:
    """Standard deviation over mean; 0 for nothing."""
    listed = list(values)
    mean = fmean(listed) if listed else 0.0
    return sqrt(fmean([(value - mean) ** 2 for value in listed])) / mean if mean else 0.0
