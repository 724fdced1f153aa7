"""`headrace top`: the fleet as it is now, again and again, in one screen of the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from gateway.admin_client import AdminError
from gateway.cli_base import gateway_at
from gateway.cli_output import Failure, Output
from gateway.cli_tables import WIDTH, new_table, number, percent, pool_table, seconds

MAX_WORKERS = 200
BAR = 6
LOOK_S = 5.0


def watch(admin_url: str, interval_s: float, count: int | None, out: Output) -> int:
    """Show it until Ctrl-C, or `count` times; the exit status."""
    gateway = gateway_at(out, admin_url)
    console = Console()
    if out.as_json or not console.is_terminal:
        return _print(lambda: gateway.get("/admin/v1/fleet", timeout_s=LOOK_S), interval_s, count or 1, out)
    seen, since = None, time.monotonic()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            left = count
            while left is None or left > 0:
                try:
                    seen, since, lost = gateway.get("/admin/v1/fleet", timeout_s=LOOK_S), time.monotonic(), ""
                except AdminError as error:
                    if seen is None:
                        raise Failure(str(error)) from None
                    lost = f"{error} (this is {time.monotonic() - since:.0f} s old)"
                live.update(screen(seen, lost), refresh=True)
                left = None if left is None else left - 1
                if left != 0:
                    time.sleep(interval_s)
    except KeyboardInterrupt:
        pass
    return 0


def _print(look: Any, interval_s: float, count: int, out: Output) -> int:
    """Without a terminal: one value a line, or plain text."""
    for turn in range(count):
        if turn:
            time.sleep(interval_s)
        try:
            seen = look()
        except AdminError as error:
            raise Failure(str(error)) from None
        if out.as_json:
            out.value(seen)
        else:
            Console(width=WIDTH).print(screen(seen, ""))
    return 0


def screen(fleet: Mapping[str, Any], lost: str) -> RenderableType:
    """One look at a fleet; `lost` says why there is no newer one."""
    queue, revision = fleet["queue"], fleet["revision"]
    head = Text.assemble(
        ("headrace ", "bold"),
        (escape(fleet["why"]), "green" if fleet["ready"] else "red"),
        f"   revision {revision['number']}   running {fleet['in_flight']}   waiting {queue['queued']}"
        f" (oldest {seconds(queue['oldest_wait_s'])})   ends {queue['drain_per_s']:.1f}/s",
    )
    parts: list[RenderableType] = [Text(lost, "bold red")] if lost else []
    parts += [head, Text(), pool_table(fleet["pools"]), Text(), _workers(fleet["workers"])]
    if queue["by_class"]:
        parts += [Text(), _classes(queue["by_class"])]
    if latency := fleet.get("latency"):
        parts += [Text(), _latency(latency)]
    return Group(*parts)


def _workers(workers: list[Mapping[str, Any]]) -> RenderableType:
    table = new_table("worker", "pool", "state", "in flight", "#limit", "KV", "#age", "#failures")
    for worker in workers[:MAX_WORKERS]:
        limit, age = worker["limit"], worker["signal_age_s"]
        table.add_row(
            escape(worker["id"]),
            escape(worker["pool"]),
            Text(worker["state"], "green" if worker["state"] == "ready" else "yellow"),
            f"{bar(worker['in_flight'] / limit if limit else 0.0)} {worker['in_flight']}",
            number(limit),
            f"{bar(worker['kv_usage'] or 0.0)} {percent(worker['kv_usage'])}",
            seconds(age),
            number(worker["failures"]),
        )
    if len(workers) > MAX_WORKERS:
        table.add_row(f"… {len(workers) - MAX_WORKERS} more", *[""] * 7)
    return table


def _classes(classes: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = new_table("class", "#waiting", "#oldest")
    for name, one in classes.items():
        table.add_row(escape(name), number(one["queued"]), seconds(one["oldest_wait_s"]))
    return table


def _latency(latency: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = new_table("class", "#requests", "#TTFT p50", "#TTFT p95", "#rejected", "#failed")
    for name, one in latency.items():
        table.add_row(
            escape(name),
            number(one["requests"]),
            seconds(one["ttft_p50_s"]),
            seconds(one["ttft_p95_s"]),
            number(one["rejected"]),
            number(one["failed"]),
        )
    return table


def bar(share: float) -> str:
    """A share as a bar of fixed width."""
    filled = round(min(max(share, 0.0), 1.0) * BAR)
    return "█" * filled + "░" * (BAR - filled)
