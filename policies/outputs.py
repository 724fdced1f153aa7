"""Learned output lengths: what a request is likely to generate, before and while it does.

For each tenant, route, model and size of `max_tokens` a histogram over half octaves of output tokens, drawn with the
weight of SHRINK requests towards that of all tenants, that towards the route's over all models, and that towards a
prior. Old observations fade by halving all when a
histogram is full. Memory is bounded: the histograms used longest ago are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
LONGEST: Final = EDGES[-1]

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


class _Bin:
    """Outputs of about one length. An object, because compiled its numbers need none of their own as in lists."""

    __slots__ = ("count", "sum")

    def __init__(self, count: float, total: float) -> None:
        self.count = count
        self.sum = total


class Histogram:
    """Weights of outputs by length, and their token sums."""

    __slots__ = (
        "_bins", "high", "kept", "key", "length", "limit", "mean", "model", "route", "since", "told", "total", "turn",
        "wider",
    )  # fmt: skip

    def __init__(self, key: Key = ("", "", "", 0)) -> None:
        self.key = key
        _, self.route, self.model, self.limit = key
        self._bins: list[_Bin | None] = [None] * BUCKETS  # None: nothing fell there yet
        self.total = 0.0  # of the counts
        self.length = 0.0  # of the sums
        self.told = False  # mean and 90th percentile as they were when last asked, if ever
        self.mean = self.high = 0.0
        self.since = 0.0  # weight added after that
        self.turn = 0  # when it was last found to be in use
        self.kept = True
        self.wider: list[Histogram] | None = None  # those that count the same outputs; None: not looked up yet

    def add(self, index: int, tokens: float) -> None:
        """An output of that many tokens, which belongs into that bucket, has ended."""
        found = self._bins[index]
        if found is None:
            found = self._bins[index] = _Bin(0.0, 0.0)
        found.count += 1.0
        found.sum += tokens
        self.total += 1.0
        self.length += tokens
        self.since += 1.0
        if self.total >= FULL:
            self._halve()

    def _halve(self) -> None:
        """All weigh half as much from now on."""
        self.total = self.length = 0.0
        for each in self._bins:
            if each is not None:
                each.count /= 2
                each.sum /= 2
                self.total += each.count
                self.length += each.sum

    def fill(self, counts: list[float], sums: list[float]) -> None:
        """Take over these counts and sums of all buckets."""
        self._bins = [_Bin(count, sums[at]) if count else None for at, count in enumerate(counts)]
        self.total = sum(counts, 0.0)
        self.length = sum(sums, 0.0)

    def count(self, index: int) -> float:
        """The weight of one bucket."""
        found = self._bins[index]
        return 0.0 if found is None else found.count

    @property
    def counts(self) -> list[float]:
        """The weights of all buckets."""
        return [0.0 if each is None else each.count for each in self._bins]

    @property
    def sums(self) -> list[float]:
        """The tokens of all buckets."""
        return [0.0 if each is None else each.sum for each in self._bins]

    @property
    def fresh(self) -> bool:
        """Whether what was told is still about right: few were added since, relative to all."""
        return self.told and self.since * 16 < self.total


def _prior() -> Histogram:
    """Before anything was seen: 128 tokens on average, nine of ten below 512."""
    prior = Histogram()
    for tokens, times in ((16, 2), (64, 3), (128, 2), (256, 2), (490, 1)):
        for _ in range(times):
            prior.add(bucket_of(tokens), float(tokens))
    return prior


PRIOR: Final = _prior()


class OutputLengths:
    """What outputs have been like, by tenant, route, model and size of `max_tokens`."""

    def __init__(self) -> None:
        self._histograms: dict[Key, Histogram] = {}  # those used last at the end, as far as `_use` says
        self._latest: dict[str, Histogram] = {}  # of each tenant, its own that was asked for last
        self._turn = 0

    def observe(self, tenant: str, route: str, limit: int | None, tokens: int, model: str = ANYTHING) -> None:
        """One output of that many tokens has ended by itself or at its limit."""
        size = limit_of(limit)
        self._turn += 1
        own = self._own(tenant, route, model, size)
        wider = None if own is None else own.wider
        if own is None or wider is None or not all(each.kept for each in wider):
            key = (tenant, route, model, size)
            own, wider = self._get(key), []
            # One by one: with names that are empty some of them are the same.
            for other in ((ANYBODY, route, model, key[3]), (ANYBODY, route, ANYTHING, key[3])):
                if other != key and all(other != each.key for each in wider):
                    wider.append(self._get(other))
            own.wider = wider
        index, length = bucket_of(tokens), float(min(max(tokens, 1), LONGEST))
        self._use(own)
        own.add(index, length)
        for each in wider:
            self._use(each)
            each.add(index, length)

    def expect(self, tenant: str, route: str, limit: int | None, model: str = ANYTHING) -> tuple[int, int]:
        """(expected, 90th percentile) output tokens of one answer, within `limit`, each at least 1."""
        size = limit_of(limit)
        own = self._own(tenant, route, model, size)
        if own is not None and own.fresh:
            return _within(own.mean, limit), _within(own.high, limit)
        parts = self._parts((tenant, route, model, size))
        weight = length = 0.0
        for part in parts:
            weight += part.histogram.total * part.factor
            length += part.histogram.length * part.factor
        mean, high = length / weight, _quantile(parts, weight)
        if own is not None:
            own.told, own.mean, own.high, own.since = True, mean, high, 0.0
        return _within(mean, limit), _within(high, limit)

    def expect_beyond(self, tenant: str, route: str, limit: int | None, produced: int, model: str = ANYTHING) -> int:
        """Expected tokens of an answer that has `produced` so far and goes on: E[O | O > produced]."""
        start = bucket_of(produced + 1)
        low, high = EDGES[start], EDGES[start + 1]
        # Of the bucket it is in, what lies beyond; lengths inside a bucket are taken as even.
        share = min(max((high - produced) / max(high - low, 1), 0.0), 1.0)
        weight = total = 0.0
        for part in self._parts((tenant, route, model, limit_of(limit))):
            counts, sums = part.histogram.counts, part.histogram.sums
            inside = share * counts[start]
            weight += part.factor * (sum(counts[start + 1 :], 0.0) + inside)
            total += part.factor * (sum(sums[start + 1 :], 0.0) + inside * (max(produced, low) + high) / 2)
        expected = total / weight if weight > 0.0 else produced + 1.0
        return max(_within(expected, limit), min(produced + 1, limit) if limit is not None else produced + 1)

    def snapshot(self) -> dict[str, object]:
        """All of it as plain data, to survive a restart."""
        rows = [[*each.key, each.counts, each.sums] for each in self._histograms.values()]
        return {"edges": list(EDGES), "rows": rows}

    def restore(self, data: Mapping[str, object]) -> int:
        """Take over what `snapshot` gave, as far as it makes sense; how many histograms that was."""
        rows = data.get("rows")
        if data.get("edges") != list(EDGES) or not isinstance(rows, list):
            return 0
        taken = 0
        for row in rows[-MAX_HISTOGRAMS:]:
            histogram = _parse(row)
            if histogram is not None:
                before = self._histograms.pop(histogram.key, None)
                if before is not None:
                    before.kept = False
                self._make_room()
                self._keep(histogram)
                taken += 1
        return taken

    def __len__(self) -> int:
        return len(self._histograms)

    def _own(self, tenant: str, route: str, model: str, size: int) -> Histogram | None:
        """A tenant's own histogram, if it has it. Most often it is the one before, found without hashing four parts."""
        own = self._latest.get(tenant)
        if own is None or own.limit != size or own.route != route or own.model != model or not own.kept:
            own = self._histograms.get((tenant, route, model, size))
            if own is not None:
                if len(self._latest) >= MAX_HISTOGRAMS:
                    self._latest.clear()
                self._latest[tenant] = own
        return own

    def _get(self, key: Key) -> Histogram:
        """A key's histogram, made if it is none yet; it is used now."""
        histogram = self._histograms.pop(key, None)
        if histogram is None:
            self._make_room()
            histogram = Histogram(key)
        self._keep(histogram)
        return histogram

    def _use(self, histogram: Histogram) -> None:
        """It was used: it goes to the end, unless it was there only a sixteenth of all turns ago."""
        if self._turn - histogram.turn > MAX_HISTOGRAMS >> 4:
            self._keep(self._histograms.pop(histogram.key))

    def _keep(self, histogram: Histogram) -> None:
        histogram.turn = self._turn
        self._histograms[histogram.key] = histogram

    def _make_room(self) -> None:
        if len(self._histograms) >= MAX_HISTOGRAMS:
            self._histograms.pop(next(iter(self._histograms))).kept = False

    def _parts(self, key: Key) -> list[_Part]:
        """What a key's distribution is put together of: its own histogram, drawn towards that of all tenants, that
        towards the one of all models on its route, and that towards the prior."""
        _, route, model, size = key
        everybody, whole = (ANYBODY, route, model, size), (ANYBODY, route, ANYTHING, size)
        levels = [(whole, PRIOR_WEIGHT)]
        if everybody != whole:
            levels.append((everybody, SHRINK))
        if key != everybody:
            levels.append((key, SHRINK))
        found: list[_Part] = []
        factor, weight = 1.0, 0.0  # of what is to be spread over the next level
        for each, drawn in reversed(levels):
            histogram = self._histograms.get(each)
            total = drawn if histogram is None else histogram.total + drawn
            if weight > 0.0:
                factor *= weight / total
            if histogram is not None:
                found.append(_Part(histogram, factor))
            weight = drawn
        found.append(_Part(PRIOR, factor * weight / PRIOR.total))
        return found


