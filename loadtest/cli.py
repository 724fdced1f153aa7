"""`headrace loadtest`: load, replay and simulation. Commands import what they need when they run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from loadtest.cli_live import ramp, replay

if TYPE_CHECKING:
    from loadtest.figures import Figures
    from loadtest.simulate import Scenario

COLUMNS = ("router", "all", "short", "long", "ttft p50", "p99 short", "p99 long", "tpot p99", "refused", "x real")


@click.group()
def loadtest() -> None:
    """Load tests and fleet simulation."""


loadtest.add_command(replay)
loadtest.add_command(ramp)


@loadtest.command()
@click.option("--router", "routers", multiple=True, help="headrace or a baseline; may be repeated.  [default: all]")
@click.option("--policy", "policy_file", type=click.File("rb"), help="Policy of the production scheduler.")
@click.option("--algorithm", help="Balancer in place of the policy's.")
@click.option("--rate", type=click.FloatRange(0), default=16.0, show_default=True, help="Chat requests a second.")
@click.option(
    "--long-rate", type=click.FloatRange(0), default=1.6, show_default=True, help="Document requests a second."
)
@click.option("--seconds", type=click.FloatRange(1), default=600.0, show_default=True, help="Length of a window.")
@click.option("--windows", type=click.IntRange(1, 8), default=5, show_default=True, help="Windows of the traces.")
@click.option("--short", type=click.IntRange(0), default=8, show_default=True, help="Workers in short-chat.")
@click.option("--long", "long_", type=click.IntRange(0), default=0, show_default=True, help="Workers in long-context.")
@click.option("--preset", help="Engine and hardware.  [default: llama3-8b/a100-80]")
@click.option("--noise", type=click.FloatRange(0), default=0.0, help="Error of prompt estimates: σ of the logarithm.")
@click.option("--prefixes", is_flag=True, help="Prompts share their recorded prefixes; engines cache them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")
@click.option("--gateways", type=click.IntRange(1, 64), default=1, show_default=True, help="Gateways in front of it.")
@click.option(
    "--gossip-ms", type=click.FloatRange(0), default=200.0, show_default=True, help="How often they talk; 0: never."
)
@click.option("--suite", type=click.Choice(["evidence"]), help="The figures that the project promises; ten minutes.")
@click.option("--quick", is_flag=True, help="A part of the suite, in a short window; nothing that is timed.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Simulations at once.")
@click.option("--plot", type=click.Path(file_okay=False), help="Directory for pictures; needs the plots extra.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a result.")
def simulate(suite: str | None, as_json: bool, **options: Any) -> None:
    """Run recorded traffic over simulated engines.

    Through the production scheduler, in virtual time.
    """
    if suite is not None:
        raise SystemExit(0 if _run_suite(as_json, options) else 1)
    from loadtest.baselines import RULES
    from loadtest.simulate import PRODUCTION, windows_of

    scenario = _scenario(options)
    routers = options["routers"] or (PRODUCTION, *RULES)
    rows: list[list[str]] = []
    results: dict[str, list[Figures]] = {}
    for router in routers:
        if router != PRODUCTION and router not in RULES:
            raise click.BadParameter(f"there are {', '.join([PRODUCTION, *RULES])}", param_hint="--router")
        started = time.perf_counter()
        found: list[Figures] = []
        for number, figures in windows_of(_with_router(scenario, router), options["windows"]):
            found.append(figures)
            if as_json:
                _print_json({"router": router, "window": number, **figures.as_dict()})
        rows.append(_row(router, found, time.perf_counter() - started))
        results[f"simulation: {router}"] = found
    if not as_json:
        _print_table(rows)
    _plot(results, options["plot"])


def _run_suite(as_json: bool, options: dict[str, Any]) -> bool:
    from rich.console import Console
    from rich.progress import Progress

    from loadtest.evidence import FULL, QUICK, run_suite, scenarios

    extent = QUICK if options["quick"] else FULL
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulations", total=scenarios(extent))
        ok, found = run_suite(
            _print_figure(as_json), extent, options["processes"], lambda: bar.advance(task), options["seed"]
        )
    _plot(found, options["plot"])
    return ok


def _plot(found: dict[str, list[Figures]], directory: str | None) -> None:
    if directory is None:
        return
    from pathlib import Path

    from loadtest.plots import NoPlotsError, plot_goodput

    try:
        for path in plot_goodput(found, Path(directory)):
            click.echo(f"wrote {path}", err=True)
    except NoPlotsError as error:
        raise click.ClickException(str(error)) from error


@loadtest.command()
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=3.0, show_default=True, help="Each measurement.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="The least of them counts.")
@click.option("--peer", "peers", multiple=True, metavar="NAME=COMMAND", help="A peer that is not on PATH.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a figure.")
def compare(seconds: float, rounds: int, peers: tuple[str, ...], as_json: bool) -> None:
    """Measure what requests and chunks cost in processor time.

    Beside those of nginx, envoy, vllm-router and sglang-router that are installed, in the same run.
    """
    from loadtest.compare import CompareError, run_compare
    from loadtest.peers import PEERS, find
    from loadtest.streams import run_streams

    known = {peer.name: peer for peer in PEERS}
    commands: dict[str, str] = {}
    for given in peers:
        name, _, command = given.partition("=")
        if not command or name not in known:
            there = ", ".join(f"{each}=COMMAND" for each in known)
            raise click.BadParameter(f"{given!r} is none of {there}", param_hint="--peer")
        if find(known[name], {name: command}) is None:
            raise click.BadParameter(f"{name}: {command!r} is no command that can be run", param_hint="--peer")
        commands[name] = command

    def say(line: str) -> None:
        click.echo(line, err=True)

    show = _print_figure(as_json)
    try:
        kept = run_compare(show, say, seconds=seconds, rounds=rounds, commands=commands)
        kept = run_streams(show, say, seconds=seconds, rounds=rounds, commands=commands) and kept
    except CompareError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(0 if kept else 1)


@loadtest.command()
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=6.0, show_default=True, help="Each measurement.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="The best of them counts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a figure.")
def processes(seconds: float, rounds: int, as_json: bool) -> None:
    """Measure what a second gateway process brings.

    Requests a second, their cost, and how connections spread.
    """
    from loadtest.compare import CompareError
    from loadtest.processes import run_processes

    try:
        kept = run_processes(
            _print_figure(as_json), lambda line: click.echo(line, err=True), seconds=seconds, rounds=rounds
        )
    except CompareError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(0 if kept else 1)


@loadtest.command()
@click.option("--requests", type=click.IntRange(100), default=1_000_000, show_default=True, help="Requests in all.")
@click.option("--clients", type=click.IntRange(1, 512), default=64, show_default=True, help="Clients at once.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what clients do.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a figure.")
def soak(requests: int, clients: int, seed: int, as_json: bool) -> None:
    """Hold a gateway against very many requests and cancels.

    Afterwards it must hold nothing more than before.
    """
    from loadtest.compare import CompareError
    from loadtest.soak import run_soak

    try:
        kept = run_soak(
            _print_figure(as_json),
            lambda line: click.echo(line, err=True),
            requests=requests,
            clients=clients,
            seed=seed,
        )
    except CompareError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(0 if kept else 1)


def _scenario(options: dict[str, Any]) -> Scenario:
    from loadtest.simulate import Scenario
    from policies.document import Policy, PolicyError, parse_policy
    from policies.work import DEFAULT_PRESET, PRESETS

    policy = Policy()
    if options["policy_file"] is not None:
        try:
            policy = parse_policy(options["policy_file"].read())
        except PolicyError as error:
            raise click.UsageError(str(error)) from error
    if options["algorithm"]:
        from policies.balance import BALANCERS

        if options["algorithm"] not in BALANCERS:
            raise click.BadParameter(f"there are {', '.join(BALANCERS)}", param_hint="--algorithm")
        balancing = policy.balancing.model_copy(update={"algorithm": options["algorithm"]})
        policy = policy.model_copy(update={"balancing": balancing})
    preset = options["preset"] or DEFAULT_PRESET
    if preset not in PRESETS:
        raise click.BadParameter(f"there are {', '.join(PRESETS)}", param_hint="--preset")
    if options["short"] + options["long_"] < 1:
        raise click.UsageError("a fleet needs at least one worker")
    return Scenario(
        policy=policy,
        short_per_s=options["rate"],
        long_per_s=options["long_rate"],
        seconds=options["seconds"],
        seed=options["seed"],
        pools=(("short-chat", options["short"]), ("long-context", options["long_"])),
        preset=preset,
        noise=options["noise"],
        prefixes=options["prefixes"],
        gateways=options["gateways"],
        gossip_s=options["gossip_ms"] / 1000 or None,
    )


def _with_router(scenario: Scenario, router: str) -> Scenario:
    from dataclasses import replace

    return replace(scenario, router=router)


def _row(router: str, found: list[Figures], wall_s: float) -> list[str]:
    from statistics import fmean

    from loadtest.simulate import mean_goodput

    goodput = [f"{100 * share:.1f}" for share in mean_goodput(found)]
    return [
        router,
        *goodput,
        f"{fmean(each.all.ttft_p50_s for each in found):.2f}",
        f"{fmean(each.short.ttft_p99_s for each in found):.2f}",
        f"{fmean(each.long.ttft_p99_s for each in found):.2f}",
        f"{1000 * fmean(each.all.tpot_p99_s for each in found):.0f} ms",
        str(sum(sum(each.refused.values()) for each in found)),
        f"{sum(each.virtual_s for each in found) / wall_s:.0f}",
    ]


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in (COLUMNS, *rows)) for column in range(len(COLUMNS))]
    click.echo("Goodput in % of requests, mean over windows; times in seconds.")
    for row in (COLUMNS, *rows):
        first, *rest = [
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join([first, *rest]))


def _print_json(fields: dict[str, Any]) -> None:
    import orjson

    click.echo(orjson.dumps(fields).decode())


def _print_figure(as_json: bool) -> Any:
    def show(figure: str, value: float, target: str, ok: bool) -> None:
        if as_json:
            _print_json({"figure": figure, "value": value, "target": target, "ok": ok})
        else:
            click.echo(f"{'ok  ' if ok else 'MISS'}  {figure:66} {value:10.4g}  {target}")

    return show
