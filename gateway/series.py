"""Counters and histograms that cost little to count, and their way into a Prometheus registry.

Why not the client library's own: one thread counts here, and its locks and label look-ups are per call. Measured on
CPython 3.11, nanoseconds: `labels().inc()` 1,030, a bound child's `inc()` 320, a bound `observe()` 790; `observe()`
here 120, with the look-up of its labels 150. One is made for every event of every stream. The text format is theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

MAX_SERIES = 4096
"""Most label combinations of one family; what comes after counts under `other`."""

OTHER = "other"

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


class Counts:
    """A counter family: sums by label values."""

    __slots__ = ("_max", "_other", "family", "values")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self.family = family
        self.values: dict[Labels, float] = {} if family.labels else {(): 0.0}
        self._max = max_series
        self._other = (OTHER,) * len(family.labels)

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Count `amount` under these label values."""
        values = self.values
        if labels in values:
            values[labels] += amount
        elif len(values) < self._max:
            values[labels] = amount
        else:
            values[self._other] = values.get(self._other, 0.0) + amount

    def forget(self, label: str, value: str) -> None:
        """Drop the series in which `label` is `value`: what it named is gone for good."""
        place = self.family.labels.index(label)
        for labels in [labels for labels in self.values if labels[place] == value]:
            del self.values[labels]

    def metric(self) -> Metric:
        """What Prometheus reads."""
        metric = CounterMetricFamily(self.family.name, self.family.help, labels=self.family.labels)
        for labels, value in list(self.values.items()):
            metric.add_metric(labels, value)
        return metric


class Histogram:
    """One series of a histogram: how many values fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value (seconds, everywhere here)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

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
            counts, total = series.counts[:], series.sum
            metric.add_metric(labels, list(_cumulative(series.bounds, counts)), total)
        return metric


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(repr, bounds), "+Inf"), counts, strict=True):
        total += count
        yield bound, total


def gauge(family: Family, values: Iterable[tuple[Labels, float]]) -> Metric:
    """A gauge family with the values of this moment."""
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric
