"""The page of `headrace report`: figures with those that fall short first, then what each file shows. Pure.

One file with everything in it: no script, no font, no picture from elsewhere. Whatever comes from a file is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from statistics import fmean
from typing import Final

from loadtest.report_charts import (
    Bar,
    Bars,
    Curve,
    bar_chart,
    curve_chart,
    percent,
    plain,
    seconds,
)
from loadtest.report_lines import (
    FigureLine,
    GroupLine,
    Ramp,
    ReplayLine,
    RunLine,
    SimulatedLine,
    Source,
    Times,
    totals,
)

UNITS: Final = {"s CPU": "processor seconds", "ms": "milliseconds"}
"""Units of figures of which several contenders have the same one: these are drawn beside each other."""

MAX_GROUPS: Final = 9  # of requests, in one chart
MAX_CHARTS: Final = 24  # of compared figures
PERCENTILES: Final = (("p50", 0), ("p90", 2), ("p99", 1))
_BOUND: Final = re.compile(r"at most (\d+(?:\.\d+)?)")
Row = Sequence[str]


def page(sources: Sequence[Source], made: str, version: str) -> str:
    """The whole document. `made`: when, in words."""
    count, failed = totals(sources)
    short = [(source.name, figure) for source in sources for figure in source.figures if not figure.ok]
    reached = [(source.name, figure) for source in sources for figure in source.figures if figure.ok]
    made_from = ", ".join(source.name for source in sources)
    about = f"made {made} by headrace {version} from {made_from}"
    head = f'<h1>Headrace report</h1><p class="quiet">{escape(about)}</p>'
    parts = [_tiles(count, failed, sources)]
    several = len(sources) > 1
    if short:
        parts.append(_section(f"Fall short: {failed} of {count} figures", _figures(short, several), css="short"))
    for source in sources:
        parts += [_section(title, inside) for title, inside in _shown(source)]
    if reached:
        parts.append(_section(f"Reached: {count - failed} of {count} figures", _figures(reached, several)))
    style = files("loadtest").joinpath("data/report.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Headrace report: {failed} of {count} figures fall short</title>\n<style>\n{style}</style></head>\n"
        f"<body><header>{head}</header>\n<main>\n" + "\n".join(parts) + "\n</main></body>\n</html>\n"
    )


def _section(title: str, inside: str, css: str = "") -> str:
    return f'<section class="{css}"><h2>{escape(title)}</h2>{inside}</section>'


def _tiles(count: int, failed: int, sources: Sequence[Source]) -> str:
    tiles = [(str(count), "figures", ""), (str(failed), "fall short", "bad" if failed else "good")]
    for source in sources:
        tiles += [(percent(one.goodput or 0.0), f"goodput at {one.wanted_per_s:.3g}/s", "") for one in source.replays]
        tiles += [
            (f"{ramp.end.greatest_per_s or 0:.3g}/s", "greatest rate kept", "") for ramp in source.ramps if ramp.end
        ]
    cells = "".join(f'<div class="{css}"><b>{escape(value)}</b>{escape(what)}</div>' for value, what, css in tiles)
    return f'<div class="tiles">{cells}</div>'


def _figures(found: Sequence[tuple[str, FigureLine]], several: bool) -> str:
    rows = []
    for name, one in found:
        badge = f'<span class="badge {"ok" if one.ok else "miss"}">{"ok" if one.ok else "short"}</span>'
        cells = f"<td>{badge}</td><td>{escape(one.figure)}</td>"
        cells += f'<td class="number" data-name="found">{escape(plain(one.value))}</td>'
        cells += f'<td data-name="wanted">{escape(one.target)}</td>'
        rows.append(f"<tr>{cells}{f'<td class=quiet>{escape(name)}</td>' if several else ''}</tr>")
    heads = ["", "figure", "found", "wanted", *(["file"] if several else [])]
    head = "".join(f'<th scope="col"{" class=number" if name == "found" else ""}>{name}</th>' for name in heads)
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _table(heads: Row, rows: Iterable[Row], words: int = 1) -> str:
    """A plain table; all but the first `words` columns are numbers."""

    def cells(row: Row, tag: str) -> str:
        return "".join(
            f"<{tag}{' class=number' if at >= words else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'


def _charts(charts: Iterable[str]) -> str:
    listed = "".join(charts)
    return f'<div class="charts">{listed}</div>' if listed else ""


def _shown(source: Source) -> Iterable[tuple[str, str]]:
    """(title, content) of what a file has besides figures."""
    if compared := _compared(source.figures):
        note = '<p class="quiet">Dashed: the most that was wanted.</p>'
        yield f"Cost beside peers ({source.name})", note + _charts(compared)
    for replay in source.replays:
        yield f"Replay of {replay.trace} ({source.name})", _replay(replay)
    for ramp in source.ramps:
        yield f"Ramp ({source.name})", _ramp(ramp)
    if source.simulated:
        yield f"Simulation ({source.name})", _simulation(source.simulated)


# -- compared figures -------------------------------------------------------------------------------------------------


def _compared(figures: Sequence[FigureLine]) -> list[str]:
    """A chart for each measure that several contenders have, by names as `nginx: 1,000 requests of 300 bytes`."""
    groups: dict[tuple[str, str], list[tuple[str, FigureLine]]] = {}
    for one in figures:
        who, _, what = one.figure.partition(": ")
        unit = one.target.partition(";")[0].strip()
        if what and unit in UNITS:
            groups.setdefault((what, unit), []).append((who, one))
    charts: list[str] = []
    for (what, unit), found in groups.items():
        if len({who for who, _ in found}) < 2 or len(charts) >= MAX_CHARTS:
            continue
        bars = []
        for who, one in sorted(found, key=lambda pair: pair[1].value):
            bound = _BOUND.search(one.target)
            bars.append(Bar(one.value, who, 0 if bound else 6, float(bound[1]) if bound else None))
        charts.append(bar_chart(what, UNITS[unit], [Bars("", bars)], plain))
    return charts


# -- live runs --------------------------------------------------------------------------------------------------------


def _replay(run: ReplayLine) -> str:
    about = (
        f"model {run.model} at {run.url}, seed {run.seed}; {run.requests:,} requests in {run.seconds:.4g} s "
        f"({run.reached_per_s:.3g} of {run.wanted_per_s:.3g} requests/s reached); goodput is within "
        f"{run.ttft_slo_s:g} s to the first token and {run.tpot_slo_s:g} s a token"
    )
    goodput = [Bar(run.goodput or 0.0, "all", 3)]
    goodput += [Bar(one.goodput or 0.0, name, 3) for name, one in _groups(run) if name]
    charts = [
        _percentiles("Time to first token", run, lambda one: one.ttft),
        _percentiles("Time per output token", run, lambda one: one.tpot),
        _percentiles("Whole answer", run, lambda one: one.total),
        bar_chart("Outcomes", "requests", [Bars("", _outcomes(run))], plain),
        bar_chart("Goodput", "% of requests", [Bars("", goodput)], percent),
    ]
    return f'<p class="quiet">{escape(about)}</p>{_notes(run.warnings, run)}{_charts(charts)}{_troubles(run)}'


def _notes(warnings: Sequence[str], run: RunLine | None = None) -> str:
    said = [*warnings, *(["It was interrupted: these are the requests until then."] if run and run.interrupted else [])]
    return "".join(f"<p>Note: {escape(one)}</p>" for one in said)


def _groups(run: RunLine) -> list[tuple[str, GroupLine]]:
    """All of it, then pools and classes, where there are several of them."""
    found: list[tuple[str, GroupLine]] = [("", run)]
    for kind, groups in (("pool", run.pools), ("class", run.classes)):
        if len(groups) > 1:
            found += [(f"{kind} {name}", group) for name, group in groups.items()]
    return found[:MAX_GROUPS]


def _outcomes(run: RunLine) -> list[Bar]:
    return [
        Bar(count, name, 3 if name == "answered" else 1)
        for name, count in run.outcomes.items()
        if count or name == "answered"
    ]


def _percentiles(title: str, run: RunLine, times_of: Callable[[GroupLine], Times]) -> str:
    groups = []
    for name, group in _groups(run):
        times = times_of(group)
        found = zip(PERCENTILES, (times.p50_s, times.p90_s, times.p99_s), strict=True)
        bars = [Bar(value, label, colour) for (label, colour), value in found if value is not None]
        if bars:
            groups.append(Bars(name or "all requests", bars))
    return bar_chart(title, "p50, p90, p99", groups, seconds) if groups else ""


def _troubles(run: RunLine) -> str:
    if not run.troubles:
        return ""
    rows = [(one.outcome, one.code, one.message, f"{one.count:,}") for one in run.troubles]
    return f"<h3>What went wrong</h3>{_table(('outcome', 'code', 'message of the first', 'requests'), rows, 3)}"


def _ramp(ramp: Ramp) -> str:
    parts = []
    wanted: float | None = None
    slo: float | None = None
    if ramp.end is not None:
        end, wanted, slo = ramp.end, ramp.end.goodput, ramp.end.ttft_slo_s
        best = f"{end.greatest_per_s:.4g} requests/s" if end.greatest_per_s is not None else "no rate that was tried"
        parts.append(f"<p><b>{escape(best)}</b> kept with a goodput of at least {percent(end.goodput)}.</p>")
        about = f"{end.trace} to model {end.model} at {end.url}, seed {end.seed}; ended by: {end.ending}"
        parts.append(f'<p class="quiet">{escape(about)}</p>{_notes(end.warnings)}')
    else:
        parts.append("<p>Note: the file ends before the ramp did.</p>")
    if ramp.steps:
        lost = frozenset(step.rate_per_s for step in ramp.steps if not step.kept)
        axis = "requests a second; open: not kept"
        goodput = [(step.rate_per_s, step.goodput) for step in ramp.steps if step.goodput is not None]

        def times(of: Callable[[Times], float | None]) -> list[tuple[float, float]]:
            return [(step.rate_per_s, value) for step in ramp.steps if (value := of(step.ttft)) is not None]

        charts = [
            curve_chart("Goodput", "% of requests", axis, [Curve("goodput", goodput, 0, lost)], percent,
                        bound=wanted, top=1.0),
            curve_chart("Time to first token", "logarithmic", axis,
                        [Curve("p50", times(lambda each: each.p50_s), 0, lost),
                         Curve("p99", times(lambda each: each.p99_s), 1, lost)],
                        seconds, logarithmic=True, bound=slo),
        ]  # fmt: skip
        if ramp.end is not None:
            parts.append('<p class="quiet">Dashed: what was wanted.</p>')
        parts.append(_charts(charts))
        rows = [
            (f"{step.rate_per_s:.3g}/s", "yes" if step.kept else "no",
             "" if step.goodput is None else percent(step.goodput), _time(step.ttft.p50_s), _time(step.ttft.p99_s),
             _time(step.tpot.p50_s), _time(step.tpot.p99_s))
            for step in sorted(ramp.steps, key=lambda step: step.rate_per_s)
        ]  # fmt: skip
        parts.append(_table(("rate", "kept", "goodput", "TTFT p50", "p99", "TPOT p50", "p99"), rows))
    return "".join(parts)


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)


# -- simulations ------------------------------------------------------------------------------------------------------


def _simulation(lines: Sequence[SimulatedLine]) -> str:
    routers: dict[str, list[SimulatedLine]] = {}
    for line in lines:
        routers.setdefault(line.router, []).append(line)
    means = {
        name: {
            "goodput": fmean(one.all.goodput for one in found),
            "long": fmean(one.long.goodput for one in found),
            "short p99": fmean(one.short.ttft_p99_s for one in found),
            "long p99": fmean(one.long.ttft_p99_s for one in found),
        }
        for name, found in routers.items()
    }
    windows = max(len(found) for found in routers.values())

    def chart(title: str, unit: str, keys: tuple[tuple[str, str, int], ...], shown: Callable[[float], str]) -> str:
        groups = [
            Bars(name, [Bar(mean[key], label, colour) for key, label, colour in keys]) for name, mean in means.items()
        ]
        return bar_chart(title, unit, groups, shown)

    charts = [
        chart("Goodput", "% of requests", (("goodput", "all", 0), ("long", "long", 1)), percent),
        chart("Time to first token", "p99 of prompts", (("short p99", "short", 0), ("long p99", "long", 1)), seconds),
    ]
    return f'<p class="quiet">Means over {windows} windows of recorded traffic.</p>{_charts(charts)}'
