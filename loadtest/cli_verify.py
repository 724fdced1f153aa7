"""`headrace verify`: does this installation keep its promises?"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from loadtest.verify_figures import Figure

SIGNALLED = 128  # and the signal's number, as shells have it


def _known(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if names:
        from loadtest.verify import CHECKS

        if strange := [name for name in names if name not in CHECKS]:
            raise click.BadParameter(f"no check {strange[0]!r}; there are {', '.join(CHECKS)}")
    return names


def _list(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from loadtest.verify import CHECKS
    from workers.plain_tables import new_table, print_table

    table = new_table("check", "promise", folds=True)
    for name, check in CHECKS.items():
        table.add_row(name, check.promise)
    print_table(table)
    ctx.exit()


@click.command()
@click.option("--only", multiple=True, metavar="NAME", callback=_known, help="Check only this; may be repeated.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the checks and exit."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is sent, and in which order.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a figure.")
def verify(only: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Check that this installation keeps its promises.

    Starts fleets of its own (simulated engines, gateway, Valkey) on loopback and free ports, sends them traffic, breaks
    things, and compares what clients, gateway and engines saw. It takes about a minute, and touches nothing that runs
    here. Every figure has a target.

    Exit status 1: a figure falls short, or a check could not be made. 130: interrupted.
    """
    try:
        kept = _run(only, seed, as_json)
    except KeyboardInterrupt:  # before the run listened for it, or when it had just ended
        _interrupted(signal.SIGINT)
    raise SystemExit(0 if kept else 1)


def _interrupted(number: int) -> NoReturn:
    click.echo("headrace: interrupted; what was started has been stopped", err=True)
    raise SystemExit(SIGNALLED + number) from None


def _run(only: tuple[str, ...], seed: int, as_json: bool) -> bool:
    """Make the checks and show what was found; whether all of it was reached."""
    from loadtest.verify import CHECKS, VerifyInterrupted, run_until_interrupted

    shown: list[tuple[str, Figure]] = []

    def show(check: str, figure: Figure) -> None:
        shown.append((check, figure))
        if as_json:
            import orjson

            told = {"figure": f"{check}: {figure.name}", "value": figure.value}
            click.echo(orjson.dumps({**told, "target": figure.target, "ok": figure.ok}).decode())

    try:
        with _progress() as begin:
            kept = run_until_interrupted(show, only=only, seed=seed, begin=begin)
    except VerifyInterrupted as interrupted:
        _interrupted(interrupted.number)
    if not as_json:
        _print(shown, CHECKS)
    return kept


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line on a terminal that says what is being checked; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)

        def begin(name: str, number: int, of: int) -> None:
            bar.update(task, total=of, completed=number - 1, description=name)

        yield begin


def _print(shown: list[tuple[str, Figure]], checks: dict[str, Any]) -> None:
    from workers.plain_tables import new_table, print_table

    table = new_table("", "check", "figure", "#found", "promised", least=("check",), folds=True)
    before = ""
    for name, figure in shown:
        table.add_row(
            "[green]ok[/]" if figure.ok else "[bold red]MISS[/]",
            name if name != before else "",
            _plain(figure.name), f"{figure.value:g}", _plain(figure.target),
        )  # fmt: skip
        before = name
    print_table(table)
    short = [name for name, figure in shown if not figure.ok]
    broken = list(dict.fromkeys(short))
    click.echo()
    if not broken:
        click.echo(f"All {len(shown)} figures were reached.")
        return
    click.echo(f"{len(short)} of {len(shown)} figures fall short. Not kept:")
    for name in broken:
        click.echo(f"  {name}: {checks[name].promise}")
    click.echo(f"Again, alone: headrace verify{''.join(f' --only {name}' for name in broken)}")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
