"""The views of several processes as one. Pure: what each of them answers comes in, one answer goes out.

Work, places and queues add up; what all see of the same thing (a worker's state, a policy's revision) is taken from
the first, ages from the eldest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

View = dict[str, Any]

WORKER_SUMS: Final = (
    "leases", "in_flight", "limit", "slots", "booked_prefill_s", "booked_decode_s", "booked_kv_tokens", "connections",
)  # fmt: skip
POOL_SUMS: Final = ("leases", "in_flight", "limit", "queued")
OLDEST: Final = "oldest_wait_s"


def join_workers(answers: Sequence[View]) -> View:
    """`/admin/v1/workers`."""
    return {"workers": _grouped(answers, "workers", ("id", "incarnation"), WORKER_SUMS)}


def join_pools(answers: Sequence[View]) -> View:
    """`/admin/v1/pools`."""
    return {"pools": _grouped(answers, "pools", ("name",), POOL_SUMS)}


def join_fleet(answers: Sequence[View]) -> View:
    """`/admin/v1/fleet`. Ready means: one of them is."""
    first = next((answer for answer in answers if answer.get("ready")), answers[0])
    return {
        **first,
        "processes": len(answers),
        "ready": any(answer.get("ready") for answer in answers),
        "pools": join_pools(answers)["pools"],
        "workers": join_workers(answers)["workers"],
        "queues": _grouped(answers, "queues", ("class", "pool", "tenant"), ("queued", "bytes")),
        "queue": _added([answer.get("queue") or {} for answer in answers]),
        "in_flight": sum(answer.get("in_flight") or 0 for answer in answers),
        "latency": join_latency([answer.get("latency") or {} for answer in answers]),
    }


def join_latency(answers: Sequence[View]) -> View:
    """Latencies by class. Requests add up; of percentiles, which do not, the slowest process's is told."""
    found: View = {}
    for classes in answers:
        for name, each in classes.items():
            sums = found.setdefault(name, dict.fromkeys(each))
            for key, value in each.items():
                if value is not None:
                    before = sums.get(key) or 0
                    sums[key] = max(before, value) if key.endswith("_s") else before + value
    return found


def join_history(answers: Sequence[View]) -> View:
    """`/admin/v1/history`: step by step, as `join_latency`."""
    steps: dict[int, list[View]] = {}
    for answer in answers:
        for step in answer.get("steps") or ():
            steps.setdefault(step["number"], []).append(step)
    joined = [
        {**same[0], "classes": join_latency([step["classes"] for step in same])} for _, same in sorted(steps.items())
    ]
    return {**answers[0], "steps": joined}


def join_tenants(answers: Sequence[View]) -> View:
    """`/admin/v1/tenants`: every number that is not a limit adds up."""
    sums = ("in_flight", "queued", "served_tokens")
    return {**answers[0], "tenants": _grouped(answers, "tenants", ("name",), sums)}


JOINED: Final[dict[str, Callable[[Sequence[View]], View]]] = {
    "/admin/v1/fleet": join_fleet,
    "/admin/v1/history": join_history,
    "/admin/v1/pools": join_pools,
    "/admin/v1/workers": join_workers,
    "/admin/v1/tenants": join_tenants,
}


def _grouped(answers: Sequence[View], name: str, keys: tuple[str, ...], sums: tuple[str, ...]) -> list[View]:
    """The entries of all answers' list `name`, those with the same `keys` as one."""
    found: dict[tuple[Any, ...], View] = {}
    for answer in answers:
        for entry in answer.get(name) or ():
            identity = tuple(entry.get(key) for key in keys)
            before = found.get(identity)
            if before is None:
                found[identity] = dict(entry)
                continue
            for key in sums:
                if isinstance(entry.get(key), (int, float)):
                    before[key] = (before.get(key) or 0) + entry[key]
                elif isinstance(entry.get(key), dict):
                    before[key] = _added([before.get(key) or {}, entry[key]])
            if OLDEST in entry:
                before[OLDEST] = max(before.get(OLDEST) or 0.0, entry[OLDEST])
    return list(found.values())


def _added(values: Sequence[View]) -> View:
    """Nested sums of numbers; the longest wait is the longest."""
    found: View = {}
    for value in values:
        for key, one in value.items():
            if isinstance(one, dict):
                found[key] = _added([found.get(key) or {}, one])
            elif isinstance(one, (int, float)) and not isinstance(one, bool):
                before = found.get(key) or 0
                found[key] = max(before, one) if key == OLDEST else before + one
            else:
                found.setdefault(key, one)
    return found
