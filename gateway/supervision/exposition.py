"""One `/metrics` over several processes. Pure: texts come in, one text goes out.

Counters and histograms are summed, those of ended processes included, so that no rate ever drops because a process was
replaced. Gauges are of this moment and of living processes only; how they go together the families say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

TOTALS: Final = frozenset({"counter", "histogram", "summary"})
LARGEST: Final = frozenset({"python_info", "process_start_time_seconds", "process_max_fds"})
"""Of the Prometheus client's own gauges those that do not add up."""

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*(?:\{.*\})?) (\S+)(?: \S+)?$")
_SUFFIX = re.compile(r"_(?:bucket|sum|count|created)$")


@dataclass(slots=True)
class Group:
    """One family: its head lines, its type, and its samples by name and labels."""

    kind: str = "untyped"
    help: str = ""
    samples: dict[str, float] = field(default_factory=dict)


Exposition = dict[str, Group]


def parse(text: str) -> Exposition:
    """Take apart the Prometheus text format, as the client library writes it. Lines that are none are left out."""
    found: Exposition = {}
    for line in text.splitlines():
        if line.startswith("# "):
            words = line.split(" ", 3)
            if len(words) == 4 and words[1] in {"HELP", "TYPE"}:
                group = found.setdefault(words[2], Group())
                if words[1] == "HELP":
                    group.help = words[3]
                else:
                    group.kind = words[3]
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        key, value = match[1], match[2]
        name = key.partition("{")[0]
        if name not in found:
            stem = _SUFFIX.sub("", name)
            name = stem if stem in found else name
        try:
            found.setdefault(name, Group()).samples[key] = float(value)
        except ValueError:
            continue
    return found


def add_totals(into: Exposition, ended: Exposition) -> None:
    """Keep what an ended process has counted."""
    for name, group in ended.items():
        if group.kind in TOTALS:
            kept = into.setdefault(name, Group(group.kind, group.help))
            for key, value in group.samples.items():
                kept.samples[key] = kept.samples.get(key, 0.0) + value


def merge(living: Iterable[Exposition], ended: Exposition, across: Mapping[str, str]) -> str:
    """One text. `across`: how a gauge's values of several processes make one, "sum" where it is silent."""
    merged: Exposition = {}
    add_totals(merged, ended)
    for one in living:
        for name, group in one.items():
            into = merged.setdefault(name, Group(group.kind, group.help))
            how = "sum" if group.kind in TOTALS else across.get(name, "max" if name in LARGEST else "sum")
            for key, value in group.samples.items():
                before = into.samples.get(key)
                if before is None:
                    into.samples[key] = value
                else:
                    into.samples[key] = (
                        before + value if how == "sum" else max(before, value) if how == "max" else min(before, value)
                    )
    lines = []
    for name, group in merged.items():
        lines.append(f"# HELP {name} {group.help}")
        lines.append(f"# TYPE {name} {group.kind}")
        lines += [f"{key} {_number(value)}" for key, value in group.samples.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value != value:  # NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
