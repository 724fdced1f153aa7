"""What the admin plane shows, as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.fleet_sync import Known
    from gateway.policy_store import PolicyStore
    from gateway.recent import Attempt, Story
    from gateway.records import RequestRecord
    from gateway.scheduling.causes import Wait
    from gateway.scheduling.snapshot import FleetSnapshot, QueueSnapshot, TenantSnapshot, WorkerSnapshot
    from policies.document import Policy
    from policies.revisions import Revision
    from policies.sections import PoolPolicy

View = dict[str, Any]


def worker_view(worker: WorkerSnapshot, known: Known | None) -> View:
    """One incarnation of a worker: state, load, limit, KV, and where it is known from."""
    view: View = dataclasses.asdict(worker)
    capacity = worker.kv_capacity_tokens
    view["state"] = str(worker.state)
    view["kv_usage"] = round(worker.kv_used_tokens / capacity, 4) if capacity else None
    report = known.report if known is not None else None
    view["url"] = known.url if known is not None else ""
    view["source"] = known.source if known is not None else ""
    view["connections"] = known.connections.open_connections if known is not None else 0
    spec = known.spec() if known is not None else None
    view["max_num_seqs"] = spec.max_num_seqs if spec is not None else None
    view["preset"] = spec.preset if spec is not None else None
    view["report"] = None
    if report is not None:
        view["report"] = {
            "engine": report.engine,
            "version": report.version,
            "state": report.state,
            "sequence": report.sequence,
            "kv_usage": report.kv_usage,
            "running": report.running,
            "waiting": report.waiting,
            "preemptions": report.preemptions,
            "prompt_tokens": report.prompt_tokens,
            "generation_tokens": report.generation_tokens,
            "prefix_queries": report.prefix_queries,
            "prefix_hits": report.prefix_hits,
        }
    return view


def pool_views(
    fleet: FleetSnapshot, pools: Mapping[str, PoolPolicy], budgets: Mapping[str, int] = MappingProxyType({})
) -> list[View]:
    """Every pool of the policy, and those only workers name: its workers and queue in one line each."""
    names = [*pools, *sorted({worker.pool for worker in fleet.workers} - set(pools))]
    return [_pool_view(name, fleet, pools.get(name), budgets.get(name)) for name in names]


def _pool_view(name: str, fleet: FleetSnapshot, policy: PoolPolicy | None, budget: int | None) -> View:
    workers = [worker for worker in fleet.workers if worker.pool == name]
    queues = [queue for queue in fleet.queues if queue.pool == name]
    known_kv = [worker for worker in workers if worker.kv_capacity_tokens]
    return {
        "name": name,
        "in_policy": policy is not None,
        "max_budget_tokens": None if policy is None else policy.max_budget_tokens,
        "tuned_budget_tokens": budget,  # what holds instead where the policy lets it be tuned
        "workers": len({worker.id for worker in workers}),
        "ready": sum(worker.state == "ready" for worker in workers),
        "models": sorted({model for worker in workers for model in worker.models}),
        "leases": sum(worker.leases for worker in workers),
        "in_flight": sum(worker.in_flight for worker in workers),
        "limit": sum(worker.limit for worker in workers),
        "kv_used_tokens": sum(worker.kv_used_tokens for worker in known_kv),
        "kv_capacity_tokens": sum(worker.kv_capacity_tokens or 0 for worker in known_kv),
        "queued": sum(queue.queued for queue in queues),
        "oldest_wait_s": max((queue.oldest_wait_s for queue in queues), default=0.0),
    }


def queue_views(fleet: FleetSnapshot, classes: Sequence[str]) -> list[View]:
    """What waits: one entry for each class, home pool and tenant that has something."""
    return [
        {
            "class": class_name(queue.klass, classes),
            "pool": queue.pool,
            "tenant": queue.tenant,
            "queued": queue.queued,
            "bytes": queue.bytes,
            "oldest_wait_s": queue.oldest_wait_s,
        }
        for queue in fleet.queues
    ]


def queue_sums(fleet: FleetSnapshot, classes: Sequence[str]) -> View:
    """The same summed up: in all, by class, by pool and by tenant."""

    def by(name_of: Callable[[QueueSnapshot], str]) -> dict[str, View]:
        found: dict[str, View] = {}
        for queue in fleet.queues:
            each = found.setdefault(name_of(queue), {"queued": 0, "bytes": 0, "oldest_wait_s": 0.0})
            each["queued"] += queue.queued
            each["bytes"] += queue.bytes
            each["oldest_wait_s"] = max(each["oldest_wait_s"], queue.oldest_wait_s)
        return found

    return {
        "queued": fleet.queued,
        "bytes": fleet.queued_bytes,
        "oldest_wait_s": fleet.oldest_wait_s,
        "drain_per_s": fleet.drain_per_s,
        "by_class": by(lambda queue: class_name(queue.klass, classes)),
        "by_pool": by(lambda queue: queue.pool),
        "by_tenant": by(lambda queue: queue.tenant),
    }


def worker_views(fleet: FleetSnapshot, known: Mapping[str, Known]) -> list[View]:
    """Every worker, the ones that are ending included, in order of their ids."""
    return [
        worker_view(worker, known.get(worker.id))
        for worker in sorted(fleet.workers, key=lambda worker: (worker.pool, worker.id, worker.state == "gone"))
    ]


SHOWN_OF_REVISION = ("number", "digest", "author", "note", "created", "source", "reverts", "chain")


def revision_view(revision: Revision) -> View:
    """The policy's version, without the document."""
    return {name: getattr(revision, name) for name in SHOWN_OF_REVISION}


