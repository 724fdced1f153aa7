"""`headrace policy …`: check, compare, simulate, apply, go back; what each does is in `cli_policy.py`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli_base import admin_url_option, ask, json_option
from gateway.cli_output import Output

file_argument = click.argument("file", type=click.Path(path_type=Path))
note_option = click.option("--note", default="", help="Why; kept in the history.")
author_option = click.option("--author", help="Who; default: your user name.")
force_option = click.option("--force", is_flag=True, help="Apply it although guard rails stand against it.")
version_option = click.option(
    "--if-version", metavar="N", help="Only if this revision (number or ETag) is current; default: the one shown."
)


@click.group()
def policy() -> None:
    """Check, compare, simulate, apply and roll back policies."""


@policy.command("check")
@file_argument
@json_option
def policy_check(file: Path, as_json: bool) -> None:
    """Check a policy file: every fault, with its line."""
    from gateway.cli_policy import check

    raise SystemExit(check(file, Output(as_json)))


@policy.command("show")
@click.option("--revision", type=click.IntRange(1), help="An earlier one.")
@admin_url_option
@json_option
def policy_show(revision: int | None, admin_url: str, as_json: bool) -> None:
    """Show the policy in force."""
    from gateway.cli_policy import show

    out = Output(as_json)
    where = "policy" if revision is None else f"policy/revisions/{revision}"
    show(ask(out, admin_url, f"/admin/v1/{where}"), out)


@policy.command("diff")
@file_argument
@click.argument("other", required=False, type=click.Path(path_type=Path))
@click.option("--text", is_flag=True, help="Show the documents' lines that differ as well.")
@admin_url_option
@json_option
def policy_diff(file: Path, other: Path | None, text: bool, admin_url: str, as_json: bool) -> None:
    """Show what FILE would change in the policy in force.

    With OTHER: what changes from FILE to OTHER. Exit status 3 when there is a difference.
    """
    from gateway.cli_policy_change import compare

    raise SystemExit(compare(file, other, text, admin_url, Output(as_json)))


@policy.command("simulate")
@file_argument
@click.option("--trace", type=click.Path(path_type=Path), help="Recorded traffic; default: the gateway's own.")
@click.option("--last", default="1h", show_default=True, help="How much of it: 90s, 15m, 1h.")
@admin_url_option
@json_option
def policy_simulate(file: Path, trace: Path | None, last: str, admin_url: str, as_json: bool) -> None:
    """Show what FILE would do with recorded traffic.

    The traffic runs through the policy in force and through FILE.
    """
    from gateway.cli_simulate import simulate

    raise SystemExit(simulate(file, trace, last, admin_url, Output(as_json)))


@policy.command("apply")
@file_argument
@version_option
@force_option
@note_option
@author_option
@admin_url_option
@json_option
def policy_apply(
    file: Path, if_version: str | None, force: bool, note: str, author: str | None, admin_url: str, as_json: bool
) -> None:
    """Make FILE the policy in force."""
    from gateway.cli_policy_change import apply

    raise SystemExit(apply(file, if_version, force, note, author, admin_url, Output(as_json)))


@policy.command("history")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="How many.")
@admin_url_option
@json_option
def policy_history(limit: int, admin_url: str, as_json: bool) -> None:
    """Show the revisions, the newest first."""
    from gateway.cli_tables import revision_table

    out = Output(as_json)
    out.table(ask(out, admin_url, f"/admin/v1/policy/revisions?limit={limit}")["revisions"], revision_table)


@policy.command("rollback")
@click.argument("revision", required=False, type=click.IntRange(1))
@force_option
@note_option
@author_option
@admin_url_option
@json_option
def policy_rollback(
    revision: int | None, force: bool, note: str, author: str | None, admin_url: str, as_json: bool
) -> None:
    """Bring back what REVISION said, as a new revision.

    Without REVISION: the one before the one in force.
    """
    from gateway.cli_policy_change import roll_back

    raise SystemExit(roll_back(revision, force, note, author, admin_url, Output(as_json)))


@policy.command("export")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--write-back", is_flag=True, help="Into the file that the gateway reads.")
@admin_url_option
@json_option
def policy_export(file: Path | None, write_back: bool, admin_url: str, as_json: bool) -> None:
    """Write the policy in force to FILE, or to stdout.

    As it was given, comments included.
    """
    from gateway.cli_policy_change import export

    raise SystemExit(export(file, write_back, admin_url, Output(as_json)))


@policy.command("state")
@admin_url_option
@json_option
def policy_state(admin_url: str, as_json: bool) -> None:
    """Show where the policy comes from and whether all replicas have it."""
    from gateway.cli_policy import show_state

    out = Output(as_json)
    show_state(ask(out, admin_url, "/admin/v1/policy/state"), out)


@policy.command("canary")
@file_argument
@click.option("--share", default="10%", show_default=True, help="Of the requests.")
@note_option
@author_option
@admin_url_option
@json_option
def policy_canary(file: Path, share: str, note: str, author: str | None, admin_url: str, as_json: bool) -> None:
    """Let FILE decide about a share of the requests, and compare."""
    from gateway.cli_trial import begin

    raise SystemExit(begin("canary", file, share, note, author, admin_url, Output(as_json)))


@policy.command("shadow")
@file_argument
@note_option
@author_option
@admin_url_option
@json_option
def policy_shadow(file: Path, note: str, author: str | None, admin_url: str, as_json: bool) -> None:
    """Count what FILE would decide otherwise, without obeying it."""
    from gateway.cli_trial import begin

    raise SystemExit(begin("shadow", file, "1", note, author, admin_url, Output(as_json)))


@policy.command("trial")
@admin_url_option
@json_option
def policy_trial(admin_url: str, as_json: bool) -> None:
    """Show the canary or shadow that runs, compared with the rest."""
    from gateway.cli_trial import show

    out = Output(as_json)
    show(ask(out, admin_url, "/admin/v1/policy/trial"), out)


@policy.command("promote")
@force_option
@note_option
@author_option
@admin_url_option
@json_option
def policy_promote(force: bool, note: str, author: str | None, admin_url: str, as_json: bool) -> None:
    """Make what is tried the policy in force."""
    from gateway.cli_trial import promote

    raise SystemExit(promote(force, note, author, admin_url, Output(as_json)))


@policy.command("withdraw")
@admin_url_option
@json_option
def policy_withdraw(admin_url: str, as_json: bool) -> None:
    """End the canary or shadow that runs."""
    from gateway.cli_trial import withdraw

    raise SystemExit(withdraw(admin_url, Output(as_json)))
