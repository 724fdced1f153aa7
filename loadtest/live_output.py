"""What a replay or a ramp found, for people: tables and sentences that fit 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from loadtest.live_figures import LATE_S, Goal, Group, Outcome, Report, Times
from loadtest.ramp import Ending, Result, Step
from workers.plain_tables import new_table

TROUBLES: Final = 12  # lines of them
BAR: Final = 40
EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def span(value_s: float | None) -> str:
    """A time for reading; `-` for none."""
    if value_s is None:
        return "-"
    ms = 1000 * value_s
    if ms < 999.5:
        return f"{ms:.1f} ms" if ms < 99.95 else f"{ms:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 99.995 else f"{value_s:.0f} s"


def share(part: float | None) -> str:
    """A share of the whole, never rounded up to all of it."""
    if part is None:
        return "-"
    return "100 %" if part == 1 else f"{min(99.9, 100 * part):.1f} %"


def rate(per_s: float) -> str:
    """Requests a second."""
    return f"{per_s:.3g}/s" if per_s < 999.5 else f"{per_s:.0f}/s"


def outcome_table(report: Report) -> Table:
    """How requests ended, and what was wrong with those that were not answered."""
    columns = ["requests", "#count", "#share"]
    more = ["code"] * bool(report.troubles) + ["message"] * any(one.message for one in report.troubles)
    table = new_table(*columns, *more, folds=True, least=("message",))
    rest = [""] * len(more)
    for outcome in Outcome:
        count = report.all.outcomes[outcome]
        table.add_row(str(outcome), f"{count:,}", share(count / (report.all.requests or 1)), *rest)
        for trouble in [one for one in report.troubles if one.outcome is outcome][:TROUBLES]:
            table.add_row(
                "", f"{trouble.count:,}", "", *[escape(trouble.code), escape(trouble.message[:200])][: len(more)]
            )
    return table


def times_table(report: Report) -> Table:
    """Seconds of the answered ones."""
    table = new_table("of those answered", "#p50", "#p90", "#p99")
    rows: tuple[tuple[str, Times], ...] = (
        ("time to first token", report.all.ttft),
        ("per further token", report.all.tpot),
        ("between tokens", report.gaps),
        ("whole answer", report.all.total),
    )
    for name, times in rows:
        table.add_row(name, span(times.p50_s), span(times.p90_s), span(times.p99_s))
    return table


def group_table(name: str, groups: dict[str, Group]) -> Table:
    """By pool or class."""
    table = new_table(
        *(name, "#requests", "#answered", "#goodput", "#TTFT p50", "#p99", "#TPOT p50", "#p99 "),
        least=("p99 ", "TPOT p50"),
    )
    for label, group in groups.items():
        table.add_row(
            escape(label),
            f"{group.requests:,}",
            f"{group.outcomes[Outcome.ANSWERED]:,}",
            share(group.goodput),
            span(group.ttft.p50_s),
            span(group.ttft.p99_s),
            span(group.tpot.p50_s),
            span(group.tpot.p99_s),
        )
    return table


def sentences(report: Report, goal: Goal) -> list[str]:
    """What the tables do not say."""
    took = report.took_s or 1.0
    every, late = report.all, report.clock.late
    most = f"at most {report.peak_in_flight:,} in flight"
    times = f"{span(late.p50_s)} (p50), {span(late.p99_s)} (p99), {span(report.clock.late_most_s)} (most)"
    return [
        f"goodput    {share(every.goodput)} answered with TTFT <= {goal.ttft_s:g} s and TPOT <= {goal.tpot_s:g} s",
        f"rate       {rate(report.reached_per_s)} of {rate(report.wanted_per_s)}; {most}",
        f"tokens     {every.tokens_in / took:,.0f}/s in, {every.tokens_out / took:,.0f}/s out",
        f"client     late with sending by {times}",
    ]


def warnings(report: Report) -> list[str]:
    """What keeps these figures from being trusted."""
    found: list[str] = []
    if not report.summed:
        found.append(
            f"{sum(report.all.outcomes.values())} outcomes for {report.all.requests} requests: a fault of ours"
        )
    clock = report.clock
    if not clock.kept_up:
        limit = f"more than {1000 * LATE_S:g} ms late"
        found.append(
            f"the client did not keep up: it sent {clock.sent_late:,} requests {limit}, and was {limit} at "
            f"{clock.looked_late:,} of {clock.looks:,} looks at the clock, so times are too long and bursts too flat; "
            f"ask for less, or run it on a machine that does nothing else"
        )
    held = [one for one in report.troubles if one.outcome is Outcome.NOT_SENT]
    if held:
        count, why = report.all.outcomes[Outcome.NOT_SENT], "; ".join(one.message or one.code for one in held)
        found.append(f"not sent, though they were due: {count:,} ({why}); raise that, or ask for a lower rate")
    if report.gone:
        found.append("the gateway was gone at the end: the last request found nobody")
    if report.interrupted:
        found.append("ended before its time: what there is so far")
    return found


def steps_table(steps: Sequence[Step]) -> Table:
    """The rates that were tried, in the order of trying."""
    table = new_table(
        *("#rate", "#reached", "#goodput", "#TTFT p50", "#p99", "#TPOT p50", "#p99 ", "#refused", "#else"),
        least=("TPOT p50", "reached"),
    )
    for step in steps:
        group = step.report.all
        other = group.outcomes[Outcome.FAILED] + group.outcomes[Outcome.TIMED_OUT] + group.outcomes[Outcome.NOT_SENT]
        table.add_row(
            rate(step.per_s),
            rate(step.report.reached_per_s),
            share(group.goodput),
            span(group.ttft.p50_s),
            span(group.ttft.p99_s),
            span(group.tpot.p50_s),
            span(group.tpot.p99_s),
            f"{group.outcomes[Outcome.REFUSED]:,}",
            f"{other:,}",
        )
    return table


def chart(steps: Sequence[Step], width: int = BAR) -> list[str]:
    """Goodput by rate as bars."""
    ordered = sorted(steps, key=lambda step: step.per_s)
    labels = [rate(step.per_s) for step in ordered]
    longest = max(map(len, labels), default=0)
    lines = []
    for label, step in zip(labels, ordered, strict=True):
        found = step.report.all.goodput or 0.0
        told = share(step.report.all.goodput)
        lines.append(f"{label:>{longest}}  {bar(found, width)}  {told:>6}{'' if step.kept else '  not kept'}")
    return lines


def bar(part: float, width: int) -> str:
    """A share as a bar of `width` columns."""
    eighths = round(min(1.0, max(0.0, part)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def conclusion(result: Result, goodput: float) -> str:
    """What a ramp found, in a sentence."""
    best, lost = result.per_s, result.first_not_kept
    if not result.steps:
        return "No rate was tried to its end."
    if best is None:
        assert lost is not None
        return f"No rate was kept: goodput is below {share(goodput)} at {rate(lost)} already. Begin lower with --from."
    kept = f"Greatest rate that kept a goodput of {share(goodput)}: {rate(best)}"
    match result.ending:
        case Ending.TO:
            return f"{kept}, the greatest that was to be tried. Raise --to to find the limit."
        case Ending.CLIENT:
            return f"{kept}. The client did not keep up with more: the gateway's limit may be higher."
        case Ending.GONE:
            return f"{kept}, until the gateway went away."
        case Ending.INTERRUPTED:
            return f"{kept}, as far as it was tried."
        case Ending.GOODPUT:
            return f"{kept}; {rate(lost)} did not." if lost is not None else f"{kept}."
