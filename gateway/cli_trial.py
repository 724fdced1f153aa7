"""`headrace policy canary|shadow|trial|promote|withdraw`: a policy tried out beside the one in force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
from rich.markup import escape

from gateway.admin_client import AdminError
from gateway.cli_base import gateway_at, tell
from gateway.cli_output import Output
from gateway.cli_policy_change import PATIENCE_S, V1, changed, read, refused, user


def begin(mode: str, file: Path, share: str, note: str, author: str | None, admin_url: str, out: Output) -> int:
    """Try FILE; the exit status."""
    raw = read(file)
    said = {"mode": mode, "share": share, "note": note, "author": author or user()}
    path = f"{V1}/policy:try?{urlencode({name: value for name, value in said.items() if value})}"
    try:
        found = gateway_at(out, admin_url, change=True).post(path, raw, timeout_s=PATIENCE_S)
    except AdminError as error:
        return refused(error, file, raw, out)
    if found["replaced"] is not None and not out.as_json:
        replaced = found["replaced"]
        click.echo(f"In place of the {replaced['mode']} of {replaced['revision']['author']}, which has ended.")
    show(found, out)
    return 0


def promote(force: bool, note: str, author: str | None, admin_url: str, out: Output) -> int:
    """Make what is tried current; the exit status."""
    gateway = gateway_at(out, admin_url, change=True)
    said = {"note": note, "author": author or user()}
    path = f"{V1}/policy:promote{'?force=1' if force else ''}"
    return changed(lambda: gateway.call("POST", path, said, timeout_s=PATIENCE_S), out)


def withdraw(admin_url: str, out: Output) -> int:
    """End the trial and show how it went; the exit status."""
    found = tell(out, admin_url, f"{V1}/policy:withdraw")
    if out.as_json:
        out.value(found)
        return 0
    if found["ended"] is not None:
        click.echo(f"The {found['ended']['mode']} has ended, and decides nothing any more. This is how it went.")
        show({"trial": found["ended"]}, out)
    if found["pending"]:
        click.echo("Redis does not answer: the other gateways go on with it until it does.", err=True)
    return 0


def show(found: Mapping[str, Any], out: Output) -> None:
    """A trial and its comparison."""
    trial = found["trial"]
    if out.as_json:
        out.value(found)
        return
    if trial is None:
        click.echo("Nothing is being tried.")
        return
    revision = trial["revision"]
    of = f" for {trial['share']:.0%} of the requests" if trial["mode"] == "canary" else ""
    at = f" at {trial['gateways']} gateways" if trial["gateways"] > 1 else ""
    against = f"against revision {trial['base']}, for {trial['age_s']:.0f} s{at}"
    click.echo(f"{trial['mode']}{of}: digest {revision['digest']} by {revision['author']}, {against}\n")
    _print(_arms(trial) if trial["mode"] == "canary" else _differences(trial))


def _print(table: Any) -> None:
    from gateway.cli_tables import print_table

    print_table(table)


def _arms(trial: Mapping[str, Any]) -> Any:
    from gateway.cli_tables import new_table, number, seconds

    columns = ("#requests", "#ok", "#failed", "#rejected", "#TTFT p50", "#TTFT p95", "#mean total")
    table = new_table("side", *columns)
    for name, arm in (("canary", trial["trial"]), ("the rest", trial["rest"])):
        counts = (number(arm[key]) for key in ("requests", "ok", "failed", "rejected"))
        times = (seconds(arm[key]) for key in ("ttft_p50_s", "ttft_p95_s", "e2e_mean_s"))
        table.add_row(name, *counts, *times)
    return table


def _differences(trial: Mapping[str, Any]) -> Any:
    from gateway.cli_tables import new_table, number

    table = new_table("what", "now", "would be", "#requests")
    for one in trial["differences"]:
        table.add_row(one["what"], escape(one["from"]), escape(one["to"]), number(one["requests"]))
    table.add_row("any difference", "", "", f"{number(trial['different'])} of {number(trial['seen'])}")
    return table
