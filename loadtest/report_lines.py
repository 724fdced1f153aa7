"""The JSON lines that suites print, read back strictly: figures, replays, ramps, simulations. Pure.

A line is known by the fields that only its kind has. Whatever is no line of theirs is refused with its place: a report
that leaves out what it does not know would look better than what it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

MAX_LINES: Final = 20_000  # of all files: a suite prints some hundreds
MAX_LINE_BYTES: Final = 4 << 20
SHOWN: Final = 80  # characters of what is wrong

KNOWN: Final = (
    "a line that `headrace verify` or `headrace loadtest compare`, `processes`, `soak`, `simulate`, `replay` or `ramp` "
    "prints with --json"
)


class LineError(ValueError):
    """A line that none of the suites printed. The message says where, what is wrong and what was expected."""


Count = Annotated[int, Field(ge=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
Text = Annotated[str, Field(max_length=4096)]


class Line(BaseModel):
    """Further fields are left aside: those are for programs."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class FigureLine(Line):
    """A figure with its target."""

    figure: Text
    value: FiniteFloat
    target: Text
    ok: bool


class Times(Line):
    """Percentiles; None where there were none."""

    p50_s: Seconds | None
    p90_s: Seconds | None
    p99_s: Seconds | None


class GroupLine(Line):
    """Some of the requests of a replay or a step."""

    requests: Count
    outcomes: dict[Text, Count]
    goodput: Share | None
    ttft: Times
    tpot: Times
    total: Times


class Trouble(Line):
    """One way in which requests did not succeed."""

    outcome: Text
    code: Text
    count: Count
    message: Text


class RunLine(GroupLine):
    """All of a replay, or of one step."""

    seconds: Seconds
    took_s: Seconds
    wanted_per_s: Seconds
    reached_per_s: Seconds
    troubles: list[Trouble]
    pools: dict[Text, GroupLine]
    classes: dict[Text, GroupLine]
    interrupted: bool


class ReplayLine(RunLine):
    """`loadtest replay`."""

    trace: Text
    url: Text
    model: Text
    seed: int
    ttft_slo_s: Seconds
    tpot_slo_s: Seconds
    warnings: list[Text]


class StepLine(RunLine):
    """A step of `loadtest ramp`."""

    rate_per_s: Annotated[FiniteFloat, Field(gt=0)]
    kept: bool


class RampLine(Line):
    """What a ramp came to."""

    trace: Text
    url: Text
    model: Text
    seed: int
    goodput: Share
    ttft_slo_s: Seconds
    tpot_slo_s: Seconds
    greatest_per_s: Seconds | None
    ending: Text
    warnings: list[Text]


class SimulatedGroup(Line):
    """Some of the requests of a simulation."""

    requests: Count
    goodput: Share
    ttft_p50_s: Seconds
    ttft_p99_s: Seconds
    tpot_p99_s: Seconds


class SimulatedLine(Line):
    """A router in one window of `loadtest simulate`."""

    router: Text
    window: int
    all: SimulatedGroup
    short: SimulatedGroup
    long: SimulatedGroup


@dataclass(slots=True)
class Ramp:
    """Steps of a ramp, and what it came to; None: the file ends before that."""

    steps: list[StepLine] = field(default_factory=list)
    end: RampLine | None = None


@dataclass(slots=True)
class Source:
    """What one file says."""

    name: str
    figures: list[FigureLine] = field(default_factory=list)
    replays: list[ReplayLine] = field(default_factory=list)
    ramps: list[Ramp] = field(default_factory=list)
    simulated: list[SimulatedLine] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Figures that fall short."""
        return sum(not figure.ok for figure in self.figures)

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.figures or self.replays or self.ramps or self.simulated)


def read(name: str, lines: Iterable[bytes], so_far: int = 0) -> tuple[Source, int]:
    """What these lines say, and how many there are with those `so_far`. Raises LineError."""
    source = Source(name)
    open_ramp: Ramp | None = None
    number = 0
    for number, raw in enumerate(lines, 1):
        where = f"{name}, line {number}"
        if so_far + number > MAX_LINES:
            raise LineError(f"{where}: there are more than {MAX_LINES:,} lines; make a report of fewer files")
        if len(raw) > MAX_LINE_BYTES:
            raise LineError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB; expected {KNOWN}")
        if not raw.strip():
            continue
        value = _object(raw, where)
        if "figure" in value:
            source.figures.append(_line(FigureLine, value, where, "a figure"))
        elif "step" in value:
            if open_ramp is None:
                open_ramp = Ramp()
                source.ramps.append(open_ramp)
            open_ramp.steps.append(_line(StepLine, value["step"], where, "a step of `loadtest ramp`", "step."))
        elif "greatest_per_s" in value:
            end = _line(RampLine, value, where, "the end of `loadtest ramp`")
            if open_ramp is None:
                open_ramp = Ramp()
                source.ramps.append(open_ramp)
            open_ramp.end, open_ramp = end, None
        elif "outcomes" in value:
            source.replays.append(_line(ReplayLine, value, where, "the result of `loadtest replay`"))
        elif "router" in value:
            source.simulated.append(_line(SimulatedLine, value, where, "a result of `loadtest simulate`"))
        else:
            fields = ", ".join(list(value)[:5])[:SHOWN] or "nothing"
            raise LineError(f"{where}: an object with {fields}; expected {KNOWN}")
    if source.empty:
        raise LineError(f"{name}: has no line; expected {KNOWN}")
    return source, so_far + number


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        begin = raw.strip()[:SHOWN].decode("utf-8", "replace")
        raise LineError(f"{where}: not JSON ({error}): {begin!r}; expected {KNOWN}") from None
    if not isinstance(value, dict):
        raise LineError(f"{where}: {type(value).__name__}, not an object; expected {KNOWN}")
    return value


Kind = TypeVar("Kind", bound=Line)


def _line(kind: type[Kind], value: Any, where: str, what: str, prefix: str = "") -> Kind:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        path = prefix + ".".join(map(str, first["loc"]))
        raise LineError(
            f"{where}: {path.rstrip('.') or 'it'}: {first['msg']}, got {str(first['input'])[:SHOWN]!r}; expected {what}"
        ) from None


def totals(sources: Sequence[Source]) -> tuple[int, int]:
    """(figures, those that fall short)."""
    return sum(len(source.figures) for source in sources), sum(source.failed for source in sources)
