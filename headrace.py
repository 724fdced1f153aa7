"""The command line's root: `headrace COMMAND`.

Commands live in the packages that do the work. They are imported when they are called, so that `--help` and a typing
mistake are answered at once.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import cast

import click

COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("gateway.cli", "up", "Start a whole fleet on this machine: Valkey, workers, gateway."),
    "serve": ("gateway.cli", "serve", "Run the gateway."),
    "worker": ("workers.cli", "worker", "Run or attach a worker."),
    "plan": (
        "loadtest.cli_plan",
        "plan",
        "Plan instances for a model and its traffic, or one card for several models.",
    ),
    "pools": ("gateway.cli", "pools", "Show the pools: workers, load, queue."),
    "workers": ("gateway.cli", "workers", "Show the workers: state, load, KV usage."),
    "policy": ("gateway.cli_policy_group", "policy", "Check, compare, simulate, apply and roll back policies."),
    "drain": ("gateway.cli_fleet", "drain", "Send WORKER nothing new; what runs there ends."),
    "undrain": ("gateway.cli_fleet", "undrain", "Give WORKER work again."),
    "cap": ("gateway.cli_fleet", "cap", "Let WORKER hold at most PLACES requests; `none` takes the cap off."),
    "eject": ("gateway.cli_fleet", "eject", "Take WORKER out of rotation until it is let back in."),
    "readmit": ("gateway.cli_fleet", "readmit", "Let WORKER back in, whatever put it out."),
    "tenants": ("gateway.cli_fleet", "tenants", "Show the tenants: limits, what runs and waits."),
    "top": ("gateway.cli_fleet", "top", "Watch the fleet live: pools, workers, queues, latency, rejects."),
    "audit": ("gateway.cli_fleet", "audit", "Read and verify the record of changes."),
    "key": ("gateway.cli", "key", "Create, list, rotate and revoke client keys."),
    "explain": ("gateway.cli", "explain", "Show why a request went where it went."),
    "doctor": (
        "gateway.cli_doctor",
        "doctor",
        "Show what stands out in the workers' reports, and what to change.",
    ),
    "verify": ("loadtest.cli_verify", "verify", "Check that this installation keeps its promises."),
    "loadtest": ("loadtest.cli", "loadtest", "Load tests and fleet simulation."),
    "report": ("loadtest.cli_report", "report", "Make a page of what suites printed with --json."),
}
"""Name -> (module, attribute, one line of help). A test compares the help with the command's own."""


class LazyGroup(click.Group):
    """A group whose commands are listed from the table above and imported only to run."""

    def __init__(self) -> None:
        listed = {name: click.Command(name, short_help=text) for name, (_, _, text) in COMMANDS.items()}
        super().__init__(
            "headrace",
            commands=listed,
            help="Headrace: a smart routing gateway in front of pools of LLM inference workers.",
            epilog="Exit status: 0 done, 1 failed, 2 usage or invalid input.",
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command itself."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table: what one needs first comes first."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(100)) for name, command in self.commands.items()])


def show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Print the version, and whether the core runs compiled or as plain Python."""
    if not wanted or ctx.resilient_parsing:
        return
    compiled = importlib.import_module("gateway.compiled").in_use()
    how = "compiled core" if compiled else "plain Python"
    click.echo(f"headrace {metadata.version('headrace')} ({how})")
    ctx.exit()


cli = click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version,
    help="Show the version and exit.",
)(LazyGroup())  # fmt: skip


def main() -> None:
    """Run the command line."""
    cli()


if __name__ == "__main__":
    main()
