"""`headrace top`: the fleet as it is now, again and again, in one screen of the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateway.admin_client import AdminError
from gateway.cli_base import gateway_at
from gateway.cli_output import Failure, Output
from gateway.cli_tables import new_table, number, percent, seconds

MAX_WORKERS = 200
WIDTH = 120
"""Columns to lay it out for where the output is no terminal; what needs more takes more."""

UNBOUNDED = 10_000
BAR = 6
NARROW, WIDE = 76, 110
"""Columns of a terminal that all columns of numbers need, and the models too."""

WORKERS_HEAD = 3  # lines around the table of workers
LOOK_S = 5.0


def watch(admin_url: str, interval_s: float, count: int | None, out: Output) -> int:
    """Show it until Ctrl-C, or `count` times; the exit status."""
    gateway = gateway_at(out, admin_url)
    console = Console()
    if out.as_json or not console.is_terminal:
        return _print(lambda: gateway.get("/admin/v1/fleet", timeout_s=LOOK_S), interval_s, count or 1, out)
    seen, since = None, time.monotonic()
    try:
        # The alternate screen leaves nothing behind; who asks for so many looks wants to keep the last.
        with Live(console=console, screen=count is None, auto_refresh=False) as live:
            left = count
            while left is None or left > 0:
                try:
                    seen, since, lost = gateway.get("/admin/v1/fleet", timeout_s=LOOK_S), time.monotonic(), ""
                except AdminError as error:
                    if seen is None:
                        raise Failure(str(error)) from None
                    lost = f"{error} (this is {time.monotonic() - since:.0f} s old)"
                live.update(screen(seen, lost, console.width, console.height), refresh=True)
                left = None if left is None else left - 1
                if left != 0:
                    time.sleep(interval_s)  # what the person asked for; a command of its own
    except KeyboardInterrupt:
        pass
    return 0


def _print(look: Any, interval_s: float, count: int, out: Output) -> int:
    """Without a terminal: one value a line, or plain text."""
    for turn in range(count):
        if turn:
            time.sleep(interval_s)  # as above
        try:
            seen = look()
        except AdminError as error:
            raise Failure(str(error)) from None
        if out.as_json:
            out.value(seen)
        else:
            Console(width=UNBOUNDED).print(screen(seen, ""))
    return 0


def screen(fleet: Mapping[str, Any], lost: str, width: int = WIDTH, height: int | None = None) -> RenderableType:
    """One look at a fleet, for a terminal of that size; `lost` says why there is no newer one.

    The workers come last, those that need a look first: what does not fit on a screen is the least of it.
    """
    queue, revision = fleet["queue"], fleet["revision"]
    facts = Text(
        f"revision {revision['number']}   running {fleet['in_flight']}   waiting {queue['queued']}"
        f" (oldest {seconds(queue['oldest_wait_s'])})   ends {queue['drain_per_s']:.1f}/s"
    )
    state = Text.assemble(("headrace ", "bold"), (escape(fleet["why"]), "green" if fleet["ready"] else "red"))
    top = [Text(lost, "bold red"), state, facts] if lost else [state, facts]
    tables = [_pools(fleet["pools"], width)]
    if queue["by_class"]:
        tables.append(_classes(queue["by_class"]))
    if latency := fleet.get("latency"):
        tables.append(_latency(latency, width))
    parts: list[RenderableType] = list(top)
    for table in tables:
        parts += [Text(), table]
    used = sum(-(-len(text) // width) for text in top) + sum(table.row_count + 3 for table in tables)
    room = MAX_WORKERS if height is None else max(1, height - used - WORKERS_HEAD)
    return Group(*parts, Text(), _workers(fleet["workers"], width, min(room, MAX_WORKERS)))


def _pools(pools: list[Mapping[str, Any]], width: int) -> Table:
    wide = width >= WIDE
    table = _table("pool", "#ready", "in flight", "#waiting", "#oldest", *(["#KV"] if width >= NARROW else []))
    if wide:
        table.add_column("models")
    for pool in pools:
        capacity = pool["kv_capacity_tokens"]
        cells = [
            escape(pool["name"]),
            f"{pool['ready']}/{pool['workers']}",
            _load(pool["in_flight"], pool["limit"], width),
            number(pool["queued"]),
            seconds(pool["oldest_wait_s"]),
        ]
        if width >= NARROW:
            cells.append(percent(pool["kv_used_tokens"] / capacity if capacity else None))
        table.add_row(*cells, *([escape(", ".join(pool["models"]))] if wide else []))
    return table


def _workers(workers: list[Mapping[str, Any]], width: int, room: int) -> Table:
    full = width >= NARROW
    table = _table(
        "worker", *(["pool"] if full else []), "state", "in flight", "KV", *(["#age", "#fails"] if full else [])
    )
    shown = workers if len(workers) <= room else sorted(workers, key=_calm)[: room - 1]
    for worker in shown:
        kv = percent(worker["kv_usage"])
        table.add_row(
            escape(worker["id"]),
            *([escape(worker["pool"])] if full else []),
            Text(worker["state"], "green" if worker["state"] == "ready" else "yellow"),
            _load(worker["in_flight"], worker["limit"], width),
            f"{bar(worker['kv_usage'] or 0.0)} {kv}" if full else kv,
            *([seconds(worker["signal_age_s"]), number(worker["failures"])] if full else []),
        )
    if len(shown) < len(workers):
        table.add_row(f"… {len(workers) - len(shown)} more", *[""] * (len(table.columns) - 1))
    return table


def _calm(worker: Mapping[str, Any]) -> tuple[bool, float]:
    """Sorts workers: those that are not ready first, then the fullest."""
    return worker["state"] == "ready", -(worker["in_flight"] / worker["limit"] if worker["limit"] else 0.0)


def _load(in_flight: int, limit: int, width: int) -> str:
    words = f"{in_flight}/{limit}"
    return f"{bar(in_flight / limit if limit else 0.0)} {words}" if width >= NARROW else words


def _classes(classes: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("class", "#waiting", "#oldest")
    for name, one in classes.items():
        table.add_row(escape(name), number(one["queued"]), seconds(one["oldest_wait_s"]))
    return table


def _latency(latency: Mapping[str, Mapping[str, Any]], width: int) -> Table:
    full = width >= NARROW
    table = _table(
        "class", *(["#requests"] if full else []), "#TTFT p50", "#TTFT p95", "#rejected", *(["#failed"] if full else [])
    )
    for name, one in latency.items():
        table.add_row(
            escape(name),
            *([number(one["requests"])] if full else []),
            seconds(one["ttft_p50_s"]),
            seconds(one["ttft_p95_s"]),
            number(one["rejected"]),
            *([number(one["failed"])] if full else []),
        )
    return table


def _table(*columns: str) -> Table:
    """A table whose rows take one line each: what is too long is cut, so that a screen holds what was counted."""
    table = new_table(*columns)
    for column in table.columns:
        column.no_wrap = True
    return table


def bar(share: float) -> str:
    """A share as a bar of fixed width."""
    filled = round(min(max(share, 0.0), 1.0) * BAR)
    return "█" * filled + "░" * (BAR - filled)
