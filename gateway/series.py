"""Counters and histograms that cost little to count, and their way into a Prometheus registry.

Why not the client library's own: one thread counts here, and its locks and label look-ups are per call. Measured on
CPython 3.11, nanoseconds: `labels().inc()` 1,030, a bound child's `inc()` 320, a bound `observe()` 790; `observe()`
here 120, with the look-up of its labels 150. The text format is theirs.

A series exists from its first value on. Who counts again and again under the same labels keeps a `LateCounter` or a
`LateHistogram`, which looks its series up once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

MAX_SERIES = 4096
"""Most label combinations of one family; what comes after counts under `other`."""

OTHER = "other"

_NEVER: Final = -inf

Labels = tuple[str, ...]


class Kind(StrEnum):
    """What a family's numbers are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it says, its labels, and its buckets when it is a histogram."""

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    across: str = "sum"  # how the gauges of several processes make one: sum, max or min


class Counter:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counts:
    """A counter family: one `Counter` for each combination of label values."""

    __slots__ = ("_max", "_other", "family", "series")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self.family = family
        self.series: dict[Labels, Counter] = {} if family.labels else {(): Counter()}
        self._max = max_series
        self._other = (OTHER,) * len(family.labels)

    def at(self, labels: Labels = ()) -> Counter:
        """The series of these label values, for something to be counted in it now."""
        series = self.series
        found = series.get(labels)
        if found is None:
            if len(series) >= self._max:
                labels = self._other
            found = series.setdefault(labels, Counter())
        return found

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Count `amount` under these label values."""
        self.at(labels).value += amount

    def forget(self, label: str, value: str) -> None:
        """Drop the series in which `label` is `value`: what it named is gone for good."""
        place = self.family.labels.index(label)
        for labels in [labels for labels in self.series if labels[place] == value]:
            del self.series[labels]

    def metric(self) -> Metric:
        """What Prometheus reads."""
        metric = CounterMetricFamily(self.family.name, self.family.help, labels=self.family.labels)
        for labels, series in list(self.series.items()):
            metric.add_metric(labels, series.value)
        return metric


class LateCounter:
    """One combination of label values that may come to count."""

    __slots__ = ("_counts", "_found", "_labels")

    def __init__(self, counts: Counts, labels: Labels) -> None:
        self._counts = counts
        self._labels = labels
        self._found: Counter | None = None

    def add(self, amount: float) -> None:
        """Count."""
        found = self._found
        if found is None:
            found = self._found = self._counts.at(self._labels)
        found.value += amount


class _Bucket:
    """How many values fell into one bucket. An object: compiled, its number needs none of its own."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Histogram:
    """One series of a histogram: how many values fell into each bucket, and their sum."""

    __slots__ = ("_above", "_at", "_buckets", "_last", "_upto", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._buckets: list[_Bucket | None] = [None] * (len(bounds) + 1)  # None: nothing fell there yet
        self.sum = 0.0
        # The bucket of the last value, and what is in it: the next one most often is too.
        self._last, self._at, self._above, self._upto = _Bucket(), 0, _NEVER, _NEVER

    def observe(self, value: float) -> None:
        """Count one value (seconds, everywhere here)."""
        if not self._above < value <= self._upto:
            self._find(value)
        self._last.count += 1
        self.sum += value

    def _find(self, value: float) -> None:
        """Go to the bucket of a value, which most often is not far. What is no number counts in the first."""
        bounds, at = self.bounds, self._at
        while at < len(bounds) and value > bounds[at]:
            at += 1
        while at and not value > bounds[at - 1]:
            at -= 1
        found = self._buckets[at]
        if found is None:
            found = self._buckets[at] = _Bucket()
        self._last, self._at = found, at
        self._above = bounds[at - 1] if at else _NEVER
        self._upto = bounds[at] if at < len(bounds) else -_NEVER

    @property
    def counts(self) -> list[int]:
        """How many values fell into each bucket."""
        return [0 if each is None else each.count for each in self._buckets]

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Histograms:
    """A histogram family: one `Histogram` for each combination of label values."""

    __slots__ = ("_max", "_other", "family", "series")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self.family = family
        self.series: dict[Labels, Histogram] = {} if family.labels else {(): Histogram(family.buckets)}
        self._max = max_series
        self._other = (OTHER,) * len(family.labels)

    def at(self, labels: Labels = ()) -> Histogram:
        """The series of these label values; keep it where many values follow."""
        series = self.series
        found = series.get(labels)
        if found is None:
            if len(series) >= self._max:
                labels = self._other
            found = series.setdefault(labels, Histogram(self.family.buckets))
        return found

    def metric(self) -> Metric:
        """What Prometheus reads."""
        metric = HistogramMetricFamily(self.family.name, self.family.help, labels=self.family.labels)
        for labels, series in list(self.series.items()):
            counts, total = series.counts, series.sum
            metric.add_metric(labels, list(_cumulative(series.bounds, counts)), total)
        return metric


class LateHistogram:
    """One combination of label values of which values may come."""

    __slots__ = ("_found", "_histograms", "_labels")

    def __init__(self, histograms: Histograms, labels: Labels) -> None:
        self._histograms = histograms
        self._labels = labels
        self._found: Histogram | None = None

    def observe(self, value: float) -> None:
        """Count one value."""
        found = self._found
        if found is None:
            found = self._found = self._histograms.at(self._labels)
        found.observe(value)


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(repr, bounds), "+Inf"), counts, strict=True):
        total += count
        yield bound, total


def make_room(known: dict[Any, Any]) -> None:
    """Keep what is looked up by names that anybody may bring within bounds: when it is full, it begins anew."""
    if len(known) >= MAX_SERIES:
        known.clear()


def gauge(family: Family, values: Iterable[tuple[Labels, float]]) -> Metric:
    """A gauge family with the values of this moment."""
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric
