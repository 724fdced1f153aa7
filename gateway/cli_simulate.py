"""`headrace policy simulate`: what recorded traffic would have met under another policy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from gateway.admin_client import AdminError
from gateway.cli_base import gateway_at
from gateway.cli_output import Failure, Output, counted
from gateway.cli_policy import tell_problems
from gateway.cli_policy_change import read, refused
from policies.problems import PolicyError

V1 = "/admin/v1"
PATIENCE_S = 330.0  # a little more than the gateway gives it
_SPAN = re.compile(r"([0-9]{1,6})(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}
MAX_TRACE_BYTES = 512 * 1024 * 1024


def simulate(file: Path, trace: Path | None, last: str, admin_url: str, out: Output) -> int:
    """Replay and show; the exit status."""
    raw = read(file)
    span = _SPAN.fullmatch(last)
    if span is None:
        raise click.UsageError(f"--last is {last!r}; it must be as 90s, 15m or 1h.")
    last_s = int(span[1]) * _UNITS[span[2]]
    gateway = gateway_at(out, admin_url, change=True)
    try:
        if trace is None:
            path = f"{V1}/policy:simulate?{urlencode({'last': last_s})}"
            found = gateway.post(path, raw, timeout_s=PATIENCE_S)
        else:
            fleet, policy = gateway.get(f"{V1}/workers"), gateway.get(f"{V1}/policy")
            revision = gateway.get(f"{V1}/policy/revisions/{policy['revision']['number']}")
            found = replay_file(raw, revision["text"], fleet["workers"], trace)
    except AdminError as error:
        return refused(error, file, raw, out, change=False)
    except PolicyError as error:
        tell_problems(file, raw, error.problems, out)
        return 2
    show(found, out)
    return 0


def replay_file(raw: bytes, before: str, workers: Iterable[Mapping[str, Any]], trace: Path) -> dict[str, Any]:
    """Replay a file of recorded traffic here, for the workers of a running gateway. Raises `PolicyError`, `Failure`."""
    from gateway.simulation import SimulationError, Simulator
    from policies.document import parse_policy

    parse_policy(raw)
    try:
        if trace.stat().st_size > MAX_TRACE_BYTES:
            raise Failure(f"{trace} has more than {MAX_TRACE_BYTES} bytes")
        lines = trace.read_bytes().splitlines()
    except OSError as error:
        raise Failure(f"cannot read {trace}: {error.strerror or error}") from None
    specs = [_spec(worker) for worker in workers]
    try:
        return asyncio.run(Simulator().run(before, raw.decode(), specs, lines))
    except SimulationError as error:
        raise Failure(str(error)) from None


def _spec(worker: Mapping[str, Any]) -> Any:
    from gateway.scheduling.model import WorkerSpec

    return WorkerSpec(
        worker["id"],
        worker["pool"],
        frozenset(worker["models"]),
        max_model_len=worker["max_model_len"],
        max_num_seqs=worker["max_num_seqs"],
        kv_tokens=worker["kv_capacity_tokens"],
        preset=worker.get("preset"),
    )


def show(found: Mapping[str, Any], out: Output) -> None:
    """Both sides beside each other."""
    if out.as_json:
        out.value(found)
        return
    from gateway.cli_tables import print_table

    asked = counted(found["requests"], "request")
    click.echo(f"{asked} of {found['seconds']:.0f} s; {found['moved']} of them would go elsewhere.\n")
    if found["moves"]:
        print_table(moves_table(found["moves"]))
        click.echo()
    print_table(sides_table(found))
    rejects = {*found["before"]["rejects"], *found["after"]["rejects"]}
    for reason in sorted(rejects):
        before, after = (found[side]["rejects"].get(reason, 0) for side in ("before", "after"))
        click.echo(f"rejected, {reason}: {before} -> {after}")
    for pool in sorted({*found["before"]["kv_peak"], *found["after"]["kv_peak"]}):
        before, after = (found[side]["kv_peak"].get(pool, 0.0) for side in ("before", "after"))
        click.echo(f"highest KV use, {pool}: {before:.0%} -> {after:.0%}")
    click.echo()
    for note in found["notes"]:
        click.echo(f"note: {note}")


def moves_table(moves: Iterable[Mapping[str, Any]]) -> Any:
    """Requests that would go elsewhere."""
    from rich.markup import escape

    from gateway.cli_tables import new_table, number

    table = new_table("from", "to", "#requests")
    for one in moves:
        table.add_row(escape(one["from"] or "-"), escape(one["to"] or "-"), number(one["requests"]))
    return table


def sides_table(found: Mapping[str, Any]) -> Any:
    """Goodput and latency, before and after, for all, each class and each tenant."""
    from rich.markup import escape

    from gateway.cli_tables import new_table, number

    table = new_table("of", "#requests", "#goodput", "#TTFT p50", "#TTFT p95", "#TPOT p50", "#rejected")
    rows = [("all", found["before"]["all"], found["after"]["all"])]
    for kind, word in (("classes", "class"), ("tenants", "tenant")):
        before, after = found["before"][kind], found["after"][kind]
        rows += [(f"{word} {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    for name, before, after in rows:
        sides = [side for side in (before, after) if side is not None]
        table.add_row(
            escape(name),
            number(max(side["requests"] for side in sides)),
            *(_pair(before, after, key, form) for key, form in _COLUMNS),
        )
    return table


_COLUMNS = (
    ("goodput", "{:.1%}"),
    ("ttft_p50_s", "{:.3f}"),
    ("ttft_p95_s", "{:.3f}"),
    ("tpot_p50_s", "{:.4f}"),
    ("rejected", "{:d}"),
)


def _pair(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, key: str, form: str) -> str:
    texts = ["-" if side is None or side[key] is None else form.format(side[key]) for side in (before, after)]
    return texts[0] if texts[0] == texts[1] else " -> ".join(texts)
