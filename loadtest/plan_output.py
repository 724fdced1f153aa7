"""A plan as JSON, as tables for people, and as the `workers.yaml` that carries it out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml
from rich.table import Table

from loadtest.figures import Figures
from loadtest.plan import LONG, ONLY, SHORT, Layout, Plan, Question, Seat, Trial
from workers.capacity import Concurrency
from workers.plain_tables import new_table
from workers.plan import RESERVE, Fit, Goal
from workers.units import show_bytes


def meets(figures: Figures | None, goal: Goal) -> bool:
    """Whether the traffic got what was asked for."""
    return figures is not None and figures.all.goodput >= goal.goodput


def plan_json(question: Question, plan: Plan) -> dict[str, Any]:
    """Everything about a plan of one model."""
    trial, chosen = plan.trial, plan.chosen
    answer: dict[str, Any] = {
        "model": question.model.name,
        "device": question.card.name,
        "workload": question.workload.name,
        "rate_per_s": question.per_s,
        "fits": bool(plan.layouts),
        "meets_goal": trial is not None and meets(trial.figures, question.goal),
        "layouts": [layout_json(one) for one in plan.layouts],
        "why_not": plan.why_not,
    }
    if trial is None or chosen is None:
        return answer
    each = chosen.fit.engine.tensor_parallel
    return answer | {
        "instances": trial.instances,
        "devices": trial.instances * each,
        "split": split_json(trial),
        "flags": fields_of(chosen.fit, chosen.max_model_len, 1 - RESERVE),
        "basis": chosen.basis,
        "expected": expected_json(trial.figures),
        "headroom": plan.headroom,
        "one_more": trial_json(plan.one_more, each),
        "one_less": trial_json(plan.one_less, each),
    }


def layout_json(layout: Layout) -> dict[str, Any]:
    """One way to run an instance."""
    fit = layout.fit
    return {
        "tensor_parallel": fit.engine.tensor_parallel,
        "weights_bytes": fit.budget.weights,
        "overhead_bytes": fit.budget.overhead.total,
        "kv_bytes": fit.budget.kv,
        "kv_tokens": fit.room.kv_tokens,
        "kv_bytes_per_token": fit.layout.bytes_per_token,
        "kv_fixed_bytes_per_request": fit.layout.fixed_bytes_per_request,
        "max_model_len": layout.max_model_len,
        "longest_that_fits": fit.room.longest,
        "concurrency": concurrency_json(fit.concurrency),
    }


def concurrency_json(found: Concurrency) -> dict[str, Any]:
    """How many at once, and what bounds it."""
    return {
        "true": found.true,
        "bound": found.bound,
        "max_num_seqs": found.max_num_seqs,
        "by_kv": found.by_kv,
        "by_step": found.by_step,
        "guaranteed": found.guaranteed,
    }


def split_json(trial: Trial) -> dict[str, Any] | None:
    """Where short ends and how many of each there are; None: one pool."""
    split = trial.split
    if split is None:
        return None
    return {
        "threshold_tokens": split.threshold,
        "short": split.short,
        "long": split.long,
        "short_share_of_work": split.short_share,
    }


def expected_json(figures: Figures) -> dict[str, Any]:
    """What the simulation says of the traffic."""
    group = figures.all
    return {
        "goodput": group.goodput,
        "ttft_p50_s": group.ttft_p50_s,
        "ttft_p90_s": group.ttft_p90_s,
        "ttft_p99_s": group.ttft_p99_s,
        "tpot_p50_s": group.tpot_p50_s,
        "tpot_p99_s": group.tpot_p99_s,
        "requests": group.requests,
        "refused": sum(figures.refused.values()),
        "preemptions": figures.preemptions,
        "peak_kv": figures.peak_kv,
    }


def trial_json(trial: Trial | None, each: int) -> dict[str, Any] | None:
    """Another number of instances, what it costs in devices and what it brings."""
    if trial is None:
        return None
    return {
        "instances": trial.instances,
        "devices": trial.instances * each,
        "split": split_json(trial),
        "expected": expected_json(trial.figures),
    }


def fields_of(fit: Fit, max_model_len: int, share: float) -> dict[str, Any]:
    """Values for `workers.yaml`, by its names."""
    fields: dict[str, Any] = {
        "tensor_parallel": fit.engine.tensor_parallel,
        "max_model_len": max_model_len,
        "max_num_seqs": fit.max_num_seqs,
        "max_num_batched_tokens": fit.engine.max_num_batched_tokens,
        # Rounded down: shares that add up to more than there is are refused.
        "memory_share": int(share * 1000) / 1000,
        "priority_scheduling": True,
    }
    if fit.engine.kv_value_bytes == 1:
        fields["kv_cache_dtype"] = "fp8"
    return fields


def plan_yaml(question: Question, plan: Plan, model_path: str) -> str:
    """The `workers.yaml` of a plan: one instance after the other on the devices 0, 1, …"""
    assert plan.trial is not None
    assert plan.chosen is not None
    fields = fields_of(plan.chosen.fit, plan.chosen.max_model_len, 1 - RESERVE)
    split, each = plan.trial.split, plan.chosen.fit.engine.tensor_parallel
    pools = [ONLY] * plan.trial.instances if split is None else [SHORT] * split.short + [LONG] * split.long
    instances = [
        {"name": f"{_plain(question.model.name)}-{number}", "pool": pool, "device": _devices(number, each)}
        for number, pool in enumerate(pools)
    ]
    served = question.model.name.rpartition("/")[2]
    defaults = {"engine": "vllm", "model_path": model_path, "served_name": served, **fields}
    return _dump(question.card.name, question.card.memory_bytes, len(pools) * each, defaults, instances)


def card_yaml(seats: Sequence[Seat], card_name: str, memory_bytes: int, paths: Sequence[str]) -> str:
    """The `workers.yaml` of a shared card."""
    instances = [
        {
            "name": f"{_plain(seat.guest.model.name)}-{number}",
            "pool": _plain(seat.guest.model.name),
            "model_path": path,
            "served_name": seat.guest.model.name.rpartition("/")[2],
            "device": [0],
            **fields_of(seat.part.fit, seat.layout.max_model_len, seat.part.share),
        }
        for number, (seat, path) in enumerate(zip(seats, paths, strict=True))
    ]
    return _dump(card_name, memory_bytes, 1, {"engine": "vllm"}, instances)


def _devices(number: int, each: int) -> list[int]:
    return list(range(number * each, (number + 1) * each))


def _dump(card: str, memory: int, count: int, defaults: dict[str, Any], instances: list[dict[str, Any]]) -> str:
    devices = [{"id": number, "memory": memory, "name": card} for number in range(count)]
    shared = {"devices": devices, "memory": {"mode": "partitioned", "reserve": RESERVE}, "defaults": defaults}
    return yaml.safe_dump({"shared": shared, "instances": instances}, sort_keys=False, width=120)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].casefold()).strip("-")[:48] or "model"


def seat_json(seat: Seat, goal: Goal) -> dict[str, Any]:
    """One model of a shared card."""
    return {
        "model": seat.guest.model.name,
        "workload": seat.guest.workload.name,
        "rate_per_s": seat.guest.per_s,
        "fits": seat.part.fit.fits,
        "why_not": seat.part.fit.why_not or None,
        "meets_goal": meets(seat.figures, goal),
        "memory_share": seat.part.share,
        "slowdown": seat.part.slowdown,
        "flags": fields_of(seat.part.fit, seat.layout.max_model_len, seat.part.share),
        "basis": seat.layout.basis,
        "layout": layout_json(seat.layout),
        "expected": None if seat.figures is None else expected_json(seat.figures),
    }


def layouts_table(layouts: Sequence[Layout], title: str) -> Table:
    """Memory and concurrency of each way to run an instance: one column for each, so that it fits a terminal."""
    columns = []
    for layout in layouts:
        fit = layout.fit
        cards = fit.engine.tensor_parallel
        values = {
            "weights, each card": show_bytes(fit.budget.weights),
            "overhead": show_bytes(fit.budget.overhead.total),
            "KV": show_bytes(fit.budget.kv),
            "KV tokens": f"{fit.room.kv_tokens:,}",
            "KV for each token": show_bytes(fit.layout.bytes_per_token),
            "KV fixed a request": show_bytes(fit.layout.fixed_bytes_per_request),
            "max_model_len": f"{layout.max_model_len:,}",
            "longest that fits": f"{fit.room.longest:,}",
            "at once": f"{fit.concurrency.true:,} ({fit.concurrency.bound})",
            "at once, guaranteed": f"{fit.concurrency.guaranteed:,}",
            "max_num_seqs": f"{fit.max_num_seqs:,}",
            "batched tokens": f"{fit.engine.max_num_batched_tokens:,}",
        }
        columns.append((f"{layout.model.name}\non {cards} card{'s' * (cards > 1)}", values))
    return _columns(title, columns)


def trials_table(rows: Sequence[tuple[str, Trial, int]]) -> Table:
    """What numbers of instances come to."""
    columns = []
    for name, trial, each in rows:
        split = trial.split
        values = {
            "instances": str(trial.instances),
            "cards": str(trial.instances * each),
            "pools": "one" if split is None else f"{split.short} short, {split.long} long",
            "short up to": "" if split is None else f"{split.threshold:,} tokens",
            **_figures(trial.figures),
        }
        columns.append((name, values))
    return _columns("Simulated with the production scheduler", columns)


def seats_table(seats: Sequence[Seat]) -> Table:
    """The models of a shared card."""
    columns = []
    for seat in seats:
        values = {
            "requests": f"{seat.guest.per_s:g}/s",
            "memory_share": f"{seat.part.share:.3f}",
            "slower by the others": f"{seat.part.slowdown:.2f} times",
            **(_figures(seat.figures) if seat.figures is not None else {"goodput": "does not fit"}),
        }
        columns.append((seat.guest.model.name, values))
    return _columns("Simulated with the production scheduler", columns)


def _columns(title: str, columns: Sequence[tuple[str, dict[str, str]]]) -> Table:
    table = new_table("", *(f"#{name}" for name, _ in columns), title=title)
    for row in max((values for _, values in columns), key=len, default={}):
        table.add_row(row, *(values.get(row, "") for _, values in columns))
    return table


def _figures(figures: Figures) -> dict[str, str]:
    group = figures.all
    return {
        "goodput": f"{group.goodput:.1%}",
        "TTFT p50": f"{group.ttft_p50_s:.2f} s",
        "TTFT p99": f"{group.ttft_p99_s:.2f} s",
        "TPOT p50": f"{1000 * group.tpot_p50_s:.0f} ms",
        "TPOT p99": f"{1000 * group.tpot_p99_s:.0f} ms",
        "peak KV": f"{figures.peak_kv:.0%}",
    }
