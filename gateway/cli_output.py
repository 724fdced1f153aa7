"""What commands print: tables and sentences for people, one JSON value a line for programs. Errors go to stderr."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from rich.table import Table

    from gateway.app import Addresses

ADMIN_URL = "http://127.0.0.1:8081"  # where commands look that are told nothing else
ADMIN_VARIABLE = "HEADRACE_ADMIN"  # what they are told by else: the gateway's own setting
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}


class Failure(click.ClickException):
    """Ends a command with status 1 and one line on stderr."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"headrace: {self.message}", err=file is None, file=file)


class Output:
    """One command's way of telling what happens."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def value(self, value: object) -> None:
        """One JSON value on a line of its own."""
        click.echo(orjson.dumps(value).decode())

    def trouble(self, message: str) -> None:
        """Something went wrong, in one line on stderr."""
        click.echo(f"headrace: {message}", err=True)

    def serving(self, addresses: Addresses) -> None:
        """The gateway accepts traffic."""
        if self.as_json:
            told = {"data": addresses.data, "admin": addresses.admin, "dashboard": addresses.dashboard}
            if addresses.redis is not None:
                told["redis"] = addresses.redis
            self.value({"event": "ready", **told})
        else:
            click.echo(places(addresses))
            self.tokens(addresses)

    def tokens(self, addresses: Addresses) -> None:
        """Show the admin plane's tokens on the run that made them, and on no other; on stderr, apart from the rest."""
        if addresses.tokens:
            kept = "for this run only" if addresses.kept_in is None else f"kept in {addresses.kept_in.absolute()}"
            click.echo(f"\nTokens of the admin plane, shown this once, {kept}:", err=True)
            for role, token in addresses.tokens.items():
                click.echo(f"  {role:<8}  {token}", err=True)

    def progress(self, message: str) -> None:
        """It takes its time; so far it has come. On stderr, and for people only."""
        if not self.as_json:
            click.echo(message, err=True)

    def ready(
        self, addresses: Addresses, workers: Sequence[Mapping[str, Any]], took_s: float, label: str, model: str
    ) -> None:
        """A whole fleet runs: show it and how to use it."""
        if self.as_json:
            self.serving(addresses)
            return
        from gateway.cli_tables import print_table, worker_table

        count = f"1 {label} worker" if len(workers) == 1 else f"{len(workers)} {label} workers"
        click.echo(f"A gateway and {count}, ready after {took_s:.1f} s.\n")
        print_table(worker_table(workers))
        click.echo(f"\n{places(addresses)}\n\nTry it:\n")
        hello = shlex.quote(json.dumps({"model": model, **HELLO}))
        click.echo(f"  curl -s {addresses.data}/v1/chat/completions -H 'content-type: application/json' -d {hello}")
        where = "" if addresses.admin == ADMIN_URL else f" --admin {addresses.admin}"
        click.echo(f"  {command_word()} workers{where}")
        self.tokens(addresses)
        click.echo("\nCtrl-C stops all of it. Below: one line a request.\n")

    def stopped(self) -> None:
        """Nothing runs any more."""
        if self.as_json:
            self.value({"event": "stopped"})
        else:
            click.echo("Stopped.")

    def table(self, rows: Sequence[Mapping[str, Any]], draw: Callable[[Sequence[Mapping[str, Any]]], Table]) -> None:
        """A list of things: drawn by `draw`, or each as JSON."""
        if self.as_json:
            for row in rows:
                self.value(row)
        else:
            from gateway.cli_tables import print_table

            print_table(draw(rows))

    def story(self, story: Mapping[str, Any]) -> None:
        """Why a request went where it went: what it was, and every attempt."""
        if self.as_json:
            self.value(story)
            return
        from gateway.cli_tables import attempt_table, estimates, print_table, wait_facts

        waiting = story.get("waiting")
        known = story["request"] or ({"state": "running"} if waiting is None else wait_facts(waiting))
        facts = {name: part for name, part in known.items() if part is not None}
        width = max(map(len, facts))
        for name, part in facts.items():
            text = (
                f"{part:.6g}"
                if isinstance(part, float)
                else part
                if isinstance(part, str)
                else orjson.dumps(part).decode()
            )
            click.echo(f"{name:<{width}}  {text}")
        if story["attempts"]:
            click.echo()
            print_table(attempt_table(story["attempts"]))
            for line in estimates(story["attempts"]):
                click.echo(line)


def command_word() -> str:
    """How this program is called from where it was started: by its path where PATH does not lead to it."""
    found = sys.argv[0].endswith("/headrace") and shutil.which("headrace") is None
    return shlex.quote(sys.argv[0]) if found else "headrace"


def places(addresses: Addresses) -> str:
    """Where everything is, a line each."""
    lines = [
        f"data       {addresses.data}/v1",
        f"admin      {addresses.admin}/admin/v1/fleet",
        f"metrics    {addresses.admin}/metrics",
        f"dashboard  {addresses.dashboard}",
    ]
    if addresses.redis is not None:
        lines.append(f"redis      {addresses.redis}")
    return "\n".join(lines)


def counted(number: int, word: str) -> str:
    """`1 rule`, `2 rules`, `1 entry`, `1,000 entries`."""
    if number == 1:
        return f"1 {word}"
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number:,} {plural}"
