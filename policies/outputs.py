"""Learned output lengths: what a request is likely to generate, before and while it does.

For each tenant, route, model and size of `max_tokens` a histogram over half octaves of output tokens, drawn with the
weight of SHRINK requests towards that of all tenants, that towards the route's over all models, and that towards a
prior. Old observations fade by halving all when a
histogram is full. Memory is bounded: the histograms used longest ago are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

BUCKETS: Final = 44  # half octaves up to 2^22 tokens
SHRINK: Final = 20.0  # requests that a tenant's own history has to outweigh
PRIOR_WEIGHT: Final = 5.0
FULL: Final = 400.0  # requests after which a histogram halves
MAX_HISTOGRAMS: Final = 4096
QUANTILE: Final = 0.9
NAMES: Final = 4  # parts of a key: tenant, route, model, limit
ANYBODY: Final = ""  # the tenant of a histogram of all of them
ANYTHING: Final = ""  # the model of one of all of them

# Lower edges of the buckets; the last is the upper edge of the last one.
EDGES: Final = tuple(round(2 ** (index / 2)) for index in range(BUCKETS + 1))

Key = tuple[str, str, str, int]


def bucket_of(tokens: int) -> int:
    """The bucket of an output of `tokens`; none at all counts as one."""
    tokens = max(tokens, 1)
    octave = tokens.bit_length() - 1
    upper_half = tokens >= EDGES[min(2 * octave + 1, BUCKETS)]
    return min(2 * octave + upper_half, BUCKETS - 1)


def limit_of(limit: int | None) -> int:
    """The size of a `max_tokens`: its bits, 0 for none."""
    return 0 if limit is None else max(limit, 1).bit_length()


class Histogram:
    """Weights of outputs by length, and their token sums."""

    __slots__ = ("counts", "since", "sums", "told", "total")

    def __init__(self) -> None:
        self.counts = [0.0] * BUCKETS
        self.sums = [0.0] * BUCKETS
        self.total = 0.0
        self.told: tuple[float, float] | None = None  # mean and quantile when last asked
        self.since = 0.0  # weight added after that

    def add(self, tokens: int) -> None:
        """One output has ended."""
        index = bucket_of(tokens)
        self.counts[index] += 1.0
        self.sums[index] += float(min(max(tokens, 1), EDGES[-1]))
        self.total += 1.0
        self.since += 1.0
        if self.total >= FULL:
            self.counts = [count / 2 for count in self.counts]
            self.sums = [total / 2 for total in self.sums]
            self.total = sum(self.counts, 0.0)

    @property
    def fresh(self) -> bool:
        """Whether what was told is still about right: few were added since, relative to all."""
        return self.told is not None and self.since * 16 < self.total


def _prior() -> Histogram:
    """Before anything was seen: 128 tokens on average, nine of ten below 512."""
    prior = Histogram()
    for tokens, times in ((16, 2), (64, 3), (128, 2), (256, 2), (490, 1)):
        for _ in range(times):
            prior.add(tokens)
    return prior


PRIOR: Final = _prior()


class OutputLengths:
    """What outputs have been like, by tenant, route, model and size of `max_tokens`."""

    def __init__(self) -> None:
        self._histograms: dict[Key, Histogram] = {}

    def observe(self, tenant: str, route: str, limit: int | None, tokens: int, model: str = ANYTHING) -> None:
        """One output of that many tokens has ended by itself or at its limit."""
        size = limit_of(limit)
        # One by one: with names that are empty some of them are the same.
        for key in dict.fromkeys(
            ((tenant, route, model, size), (ANYBODY, route, model, size), (ANYBODY, route, ANYTHING, size))
        ):
            self._get(key).add(tokens)

    def expect(self, tenant: str, route: str, limit: int | None, model: str = ANYTHING) -> tuple[int, int]:
        """(expected, 90th percentile) output tokens of one answer, within `limit`, each at least 1."""
        key = (tenant, route, model, limit_of(limit))
        own = self._histograms.get(key)
        if own is not None and own.fresh and own.told is not None:
            mean, high = own.told
        else:
            counts, sums = self._mixed(key)
            mean, high = sum(sums, 0.0) / sum(counts, 0.0), _quantile(counts)
            if own is not None:
                own.told, own.since = (mean, high), 0.0
        return _within(mean, limit), _within(high, limit)

    def expect_beyond(self, tenant: str, route: str, limit: int | None, produced: int, model: str = ANYTHING) -> int:
        """Expected tokens of an answer that has `produced` so far and goes on: E[O | O > produced]."""
        counts, sums = self._mixed((tenant, route, model, limit_of(limit)))
        start = bucket_of(produced + 1)
        weight, total = sum(counts[start + 1 :], 0.0), sum(sums[start + 1 :], 0.0)
        # Of the bucket it is in, what lies beyond; lengths inside a bucket are taken as even.
        low, high = EDGES[start], EDGES[start + 1]
        share = min(max((high - produced) / max(high - low, 1), 0.0), 1.0) * counts[start]
        weight += share
        total += share * (max(produced, low) + high) / 2
        expected = total / weight if weight > 0.0 else produced + 1.0
        return max(_within(expected, limit), min(produced + 1, limit) if limit is not None else produced + 1)

    def snapshot(self) -> dict[str, object]:
        """All of it as plain data, to survive a restart."""
        rows = [[*key, histogram.counts, histogram.sums] for key, histogram in self._histograms.items()]
        return {"edges": list(EDGES), "rows": rows}

    def restore(self, data: Mapping[str, object]) -> int:
        """Take over what `snapshot` gave, as far as it makes sense; how many histograms that was."""
        rows = data.get("rows")
        if data.get("edges") != list(EDGES) or not isinstance(rows, list):
            return 0
        taken = 0
        for row in rows[-MAX_HISTOGRAMS:]:
            parsed = _parse(row)
            if parsed is not None:
                key, histogram = parsed
                self._histograms.pop(key, None)
                self._make_room()
                self._histograms[key] = histogram
                taken += 1
        return taken

    def __len__(self) -> int:
        return len(self._histograms)

    def _get(self, key: Key) -> Histogram:
        histogram = self._histograms.pop(key, None)
        if histogram is None:
            self._make_room()
            histogram = Histogram()
        # Last in the order is used last.
        self._histograms[key] = histogram
        return histogram

    def _make_room(self) -> None:
        if len(self._histograms) >= MAX_HISTOGRAMS:
            del self._histograms[next(iter(self._histograms))]

    def _mixed(self, key: Key) -> tuple[list[float], list[float]]:
        """Counts and sums of a key, drawn towards those of all tenants, of all models on its route, and the prior."""
        _, route, model, size = key
        whole, everybody = (ANYBODY, route, ANYTHING, size), (ANYBODY, route, model, size)
        counts, sums = _drawn(self._histograms.get(whole), PRIOR.counts, PRIOR.sums, PRIOR_WEIGHT)
        if everybody != whole:
            counts, sums = _drawn(self._histograms.get(everybody), counts, sums, SHRINK)
        return (counts, sums) if key == everybody else _drawn(self._histograms.get(key), counts, sums, SHRINK)


def _drawn(
    histogram: Histogram | None, counts: Sequence[float], sums: Sequence[float], weight: float
) -> tuple[list[float], list[float]]:
    scale = weight / sum(counts, 0.0)
    if histogram is None:
        return [count * scale for count in counts], [total * scale for total in sums]
    return (
        [own + count * scale for own, count in zip(histogram.counts, counts, strict=True)],
        [own + total * scale for own, total in zip(histogram.sums, sums, strict=True)],
    )


def _quantile(counts: Sequence[float]) -> float:
    wanted = QUANTILE * sum(counts, 0.0)
    for index, count in enumerate(counts):
        if count >= wanted:
            low, high = EDGES[index], EDGES[index + 1]
            return low + (high - low) * wanted / count
        wanted -= count
    # Only rounding leads here: the last bucket holds the rest.
    return float(EDGES[-1])


def _within(tokens: float, limit: int | None) -> int:
    whole = max(round(tokens), 1)
    return whole if limit is None else max(min(whole, limit), 1)


def _parse(row: object) -> tuple[Key, Histogram] | None:
    if not isinstance(row, list) or len(row) != NAMES + 2:
        return None
    *names, size, counts, sums = row
    if not all(isinstance(name, str) for name in names) or not isinstance(size, int) or not 0 <= size < 64:
        return None
    tenant, route, model = names
    histogram = Histogram()
    if not _numbers(counts) or not _numbers(sums) or not 0.0 < sum(counts, 0.0) <= FULL:
        return None
    for index, (count, total) in enumerate(zip(counts, sums, strict=True)):
        # What lies outside of its bucket was not made by us.
        if not EDGES[index] * count * 0.99 <= total <= EDGES[index + 1] * count * 1.01:
            return None
    histogram.counts, histogram.sums = [float(count) for count in counts], [float(total) for total in sums]
    histogram.total = sum(histogram.counts, 0.0)
    return (tenant, route, model, size), histogram


def _numbers(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) == BUCKETS
        and all(isinstance(value, (int, float)) and isfinite(value) and value >= 0 for value in values)
    )
