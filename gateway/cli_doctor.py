"""`headrace doctor`: what stands out in the workers' reports, with what was measured and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from gateway.cli_base import admin_url_option, ask, json_option
from gateway.cli_output import Output


@click.command()
@admin_url_option
@json_option
def doctor(admin_url: str, as_json: bool) -> None:
    """Show what stands out in the workers' reports, and what to change."""
    out = Output(as_json)
    findings = ask(out, admin_url, "/admin/v1/advice")["advice"]
    if as_json:
        for finding in findings:
            out.value(finding)
        return
    for line in told(findings):
        click.echo(line)


def told(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for people: each finding in three, or one that says that there is nothing."""
    if not findings:
        return ["Nothing stands out. Most findings take a minute of reports; workers without an agent have none."]
    lines: list[str] = []
    for finding in findings:
        lines += [
            f"{finding['worker']} ({finding['pool']}): {finding['message']}",
            f"  measured  {_values(finding['measured'])}; threshold {_values(finding['threshold'])}",
            f"  change    {finding['change']}",
            "",
        ]
    return lines[:-1]


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
