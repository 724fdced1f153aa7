"""Charts as inline SVG: bars and curves with titles, units and axes. Pure: values in, markup out.

A chart is as wide as a phone and grows with the page, so that its words can be read on both. Colours are classes, which
the page's style gives a value in light and in dark. Every text is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 340
LINE: Final = 16  # between two lines of text
BAR: Final = 12
PLOT_HEIGHT: Final = 170
LEFT: Final = 52
RIGHT: Final = 12
LETTER: Final = 6.9  # of the labels' font, on average
COLOURS: Final = 7
DECADES: Final = 6  # of a logarithmic axis
LEAST: Final = 1e-9  # what is smaller is drawn as nothing


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `most`: a bound to draw across it."""

    value: float
    label: str = ""  # in front of the value
    colour: int = 0
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that belong together, under a name."""

    name: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by x, joined; those in `hollow` are drawn open."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    hollow: frozenset[float] = frozenset()


def text(x: float, y: float, words: str, *, css: str = "label", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def figure(title: str, unit: str, inside: str, height: float, legend: Sequence[tuple[str, int]] = ()) -> str:
    """A chart with its title, unit and legend."""
    key = "".join(f'<li class="colour-{colour % COLOURS}"><span>{escape(name)}</span></li>' for name, colour in legend)
    listed = f'<ul class="legend">{key}</ul>' if key else ""
    name = escape(f"{title}, {unit}", quote=True)
    return (
        f'<figure><figcaption>{escape(title)} <span class="unit">{escape(unit)}</span></figcaption>{listed}'
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{inside}</svg></figure>'
    )


def cut(words: str, width: float) -> str:
    """Words that fit into so many units."""
    room = max(1, int(width / LETTER))
    return words if len(words) <= room else words[: room - 1] + "…"


def bar_chart(
    title: str,
    unit: str,
    groups: Sequence[Bars],
    shown: Callable[[float], str],
    legend: Sequence[tuple[str, int]] = (),
) -> str:
    """Horizontal bars from zero, a group below the other; each has its value beside it."""
    values = [value for group in groups for bar in group.bars for value in (bar.value, bar.most or 0.0)]
    ticks = linear_ticks(max(values, default=0.0))
    end = ticks[-1] or 1.0
    names = max((len(bar.label) for group in groups for bar in group.bars), default=0)
    left = min(120.0, names * LETTER + 8) if names else 2.0
    room = WIDTH - left - 58

    def at(value: float) -> float:
        return left + room * (value / end)

    parts: list[str] = []
    y = 4.0
    for group in groups:
        if group.name:
            y += LINE
            parts.append(text(0, y - 4, cut(group.name, WIDTH), css="label strong"))
        for bar in group.bars:
            wide = max(0.0, at(bar.value) - left)
            said = shown(bar.value)
            tip = escape(" ".join(filter(None, (group.name, bar.label, said))))
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{BAR}" rx="2" '
                f'class="bar colour-{bar.colour % COLOURS}"><title>{tip}</title></rect>'
            )
            if bar.most is not None:
                x = at(bar.most)
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2:.1f}" y2="{y + BAR + 2:.1f}" class="bound"/>')
            if bar.label:
                parts.append(text(left - 5, y + BAR - 2, cut(bar.label, left - 4), anchor="end"))
            beside = max(left + wide, at(bar.most) if bar.most is not None else 0.0) + 5
            parts.append(text(beside, y + BAR - 2, said, css="label value"))
            y += BAR + 5
        y += 4
    for tick in ticks:
        x = at(tick)
        parts.insert(0, f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{y:.1f}" class="grid"/>')
        parts.append(text(x, y + LINE - 3, shown(tick), css="axis", anchor="middle" if tick else "start"))
    return figure(title, unit, "".join(parts), y + LINE + 2, legend)


def curve_chart(
    title: str,
    unit: str,
    x_title: str,
    curves: Sequence[Curve],
    shown: Callable[[float], str],
    *,
    logarithmic: bool = False,
    bound: float | None = None,
    top: float | None = None,
) -> str:
    """Curves over x. `bound`: a line that they are to be held against; `top`: the end of the y axis."""
    points = [point for curve in curves for point in curve.points]
    xs = linear_ticks(max((x for x, _ in points), default=1.0))
    values = [y for _, y in points] + ([] if bound is None else [bound])
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        ys = log_ticks(min(positive), max(positive))
        low, high = log10(ys[0]), log10(ys[-1])
    else:
        ys = linear_ticks(max(values, default=1.0) if top is None else top)
        low, high = 0.0, ys[-1] or 1.0
    width, base = WIDTH - LEFT - RIGHT, 8.0 + PLOT_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        height = log10(max(y, ys[0])) if logarithmic else y
        share = (height - low) / ((high - low) or 1.0)
        return LEFT + width * x / (xs[-1] or 1.0), base - PLOT_HEIGHT * min(1.0, share)

    parts: list[str] = []
    for tick in ys:
        _, y = place(0.0, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(text(LEFT - 5, y + 4, shown(tick), css="axis", anchor="end"))
    for tick in xs:
        x, _ = place(tick, ys[0])
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base:.1f}" y2="{base + 4:.1f}" class="grid"/>')
        parts.append(text(x, base + LINE, f"{tick:g}", css="axis", anchor="middle"))
    parts.append(text(LEFT + width / 2, base + 2 * LINE, x_title, css="axis", anchor="middle"))
    if bound is not None:
        _, y = place(0.0, bound)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="bound"/>')
    for curve in curves:
        placed = [(x, y, *place(x, y)) for x, y in sorted(curve.points)]
        path = " ".join(f"{px:.1f},{py:.1f}" for _, _, px, py in placed)
        colour = f"colour-{curve.colour % COLOURS}"
        if len(placed) > 1:
            parts.append(f'<polyline points="{path}" class="curve {colour}"/>')
        for x, y, px, py in placed:
            kind = "dot open" if x in curve.hollow else "dot"
            tip = escape(f"{curve.name}: {shown(y)} at {x:.4g}")
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" class="{kind} {colour}"><title>{tip}</title></circle>'
            )
    legend = [(curve.name, curve.colour) for curve in curves] if len(curves) > 1 else []
    return figure(title, unit, "".join(parts), base + 2 * LINE + 6, legend)


def linear_ticks(most: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    if most < LEAST:
        return [0.0, 1.0]
    rough = most / wanted
    size = 10.0 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    return [round(step * number, 12) for number in range(ceil(most / step - 1e-9) + 1)]


def log_ticks(least: float, most: float) -> list[float]:
    """Powers of ten around both; of a range that is too wide to draw, the upper end."""
    most = max(most, LEAST)
    first, last = floor(log10(max(least, most / 10**DECADES, LEAST)) + 1e-9), ceil(log10(most) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def seconds(value: float) -> str:
    """A time, short."""
    if value == 0:
        return "0"
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.3g} %"


def plain(value: float) -> str:
    """A number."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"
