"""`headrace loadtest replay` and `ramp`: recorded traffic, really sent to a running gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadtest.live_options import SECONDS_MAX, Number, Rate, goal_of, seed_of, shared, target_of, trace_of, traffic_of

if TYPE_CHECKING:
    from loadtest.live_client import Seen
    from loadtest.live_figures import Goal, Report
    from loadtest.live_target import Target
    from loadtest.ramp import Result, Step
    from loadtest.replay import Lines


@click.command()
@shared
@click.option("--rate", type=Rate, help="Requests a second.  [default: as recorded]")
@click.option("--rate-scale", type=Number(1e-3, 1e4), help="Times the recorded rate.")
@click.option(
    "--seconds", type=Number(0.1, SECONDS_MAX), help="Length; a trace starts again.  [default: 60, or all of it]"
)
@click.option("--limit", type=click.IntRange(1), help="Requests at most.")
@click.option("--goodput", type=Number(0, 1), help="Share that must be good, else the exit status is 1.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File for a line of JSON a request.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
def replay(as_json: bool, **options: Any) -> None:
    """Replay recorded traffic against a running gateway.

    TRACE is one that `loadtest simulate` knows (azure2023_conv, azure2023_code, mooncake_conversation,
    servegen_m-mid_sampled), or a file: CSV with arrival_s, input_tokens, output_tokens, and session or
    hash_runs_blk512 where prompts begin alike; or JSON lines as Mooncake has them. Requests are sent at their times as
    streamed chat completions, however late answers are. Ctrl-C ends it with what there is so far.

    Exit status 1: nothing was answered, the gateway is not there, or --goodput was not reached.
    """
    from loadtest.live_output import rate, warnings
    from loadtest.replay import LiveError, Replay, run_replay, run_until_stopped

    trace, (seconds, requests) = traffic_of(options)
    replayed = Replay(target_of(options), requests, seconds, goal_of(options), seed_of(options))
    lines: Lines | None = None
    model = ""

    def begin(target: Target) -> None:
        nonlocal lines, model
        model, lines = target.model, _lines(options["out"])  # not before: a file is emptied for nothing else
        if not as_json:
            click.echo(
                f"{trace.name}, {len(requests):,} requests in {seconds:.4g} s ({rate(len(requests) / seconds)}), "
                f"to {target.url}\nmodel {target.model}, seed {replayed.seed}\n"
            )

    try:
        with _progress(as_json) as watch:
            found: Report = run_until_stopped(
                lambda stop: run_replay(
                    replayed, stop=stop, begin=begin, ended=lambda one: lines.add(one) if lines else None, watch=watch
                )
            )
    except LiveError as error:
        raise click.ClickException(str(error)) from None
    finally:
        if lines:
            lines.close()
    troubles = warnings(found)
    if lines and lines.trouble:
        troubles.append(f"{options['out']} is not complete: {lines.trouble}")
    if as_json:
        about = {"trace": trace.name, "url": replayed.target.url, "model": model, "seed": replayed.seed}
        slo = {"ttft_slo_s": replayed.goal.ttft_s, "tpot_slo_s": replayed.goal.tpot_s}
        _print_json({**about, **slo, **found.as_dict(), "warnings": troubles})
    else:
        _print_report(found, replayed.goal)
    kept = _figures(found, options["goodput"], as_json)
    _warn(troubles)
    raise SystemExit(0 if kept and found.answered and found.summed and not found.gone else 1)


@click.command()
@shared
@click.option("--from", "from_", type=Rate, default=1.0, show_default=True, help="Requests a second of the first step.")
@click.option("--to", type=Rate, default=256.0, show_default=True, help="Rate beyond which nothing is tried.")
@click.option("--step-factor", type=Number(1.05, 10), default=1.5, show_default=True, help="From a step to the next.")
@click.option(
    "--step-seconds",
    type=Number(1, 3600),
    default=30.0,
    show_default=True,
    help="How long each step sends.",
)
@click.option("--goodput", type=Number(0, 1), default=0.99, show_default=True, help="Share that must be good.")
@click.option("--bisections", type=click.IntRange(0, 12), default=3, show_default=True, help="Steps to narrow it down.")
@click.option("--at-least", type=Rate, help="Rate that must be kept, else the exit status is 1.  [default: --from]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
def ramp(as_json: bool, **options: Any) -> None:
    """Find the greatest rate that a running gateway keeps.

    The beginning of TRACE (as for `loadtest replay`) is sent at a rate that rises step by step until too few answers
    are good; then rates between are tried. Every step waits for its last answer.

    Exit status 1: a rate of --at-least was not kept, or the gateway is not there, or no longer.
    """
    from loadtest.live_output import chart, conclusion, rate, share, steps_table
    from loadtest.ramp import Ending, Range
    from loadtest.recorded import MAX_REQUESTS
    from loadtest.replay import Climb, LiveError, run_ramp, run_until_stopped

    low, high = options["from_"], options["to"]
    if low > high:
        raise click.UsageError(f"--from {low:g} is above --to {high:g}")
    if high * options["step_seconds"] > MAX_REQUESTS:
        raise click.UsageError(
            f"--to {high:g} for --step-seconds {options['step_seconds']:g} are more than {MAX_REQUESTS} requests; "
            f"make one of them smaller"
        )
    trace = trace_of(options)
    between = Range(low, high, options["step_factor"], options["bisections"])
    climb = Climb(
        target_of(options),
        trace,
        between,
        step_s=options["step_seconds"],
        skip_s=options["skip"],
        goodput=options["goodput"],
        goal=goal_of(options),
        seed=seed_of(options),
    )

    model = ""

    def begin(target: Target) -> None:
        nonlocal model
        model = target.model
        if not as_json:
            click.echo(f"{trace.name} to {target.url}\nmodel {target.model}, seed {climb.seed}\n")

    def ended(step: Step) -> None:
        if as_json:
            _print_json({"step": step.as_dict()})
            return
        found = step.report.all
        how = "kept" if step.kept else "not kept"
        late = "; the client was late" if not step.report.clock.kept_up or step.short else ""
        click.echo(
            f"{rate(step.per_s):>8}  goodput {share(found.goodput):>6} of {found.requests:,}  {how}{late}", err=True
        )

    try:
        with _progress(as_json) as watch:
            result: Result = run_until_stopped(
                lambda stop: run_ramp(climb, stop=stop, begin=begin, ended=ended, watch=watch)
            )
    except LiveError as error:
        raise click.ClickException(str(error)) from None
    wanted = options["at_least"] or low
    best = result.per_s or 0.0
    if as_json:
        about = {"trace": trace.name, "url": climb.target.url, "model": model, "seed": climb.seed}
        goals = {"goodput": climb.goodput, "ttft_slo_s": climb.goal.ttft_s, "tpot_slo_s": climb.goal.tpot_s}
        found = {"greatest_per_s": result.per_s, "ending": str(result.ending), "steps": len(result.steps)}
        _print_json({**about, **goals, **found, "warnings": _of_steps(result)})
    else:
        from workers.plain_tables import print_table

        click.echo()
        if result.steps:
            print_table(steps_table(result.steps))
            click.echo()
            click.echo("\n".join(chart(result.steps)) + "\n")
        click.echo(conclusion(result, climb.goodput))
    name = f"greatest rate with a goodput of at least {climb.goodput:g}, requests/s"
    _figure(as_json, name, best, f"at least {wanted:g}", best >= wanted)
    _warn(_of_steps(result))
    raise SystemExit(0 if best >= wanted and result.ending is not Ending.GONE else 1)


def _ignore(_: Any) -> None:
    return


def _lines(path: Path | None) -> Lines | None:
    from loadtest.replay import Lines

    try:
        return None if path is None else Lines(path)
    except OSError as error:
        raise click.BadParameter(f"{path}: cannot be written: {error.strerror}", param_hint="--out") from None


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[Seen], None]]:
    """A line on a terminal that shows how far it is; elsewhere nothing."""
    if as_json or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    # Drawn by the run itself, twice a second: a thread would hold it up whenever it likes.
    shown = Progress(*columns, console=console, transient=True, auto_refresh=False)
    task = shown.add_task("", total=None)
    calls = 0

    def watch(seen: Seen) -> None:
        nonlocal calls
        if not calls:
            shown.start()  # not before what a run begins with is printed
        calls += 1
        if calls % 5 and seen.ended < seen.planned:
            return
        told = f"{seen.in_flight} in flight  {seen.answered} answered  {seen.refused} refused  {seen.other} else"
        shown.update(task, total=seen.planned, completed=seen.ended, description=told, refresh=True)

    try:
        yield watch
    finally:
        shown.stop()


def _print_report(found: Report, goal: Goal) -> None:
    from loadtest.live_output import group_table, outcome_table, sentences, times_table
    from workers.plain_tables import print_table

    tables = [outcome_table(found), *([times_table(found)] if found.answered else [])]
    tables += [
        group_table(name, groups) for name, groups in (("pool", found.pools), ("class", found.classes)) if groups
    ]
    for table in tables:
        print_table(table)
        click.echo()
    click.echo("\n".join(sentences(found, goal)))


def _figures(found: Report, goodput: float | None, as_json: bool) -> bool:
    """What has a target; whether all of it was reached."""
    ended = sum(found.all.outcomes.values())
    if as_json:
        planned = found.all.requests
        _figure(as_json, "requests that ended in exactly one outcome", ended, f"{planned}", found.summed)
    if goodput is None:
        return True
    reached = found.all.goodput or 0.0
    _figure(as_json, "goodput", reached, f"at least {goodput:g}", reached >= goodput)
    return reached >= goodput


def _figure(as_json: bool, figure: str, value: float, target: str, ok: bool) -> None:
    if as_json:
        _print_json({"figure": figure, "value": value, "target": target, "ok": ok})
    else:
        click.echo(f"{'ok  ' if ok else 'MISS'}  {figure}: {value:.4g}, wanted {target}")


def _of_steps(result: Result) -> list[str]:
    """What keeps the result from being trusted."""
    slow = [step for step in result.steps if not step.report.clock.kept_up or step.short]
    if not slow:
        return []
    rates = ", ".join(f"{step.per_s:.3g}" for step in slow[:8])
    told = (
        f"the client was late, or did not send all, at {rates} requests/s: what these steps show is its own as much as"
    )
    return [f"{told} the gateway's; run it on a machine that does nothing else, and look at --max-in-flight"]


def _warn(troubles: list[str]) -> None:
    for trouble in troubles:
        click.echo(f"warning: {trouble}", err=True)


def _print_json(fields: dict[str, Any]) -> None:
    import orjson

    click.echo(orjson.dumps(fields).decode())