@dataclass(slots=True, eq=False)
class _Part:
    """A histogram and how much its weights count."""

    histogram: Histogram
    factor: float


def _quantile(parts: list[_Part], weight: float) -> float:
    """The length that a share of QUANTILE does not exceed. `weight`: of all parts together."""
    wanted = QUANTILE * weight
    for index in range(BUCKETS):
        count = 0.0
        for part in parts:
            count += part.histogram.count(index) * part.factor
        if count >= wanted:
            low, high = EDGES[index], EDGES[index + 1]
            return low + (high - low) * wanted / count if count else float(low)
        wanted -= count
    # Only rounding leads here: the last bucket holds the rest.
    return float(EDGES[-1])


def _within(tokens: float, limit: int | None) -> int:
    whole = max(int(tokens + 0.5), 1)
    return whole if limit is None else max(min(whole, limit), 1)


def _parse(row: object) -> Histogram | None:
    if not isinstance(row, list) or len(row) != NAMES + 2:
        return None
    *names, size, counts, sums = row
    if not all(isinstance(name, str) for name in names) or not isinstance(size, int) or not 0 <= size < 64:
        return None
    tenant, route, model = names
    key = (tenant, route, model, size)
    histogram = Histogram(key)
    if not _numbers(counts) or not _numbers(sums) or not 0.0 < sum(counts, 0.0) <= FULL:
        return None
    for index, (count, total) in enumerate(zip(counts, sums, strict=True)):
        # What lies outside of its bucket was not made by us.
        if not EDGES[index] * count * 0.99 <= total <= EDGES[index + 1] * count * 1.01:
            return None
    histogram.fill([float(count) for count in counts], [float(total) for total in sums])
    return histogram


def _numbers(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) == BUCKETS
        and all(isinstance(value, (int, float)) and isfinite(value) and value >= 0 for value in values)
    )
