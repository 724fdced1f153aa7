"""Commands that look at and steer a running fleet: workers by hand, tenants, the audit log, a live view."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli_base import admin_url_option, ask, json_option, read_settings, tell
from gateway.cli_output import Failure, Output, counted

POLL_S = 0.25

worker_argument = click.argument("worker")


def worker_path(worker: str, action: str = "") -> str:
    """The path of a worker, or of what can be done with it."""
    return f"/admin/v1/workers/{quote(worker, safe='')}{action}"


@click.command()
@worker_argument
@click.option("--wait", "wait_s", type=click.FloatRange(0), metavar="SECONDS", help="Wait until it is empty.")
@admin_url_option
@json_option
def drain(worker: str, wait_s: float | None, admin_url: str, as_json: bool) -> None:
    """Send WORKER nothing new; what runs there ends."""
    out = Output(as_json)
    view = tell(out, admin_url, worker_path(worker, ":drain"))
    if wait_s is not None:
        view = _wait_empty(out, admin_url, view, wait_s)
    _show(view, out)
    if wait_s is not None and view["leases"]:
        left = counted(view["leases"], "request")
        raise Failure(f"{left} still {'runs' if view['leases'] == 1 else 'run'} on {worker} after {wait_s:g} s")


def _wait_empty(out: Output, admin_url: str, view: Mapping[str, Any], wait_s: float) -> Mapping[str, Any]:
    """Look until nothing runs there; the last look."""
    until, told = time.monotonic() + wait_s, -1
    while view["leases"] and time.monotonic() < until:
        if view["leases"] != told and not out.as_json:
            told = view["leases"]
            click.echo(f"{view['id']}: {told} still running", err=True)
        time.sleep(POLL_S)  # a command of its own: nothing else runs in it
        view = ask(out, admin_url, worker_path(view["id"]))
    return view


@click.command()
@worker_argument
@admin_url_option
@json_option
def undrain(worker: str, admin_url: str, as_json: bool) -> None:
    """Give WORKER work again."""
    out = Output(as_json)
    _show(tell(out, admin_url, worker_path(worker, ":undrain")), out)


# An unknown option is PLACES then, so that -3 is judged as what it is meant to be.
@click.command(context_settings={"ignore_unknown_options": True})
@worker_argument
@click.argument("places")
@admin_url_option
@json_option
def cap(worker: str, places: str, admin_url: str, as_json: bool) -> None:
    """Let WORKER hold at most PLACES requests; `none` takes the cap off."""
    out = Output(as_json)
    if places.lower() == "none":
        most = None
    elif places.isascii() and places.isdigit():
        most = int(places)
    else:
        raise click.UsageError(f"PLACES must be a whole number from 0 on, or none; got {places!r}.")
    _show(tell(out, admin_url, worker_path(worker, ":cap"), {"max_in_flight": most}), out)


@click.command()
@worker_argument
@admin_url_option
@json_option
def eject(worker: str, admin_url: str, as_json: bool) -> None:
    """Take WORKER out of rotation until it is let back in."""
    out = Output(as_json)
    _show(tell(out, admin_url, worker_path(worker, ":eject")), out)


@click.command()
@worker_argument
@admin_url_option
@json_option
def readmit(worker: str, admin_url: str, as_json: bool) -> None:
    """Let WORKER back in, whatever put it out."""
    out = Output(as_json)
    _show(tell(out, admin_url, worker_path(worker, ":readmit")), out)


def _show(view: Mapping[str, Any], out: Output) -> None:
    if out.as_json:
        out.value(view)
        return
    said = view["operator"]
    capped = f", capped at {said['cap']}" if said["cap"] is not None else ""
    click.echo(f"{view['id']}: {view['state']}, {view['leases']} running, limit {view['limit']}{capped}")


@click.command()
@admin_url_option
@json_option
def tenants(admin_url: str, as_json: bool) -> None:
    """Show the tenants: limits, what runs and waits."""
    from gateway.cli_tables import tenant_table

    out = Output(as_json)
    out.table(ask(out, admin_url, "/admin/v1/tenants")["tenants"], tenant_table)


@click.command()
@click.option("--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds a refresh.")
@click.option("--count", type=click.IntRange(1), help="So many refreshes; default: until Ctrl-C.")
@admin_url_option
@json_option
def top(interval: float, count: int | None, admin_url: str, as_json: bool) -> None:
    """Watch the fleet live: pools, workers, queues, latency, rejects."""
    from gateway.cli_top import watch

    raise SystemExit(watch(admin_url, interval, count, Output(as_json)))


@click.group()
def audit() -> None:
    """Read and verify the record of changes."""


NOTHING_YET = "no changes recorded yet in {}"


def _audit_file(out: Output, state_dir: str | None) -> Path:
    return read_settings(out, None, {"state_dir": state_dir}).state_dir / "audit.jsonl"


audit_dir_option = click.option("--state-dir", metavar="DIR", help="Where it is; default ~/.local/state/headrace.")


@audit.command("show")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@audit_dir_option
@json_option
def audit_show(limit: int, state_dir: str | None, as_json: bool) -> None:
    """Show the last changes, the newest first."""
    from gateway.audit import tail
    from gateway.cli_tables import audit_table

    out = Output(as_json)
    file = _audit_file(out, state_dir)
    try:
        entries = tail(file, limit)
    except OSError as error:
        raise Failure(f"cannot read {error.filename}: {error.strerror}") from None
    if not entries and not as_json:
        click.echo(NOTHING_YET.format(file.parent))
        return
    out.table(entries, audit_table)


@audit.command("verify")
@audit_dir_option
@json_option
def audit_verify(state_dir: str | None, as_json: bool) -> None:
    """Check that the record is as it was written.

    Exit status 1 when it is not.
    """
    from gateway.audit import Verdict, verify

    out = Output(as_json)
    file = _audit_file(out, state_dir)
    try:
        # A directory that no gateway has changed anything in has no log; where a full one is, this one is missing.
        written = file.exists() or file.with_name(file.name + ".1").exists()
        verdict = verify(file) if written else Verdict(0)
    except OSError as error:
        raise Failure(f"cannot read {error.filename}: {error.strerror}") from None
    if out.as_json:
        out.value({"file": str(file), "entries": verdict.entries, "whole": verdict.whole, "fault": verdict.fault})
    elif not written:
        click.echo(NOTHING_YET.format(file.parent))
    elif verdict.whole:
        click.echo(f"{file}: {counted(verdict.entries, 'entry')}, all as written")
    else:
        click.echo(f"{file}: {verdict.fault}", err=True)
    raise SystemExit(0 if verdict.whole else 1)