def record_view(record: Mapping[str, Any]) -> View:
    """The same of a revision in the history."""
    return {name: record[name] for name in SHOWN_OF_REVISION}


def policy_state(store: PolicyStore) -> View:
    """Where the policy comes from, and whether all replicas have it."""
    revision, seed = store.current().revision, store.seed
    own = {"id": store.replica, "number": revision.number, "digest": revision.digest, "age_s": 0.0}
    replicas: list[View] = [{**own, "rejected": store.refused_remote, "self": True}]
    replicas += [{**dataclasses.asdict(one), "age_s": round(one.age_s, 3), "self": False} for one in store.replicas]
    latest = max(one["number"] for one in replicas)
    file = None
    if seed is not None:
        file = {
            "path": str(seed.file.path),
            "digest": seed.digest,
            "in_use": not store.drift,
            "drift": store.drift,
            "missing": seed.file.gone,
            "rejected": seed.rejected,
            "rejections": seed.rejections,
            "guarded": seed.guarded,
        }
    return {
        "revision": revision_view(revision),
        "etag": revision.etag,
        "file": file,
        "store": "redis" if store.shares else "local",
        "lag_s": round(store.lag_s(), 3),
        "latest": latest,
        "converged": len({(one["number"], one["digest"]) for one in replicas}) == 1 and not store.lag_s(),
        "replicas": replicas,
        "journal_error": store.journal_error,
        "history_verified": store.history.broken_at() is None,
        "history_missing": store.history.missing,
    }


def tenant_views(seen: Sequence[TenantSnapshot], policy: Policy) -> list[View]:
    """Every tenant of the policy with its limits, and those that were seen beside them."""
    by_name = {one.name: one for one in seen}
    classes = [each.name for each in policy.classes]
    found = []
    for name in dict.fromkeys((*policy.tenants, *by_name)):
        rules, one = policy.tenant(name), by_name.get(name)
        served = one.served if one is not None else {}
        tokens = {
            classes[klass]: round(count * rules.weight) for klass, count in served.items() if klass < len(classes)
        }
        found.append(
            {
                "name": name,
                "in_policy": name in policy.tenants,
                **rules.model_dump(mode="json"),
                "in_flight": one.in_flight if one is not None else 0,
                "queued": one.queued if one is not None else 0,
                "served_tokens": tokens,
            }
        )
    return found


def request_view(record: RequestRecord) -> View:
    """What is shown of a request that has ended; not where it came from."""
    view = {**dataclasses.asdict(record), "outcome": str(record.outcome)}
    del view["peer"]
    return view


def story_view(request_id: str, story: Story, classes: Sequence[str], waiting: Wait | None = None) -> View:
    """Why a request went where it did, why it waits, and how it ended."""
    record = story.record
    request = None
    if record is not None:
        request = request_view(record)
    return {
        "request_id": request_id,
        "finished": record is not None,
        "request": request,
        "waiting": None if waiting is None else wait_view(waiting, classes),
        "attempts": [attempt_view(attempt, classes) for attempt in story.attempts],
    }


def attempt_view(attempt: Attempt, classes: Sequence[str]) -> View:
    """One lease: what it was estimated to cost, who was considered at what score and on how old a report."""
    considered = [
        {"worker": worker, "score": score, "signal_age_s": None if at is None else max(attempt.at - at, 0.0)}
        for worker, score, at in (attempt.choice.told() if attempt.choice is not None else ())
    ]
    return {
        "worker": attempt.worker,
        "pool": attempt.pool,
        "class": class_name(attempt.klass, classes),
        "queued_s": attempt.queued_s,
        "wait_cause": attempt.wait_cause or None,
        "score": attempt.score,
        "considered": considered,
        "estimate": {
            "prompt_tokens": attempt.prompt_tokens,
            "cached_tokens": attempt.cached_tokens,
            "output_tokens": attempt.output_tokens,
            "prefill_s": attempt.cost.prefill_s,
            "decode_s": attempt.cost.decode_s,
            "kv_tokens": attempt.cost.kv_tokens,
            "ttft_s": attempt.ttft_s or None,
        },
        "canary": attempt.canary,
        "outcome": attempt.outcome,
    }


def wait_view(waiting: Wait, classes: Sequence[str]) -> View:
    """Why a request waits now."""
    return {
        "class": class_name(waiting.klass, classes),
        "pools": list(waiting.pools),
        "cause": str(waiting.cause),
        "waited_s": waiting.waited_s,
        "left_s": waiting.left_s,
        "ahead": waiting.ahead,
        "attempts": waiting.attempts,
        "estimate": {
            "prompt_tokens": waiting.prompt_tokens,
            "output_tokens": waiting.expected_output_tokens,
            "p90_output_tokens": waiting.p90_output_tokens,
        },
        "workers": [{"worker": worker, "cause": str(cause)} for worker, cause in waiting.workers],
    }


def class_name(klass: int, classes: Sequence[str]) -> str:
    """A class by its index in the policy; the index where the policy has fewer now."""
    return classes[klass] if klass < len(classes) else str(klass)
