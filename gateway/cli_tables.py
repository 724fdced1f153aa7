"""Tables for people. Programs use `--json`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from workers.plain_tables import new_table, print_table

__all__ = ["new_table", "print_table"]


def number(value: float | None) -> str:
    """A count for reading; `-` where it is unknown."""
    return "-" if value is None else f"{value:,.0f}"


def percent(part: float | None) -> str:
    """A share of the whole; `-` where it is unknown."""
    return "-" if part is None else f"{part:.0%}"


def seconds(value: float | None) -> str:
    """A time for reading."""
    return "-" if value is None else f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def worker_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    """Every worker: what it is and how busy."""
    table = new_table(
        *("worker", "pool", "model", "state", "#running", "#limit", "#context", "#KV tokens", "#KV used", "url"),
        least=("url", "KV tokens", "context", "KV used", "model", "limit", "pool", "running"),
    )
    for worker in workers:
        table.add_row(
            escape(worker["id"]),
            escape(worker["pool"]),
            escape(", ".join(worker["models"])),
            worker["state"],
            number(worker["in_flight"]),
            number(worker["limit"]),
            number(worker["max_model_len"]),
            number(worker["kv_capacity_tokens"]),
            percent(worker["kv_usage"]),
            escape(worker["url"] or "-"),
        )
    return table


def pool_table(pools: Sequence[Mapping[str, Any]]) -> Table:
    """Every pool: its workers, their load, its queue."""
    table = new_table(
        *("pool", "#workers", "#ready", "#running", "#limit", "#queued", "#oldest wait", "#KV used", "models"),
        least=("models", "limit", "KV used", "oldest wait"),
    )
    for pool in pools:
        capacity = pool["kv_capacity_tokens"]
        table.add_row(
            escape(pool["name"]),
            *(number(pool[name]) for name in ("workers", "ready", "in_flight", "limit", "queued")),
            seconds(pool["oldest_wait_s"]),
            percent(pool["kv_used_tokens"] / capacity if capacity else None),
            escape(", ".join(pool["models"])),
        )
    return table


def attempt_table(attempts: Sequence[Mapping[str, Any]]) -> Table:
    """Every attempt of a request: where it went, and what else there was to choose from (score in seconds, and the age
    of the worker's last report)."""
    table = new_table(
        *("#attempt", "worker", "pool", "#queued", "waited for", "#score", "outcome", "considered"),
        least=("pool", "waited for", "queued", "score"),
        folds=True,
    )
    for place, attempt in enumerate(attempts, 1):
        table.add_row(
            str(place),
            escape(attempt["worker"]),
            escape(attempt["pool"]),
            seconds(attempt["queued_s"]),
            (attempt.get("wait_cause") or "").replace("_", " "),  # a replica of an earlier version tells none
            f"{attempt['score']:.3f}",
            attempt["outcome"] or "running",
            escape(", ".join(map(_candidate, attempt["considered"]))),
        )
    return table


def estimates(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each attempt was expected to cost, a line each."""
    return [
        f"attempt {place} was estimated at {_estimate(attempt['estimate'])}"
        for place, attempt in enumerate(attempts, 1)
        if "estimate" in attempt
    ]


def _estimate(estimate: Mapping[str, Any]) -> str:
    tokens = f"{estimate['prompt_tokens']} + {estimate['output_tokens']} tokens"
    cached = f" ({estimate['cached_tokens']} cached)" if estimate["cached_tokens"] else ""
    seconds_ = f"{estimate['prefill_s']:.3f} + {estimate['decode_s']:.3f} s"
    return f"{tokens}{cached}: {seconds_}, {estimate['kv_tokens']} tokens of KV"


def _candidate(each: Mapping[str, Any]) -> str:
    age_s = each.get("signal_age_s")
    return f"{each['worker']} {each['score']:.3f}" + ("" if age_s is None else f" ({age_s:.1f} s)")


def wait_facts(waiting: Mapping[str, Any]) -> dict[str, Any]:
    """Why a request waits, a line each."""
    estimate = waiting["estimate"]
    return {
        "state": "waiting",
        "class_name": waiting["class"],
        "pools": ", ".join(waiting["pools"]),
        "waits_for": waiting["cause"].replace("_", " "),
        "waited_s": waiting["waited_s"],
        "left_s": waiting["left_s"],
        "ahead": waiting["ahead"],
        "estimate": f"{estimate['prompt_tokens']} + {estimate['output_tokens']} tokens",
        "workers": ", ".join(f"{each['worker']}: {each['cause'].replace('_', ' ')}" for each in waiting["workers"]),
    }


def key_table(keys: Sequence[Mapping[str, Any]]) -> Table:
    """Every client key."""
    table = new_table("key", "tenant", "trusted", "created", "state", "note", least=("trusted", "created"))
    for key in keys:
        table.add_row(
            key["id"],
            escape(key["tenant"]),
            "yes" if key["trusted"] else "no",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(key["created"])),
            "good" if key["revoked"] is None else "revoked",
            escape(key["note"]),
        )
    return table


def revision_table(revisions: Sequence[Mapping[str, Any]]) -> Table:
    """The policy's history."""
    table = new_table("#revision", "digest", "applied", "by", "source", "note", least=("source", "by"), folds=True)
    for one in revisions:
        source = one["source"] if one["reverts"] is None else f"{one['source']} to {one['reverts']}"
        table.add_row(
            str(one["number"]),
            one["digest"],
            moment(one["created"]),
            escape(one["author"]),
            source,
            escape(one["note"]),
        )
    return table


def tenant_table(tenants: Sequence[Mapping[str, Any]]) -> Table:
    """Every tenant: its share, its limits, what it has now."""
    table = new_table(
        *("tenant", "#weight", "highest class", "#running", "#of", "#waiting", "#at most", "#served tokens"),
        least=("weight", "at most", "of", "highest class"),
    )
    for one in tenants:
        table.add_row(
            escape(one["name"]),
            f"{one['weight']:g}",
            escape(one["max_class"] or "any"),
            number(one["in_flight"]),
            number(one["max_in_flight"]),
            number(one["queued"]),
            number(one["max_queued"]),
            number(sum(one["served_tokens"].values())),
        )
    return table


def audit_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Changes, and those that were refused."""
    table = new_table("##", "when", "who", "role", "from", "what", "on", "result", least=("from", "role"), folds=True)
    for one in entries:
        words = (str(one.get(name, "")) for name in ("who", "role", "peer", "action", "target", "result"))
        table.add_row(str(one.get("sequence", "")), moment(one.get("at", 0.0)), *map(escape, words))
    return table


def moment(at: float) -> str:
    """A time of day for reading."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
