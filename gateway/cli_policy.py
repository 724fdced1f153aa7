"""What `headrace policy` shows: faults where they stand, the policy in force, where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_output import Output, counted

if TYPE_CHECKING:
    from policies.problems import Problem

SHOWN_COLUMNS = 100  # of a faulty line; more is cut around the fault


def check(file: Path, out: Output) -> int:
    """Check a policy file and tell everything that is wrong with it; the exit status: 0 valid, 2 not."""
    from policies.document import parse_policy
    from policies.problems import PolicyError
    from policies.revisions import digest

    try:
        raw = file.read_bytes()
    except OSError as error:
        out.trouble(f"cannot read {file}: {error.strerror or error}")
        return 2
    try:
        policy = parse_policy(raw)
    except PolicyError as error:
        tell_problems(file, raw, error.problems, out)
        return 2
    if out.as_json:
        out.value({"ok": True, "file": str(file), "digest": digest(policy), "problems": []})
    else:
        parts = (("class", policy.classes), ("pool", policy.pools), ("tenant", policy.tenants), ("rule", policy.rules))
        counts = ", ".join(counted(len(part), word) for word, part in parts)
        click.echo(f"{file}: valid ({counts}; digest {digest(policy)})")
    return 0


def tell_problems(file: Path, raw: bytes, problems: tuple[Problem, ...], out: Output, *, change: bool = False) -> None:
    """Every problem with its line and a caret below the place, or as JSON. `change`: a change was asked for, so that
    it is worth saying that none was made."""
    if out.as_json:
        out.value({"ok": False, "file": str(file), "problems": [asdict(problem) for problem in problems]})
        return
    lines = raw.decode("utf-8", "replace").splitlines()
    for problem in problems:
        click.echo(f"{file}: {problem}", err=True)
        if problem.line is not None and problem.line <= len(lines):
            click.echo(excerpt(lines[problem.line - 1], problem.line, problem.column), err=True)
    click.echo(f"{file}: {counted(len(problems), 'problem')}{', nothing was changed' * change}", err=True)


def excerpt(line: str, number: int, column: int | None) -> str:
    """The line as it stands in the file, and a caret under `column` (from 1)."""
    text = line.replace("\t", " ")
    at = (column or 1) - 1
    begin = max(0, at - SHOWN_COLUMNS // 2)
    margin = f"{number:>5} | "
    shown = "".join(c if c.isprintable() else "?" for c in text[begin : begin + SHOWN_COLUMNS])
    if column is None:
        return f"{margin}{shown}"
    return f"{margin}{shown}\n{' ' * (len(margin) - 2)}| {' ' * (at - begin)}^"


def show(policy: Mapping[str, Any], out: Output) -> None:
    """A policy as YAML that can be edited and given back."""
    if out.as_json:
        out.value(policy)
        return
    import yaml

    revision = policy["revision"]
    click.echo(f"# revision {revision['number']} (digest {revision['digest']}), by {revision['author']}")
    if policy["policy"] is None:
        click.echo(policy["text"].rstrip())  # of another version of this program
    else:
        click.echo(yaml.safe_dump(policy["policy"], sort_keys=False, allow_unicode=True).rstrip())


def show_state(state: Mapping[str, Any], out: Output) -> None:
    """Where the policy comes from, and whether all replicas have it."""
    if out.as_json:
        out.value(state)
        return
    revision, file = state["revision"], state["file"]
    click.echo(
        f"revision {revision['number']} (digest {revision['digest']}), by {revision['author']}: {revision['source']}"
    )
    if file is None:
        click.echo("file      none")
    else:
        drift = "says something else" if file["drift"] else "says the same"
        click.echo(f"file      {file['path']} {drift}")
        for line in (file["rejected"] or "").splitlines():
            click.echo(f"          refused: {line}")
        if file["guarded"]:
            click.echo(f"          headrace policy apply --force {file['path']}")
    for replica in state["replicas"]:
        refused = f", refused: {replica['rejected']}" if replica["rejected"] else ""
        here = " (this one)" if replica["self"] else ""
        click.echo(f"replica   {replica['id']}: revision {replica['number']}{refused}{here}")
    click.echo("all replicas agree" if state["converged"] else f"not agreed yet; behind for {state['lag_s']:.0f} s")
