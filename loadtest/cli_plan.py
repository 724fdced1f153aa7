"""`headrace plan`: does it fit, with which values, how many instances, and what comes of the traffic."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from loadtest.plan import Guest
    from loadtest.workload import Workload
    from workers.hardware import Card
    from workers.model_shape import ModelShape
    from workers.plan import Goal

Positive = click.FloatRange(0, min_open=True)


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    help="Directory, config.json or well-known name. Several share one card, each as NAME=RATE[:TRACE].",
)
@click.option("--device", help="Kind of card, such as h100 or a100-80.  [default: what this host has]")
@click.option("--device-memory", help="Memory of each, such as 40GiB, where it is not all of the card's.")
@click.option("--devices", type=click.IntRange(1, 64), help="Cards there are.  [default: as many as it takes]")
@click.option("--trace", help="Recorded traffic: a name, or a CSV with arrival_s, input_tokens, output_tokens.")
@click.option("--prompt", help="Prompt tokens as P50,P90,P99, in place of a trace.")
@click.option("--output", help="Output tokens as P50,P90,P99.")
@click.option("--rate", type=Positive, help="Requests a second.  [default: the trace's own]")
@click.option("--concurrency", type=click.IntRange(1), help="Requests in flight at the peak, in place of a rate.")
@click.option("--ttft", type=Positive, default=2.0, show_default=True, help="Seconds to the first token.")
@click.option("--tpot", type=Positive, default=0.1, show_default=True, help="Seconds for each further token.")
@click.option(
    "--goodput", type=click.FloatRange(0, 1), default=0.99, show_default=True, help="Share that must be good."
)
@click.option("--quantization", help="Of the weights: fp8, awq, gptq …")
@click.option("--kv-dtype", default="auto", show_default=True, help="Of the KV cache, such as fp8.")
@click.option("--tensor-parallel", type=click.IntRange(1, 16), help="Cards of one instance.  [default: tried]")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest request.  [default: the traffic's]")
@click.option("--seconds", type=click.FloatRange(30, 3600), default=180.0, show_default=True, help="Simulated time.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the workers.yaml that carries it out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(models: tuple[str, ...], as_yaml: bool, as_json: bool, **options: Any) -> None:
    """Plan instances for a model and its traffic, or one card for several models.

    Memory is computed as engines do; traffic runs through the production scheduler over simulated engines. Exit
    status 1: it does not fit, or falls short of the goal.
    """
    from loadtest.workload import WorkloadError
    from workers.model_shape import ModelError
    from workers.plan import Goal

    goal = Goal(ttft_s=options["ttft"], tpot_s=options["tpot"], goodput=options["goodput"])
    try:
        card = _card(options)
        if len(models) == 1 and "=" not in models[0]:
            good = _one_model(models[0], card, goal, options, as_yaml, as_json)
        else:
            if (options["devices"] or 1) != 1:
                raise click.UsageError("several models share one card; plan each of them alone for more cards")
            good = _one_card(models, card, goal, options, as_yaml, as_json)
    except (WorkloadError, ModelError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    raise SystemExit(0 if good else 1)


def _card(options: dict[str, Any]) -> Card:
    from workers.hardware import find_card
    from workers.units import parse_bytes

    name = options["device"]
    if name is None:
        from workers.devices import find_devices
        from workers.instances import DeviceKind

        found = find_devices()
        real = [one for one in found.devices if one.kind is not DeviceKind.CPU]
        if not real:
            raise click.UsageError(f"no card found ({'; '.join(found.looked)}); say which with --device")
        card = replace(find_card(real[0].name), memory_bytes=real[0].memory_bytes)
    else:
        card = find_card(name)
    if options["device_memory"]:
        card = replace(card, memory_bytes=parse_bytes(options["device_memory"]))
    return card


def _model(name: str, quantization: str | None) -> ModelShape:
    from workers.model_config import named_quantization
    from workers.model_files import load_model

    shape = load_model(name)
    if quantization is None:
        return shape
    return replace(shape, quantization=named_quantization(quantization), stored_bytes=None)


def _workload(trace: str | None, options: dict[str, Any]) -> Workload:
    from loadtest.workload import WorkloadError, from_percentiles, named_or_file, parse_percentiles

    if trace is not None:
        return named_or_file(trace)
    if not (options["prompt"] and options["output"]):
        raise WorkloadError("traffic: give --trace, or --prompt and --output")
    return from_percentiles(
        parse_percentiles(options["prompt"]), parse_percentiles(options["output"]), Random(options["seed"])
    )


def _rate(workload: Workload, goal: Goal, options: dict[str, Any]) -> float:
    from loadtest.workload import WorkloadError, rate_of_concurrency

    if options["rate"] is not None and options["concurrency"] is not None:
        raise WorkloadError("--rate and --concurrency say the same thing; give one")
    if options["rate"] is not None:
        return float(options["rate"])
    if options["concurrency"] is not None:
        return rate_of_concurrency(workload.lengths, options["concurrency"], goal.ttft_s, goal.tpot_s)
    if options["trace"] is None:
        raise WorkloadError("percentiles have no rate of their own; give --rate or --concurrency")
    return workload.own_per_s


def _kv_bytes(shape: ModelShape, options: dict[str, Any]) -> int:
    from workers.model_config import kv_value_bytes

    return kv_value_bytes(shape, options["kv_dtype"])


def _one_model(name: str, card: Card, goal: Goal, options: dict[str, Any], as_yaml: bool, as_json: bool) -> bool:
    from loadtest.plan import Question, make_plan
    from loadtest.plan_output import layouts_table, meets, plan_json, plan_yaml, trials_table

    shape = _model(name, options["quantization"])
    workload = _workload(options["trace"], options)
    question = Question(
        shape,
        card,
        workload,
        _rate(workload, goal, options),
        goal,
        devices=options["devices"],
        tensor_parallel=options["tensor_parallel"],
        kv_value_bytes=_kv_bytes(shape, options),
        max_model_len=options["max_model_len"],
        seconds=options["seconds"],
        seed=options["seed"],
    )
    found = make_plan(question)
    good = found.trial is not None and meets(found.trial.figures, goal)
    if as_json:
        _print_json(plan_json(question, found))
        return good
    if found.trial is None or found.chosen is None:
        click.echo(f"{shape.name} does not fit on {card.name}:", err=True)
        for reason in found.why_not:
            click.echo(f"  {reason}", err=True)
        return False
    if as_yaml:
        click.echo(plan_yaml(question, found, name), nl=False)
        return good
    each = found.chosen.fit.engine.tensor_parallel
    rows = [("the plan", found.trial, each)]
    rows += [(label, one, each) for label, one in (("one more", found.one_more), ("one less", found.one_less)) if one]
    _show(layouts_table(found.layouts, f"One instance on {card.name}"), trials_table(rows))
    for reason in found.why_not:
        click.echo(f"not possible: {reason}")
    click.echo(f"step times: {found.chosen.basis}")
    if good:
        more = f"holds up to {found.headroom:g} times" if found.headroom > 1 else "less than a tenth beyond"
        click.echo(f"headroom: {more} this traffic ({question.per_s:.3g} requests/s)")
    else:
        click.echo(f"falls short of {goal.goodput:.1%} goodput; one more instance costs {each} cards")
    return good


def _one_card(
    models: tuple[str, ...], card: Card, goal: Goal, options: dict[str, Any], as_yaml: bool, as_json: bool
) -> bool:
    from loadtest.plan import plan_card
    from loadtest.plan_output import card_yaml, layouts_table, meets, seat_json, seats_table

    guests, paths = _guests(models, options)
    seats = plan_card(guests, card, goal, _kv_bytes(guests[0].model, options), options["seconds"], options["seed"])
    good = all(seat.part.fit.fits and meets(seat.figures, goal) for seat in seats)
    if as_json:
        fits = all(seat.part.fit.fits for seat in seats)
        shown = [seat_json(seat, goal) for seat in seats]
        _print_json({"device": card.name, "fits": fits, "meets_goal": good, "models": shown})
    elif as_yaml and all(seat.part.fit.fits for seat in seats):
        click.echo(card_yaml(seats, card.name, card.memory_bytes, paths), nl=False)
    else:
        _show(layouts_table([seat.layout for seat in seats], f"On one {card.name}"), seats_table(seats))
        for seat in seats:
            if not seat.part.fit.fits:
                click.echo(f"{seat.guest.model.name}: {seat.part.fit.why_not}", err=True)
    return good


def _guests(models: tuple[str, ...], options: dict[str, Any]) -> tuple[list[Guest], list[str]]:
    from loadtest.plan import Guest
    from loadtest.workload import WorkloadError

    guests: list[Guest] = []
    paths: list[str] = []
    for one in models:
        name, equals, rest = one.partition("=")
        rate, _, trace = rest.partition(":")
        try:
            per_s = float(rate) if equals else 0.0
        except ValueError:
            per_s = 0.0
        if not 0 < per_s < 1e6:
            raise WorkloadError(f"--model {one}: beside other models it needs its rate: NAME=RATE or NAME=RATE:TRACE")
        workload = _workload(trace or options["trace"], options)
        guests.append(Guest(_model(name, options["quantization"]), workload, per_s))
        paths.append(name)
    return guests, paths


def _show(*tables: Any) -> None:
    from workers.plain_tables import print_table

    for table in tables:
        if table.row_count:
            print_table(table)
            click.echo()


def _print_json(fields: dict[str, Any]) -> None:
    import orjson

    click.echo(orjson.dumps(fields).decode())
