"""Tables for people. Programs use `--json`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 120  # where the output is no terminal that says how wide it is


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, without colours where there is none."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(table)


def new_table(*columns: str) -> Table:
    """An empty table; names that begin with `#` are numbers, to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    return table


def number(value: float | None) -> str:
    """A count for reading; `-` where it is unknown."""
    return "-" if value is None else f"{value:,.0f}"


def share(part: float | None, whole: float | None) -> str:
    """How much of something is used."""
    return "-" if part is None or not whole else f"{part / whole:.0%}"


def worker_table(fleet: Mapping[str, Any]) -> Table:
    """Every worker: what it is and how busy."""
    table = new_table(
        "worker", "pool", "model", "state", "#running", "#limit", "#context", "#KV tokens", "#KV used", "url"
    )
    for worker in fleet["workers"]:
        table.add_row(
            escape(worker["id"]),
            escape(worker["pool"]),
            escape(", ".join(worker["models"])),
            worker["state"],
            number(worker["in_flight"]),
            number(worker["limit"]),
            number(worker["max_model_len"]),
            number(worker["kv_capacity_tokens"]),
            share(worker["kv_used_tokens"], worker["kv_capacity_tokens"]),
            escape(worker["url"]),
        )
    return table


def pool_table(fleet: Mapping[str, Any]) -> Table:
    """Every pool: its workers, their load, its queue."""
    table = new_table("pool", "#workers", "#ready", "#running", "#limit", "#queued", "#oldest wait")
    for pool in pools_of(fleet):
        table.add_row(
            escape(pool["pool"]),
            *(number(pool[name]) for name in ("workers", "ready", "running", "limit", "queued")),
            f"{pool['oldest_wait_s']:.1f} s",
        )
    return table


def pools_of(fleet: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fleet summed up by pool, in the order of their names."""
    pools: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"workers": 0, "ready": 0, "running": 0, "limit": 0, "queued": 0, "oldest_wait_s": 0.0}
    )
    for worker in fleet["workers"]:
        pool = pools[worker["pool"]]
        pool["workers"] += 1
        pool["ready"] += worker["state"] == "ready"
        pool["running"] += worker["in_flight"]
        pool["limit"] += worker["limit"]
    for queue in fleet["queues"]:
        pool = pools[queue["pool"]]
        pool["queued"] += queue["queued"]
        pool["oldest_wait_s"] = max(pool["oldest_wait_s"], queue["oldest_wait_s"])
    return [{"pool": name, **pools[name]} for name in sorted(pools)]


def key_table(keys: Sequence[Mapping[str, Any]]) -> Table:
    """Every client key."""
    table = new_table("key", "tenant", "trusted", "created", "state", "note")
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
