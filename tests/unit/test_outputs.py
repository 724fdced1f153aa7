"""Learned output lengths."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import outputs
from policies.outputs import BUCKETS, EDGES, FULL, OutputLengths, bucket_of, limit_of


def taught(lengths: list[int], tenant: str = "t", limit: int | None = None) -> OutputLengths:
    made = OutputLengths()
    for tokens in lengths:
        made.observe(tenant, "chat", limit, tokens)
    return made


def test_before_anything_was_seen_there_is_a_prior() -> None:
    mean, high = OutputLengths().expect("t", "chat", None)
    assert 100 <= mean <= 160
    assert 350 <= high <= 600


def test_history_wins_over_the_prior() -> None:
    rng = Random(1)
    lengths = [round(rng.lognormvariate(5.5, 0.8)) + 1 for _ in range(2000)]
    mean, high = taught(lengths).expect("t", "chat", None)
    assert mean == pytest.approx(sum(lengths) / len(lengths), rel=0.2)
    assert high == pytest.approx(sorted(lengths)[1800], rel=0.25)


def test_a_new_tenant_is_taken_for_the_route_and_then_for_itself() -> None:
    made = taught([1000] * 200, tenant="others")
    assert made.expect("new", "chat", None)[0] > 900
    for _ in range(10):
        made.observe("new", "chat", None, 10)
    between = made.expect("new", "chat", None)[0]
    for _ in range(200):
        made.observe("new", "chat", None, 10)
    own = made.expect("new", "chat", None)[0]
    assert own < 150 < between < 900
    assert made.expect("others", "completions", None)[0] < 200


def test_old_habits_fade() -> None:
    made = taught([4000] * 1000)
    for _ in range(1200):
        made.observe("t", "chat", None, 20)
    assert made.expect("t", "chat", None)[0] < 400


@pytest.mark.parametrize("limit", [1, 2, 100, 10**9])
def test_nothing_is_expected_beyond_the_limit(limit: int) -> None:
    made = taught([5000] * 50, limit=limit)
    assert all(1 <= tokens <= limit for tokens in made.expect("t", "chat", limit))
    assert made.expect_beyond("t", "chat", limit, 3) <= limit


def test_who_has_gone_on_for_long_is_expected_to_go_on() -> None:
    made = taught([50] * 150 + [4000] * 50)
    assert made.expect("t", "chat", None)[0] < 1500
    ahead = [made.expect_beyond("t", "chat", None, produced) for produced in (0, 100, 1000, 4000, 10**8)]
    assert ahead == sorted(ahead)
    assert ahead[1] > 2000
    assert ahead[-1] > 10**8


def test_what_was_told_is_kept_until_enough_is_new() -> None:
    made = taught([100] * 320)
    first = made.expect("t", "chat", None)
    made.observe("t", "chat", None, 4000)
    assert made.expect("t", "chat", None) == first
    for _ in range(40):
        made.observe("t", "chat", None, 4000)
    assert made.expect("t", "chat", None) > first


def test_each_model_has_its_own_and_new_tenants_are_drawn_to_it() -> None:
    made = OutputLengths()
    for _ in range(200):
        made.observe("t", "chat", None, 2000, "chatty")
        made.observe("t", "chat", None, 10, "terse")
    assert made.expect("t", "chat", None, "chatty")[0] > 1500
    assert made.expect("t", "chat", None, "terse")[0] < 100
    assert made.expect("new", "chat", None, "chatty")[0] > 1500
    assert made.expect("new", "chat", None, "terse")[0] < 150
    assert 500 < made.expect("new", "chat", None, "unknown")[0] < 1500, "the route, over all models"
    assert made.expect_beyond("t", "chat", None, 12, "chatty") > 1500
    assert len(made) == 5


def test_memory_is_bounded_and_the_recently_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_HISTOGRAMS", 8)
    made = OutputLengths()
    for n in range(100):
        made.observe(f"t{n}", "chat", None, 5)
        made.observe("kept", "chat", None, 900)
        made.expect(f"t{n}", "chat", None)
        assert len(made._latest) <= 8
    assert len(made) == 8
    assert made.expect("kept", "chat", None)[0] > 200
    other = OutputLengths()
    assert other.restore(made.snapshot()) == 8


def test_it_survives_a_restart() -> None:
    made = taught([700, 20, 3] * 300, limit=800)
    back = OutputLengths()
    assert back.restore(json.loads(json.dumps(made.snapshot()))) == len(made) == 2
    assert back.expect("t", "chat", 800) == made.expect("t", "chat", 800)
    assert back.restore(made.snapshot()) == 2
    assert len(back) == 2


GOOD = ["t", "chat", "m", 0, [0.0, 4.0] + [0.0] * (BUCKETS - 2), [0.0, 4.0] + [0.0] * (BUCKETS - 2)]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 5),
        (1, None),
        (2, 7),
        (3, "0"),
        (3, 64),
        (4, [1.0]),
        (4, [math.inf] * BUCKETS),
        (4, [0.0] * BUCKETS),
        (4, [FULL + 1.0] + [0.0] * (BUCKETS - 1)),
        (4, "x" * BUCKETS),
        (5, [-1.0] * BUCKETS),
        (5, [99.0] + [0.0] * (BUCKETS - 1)),
    ],
)
def test_what_makes_no_sense_is_not_taken_over(place: int, value: object) -> None:
    row: list[Any] = list(GOOD)
    assert OutputLengths().restore({"edges": list(EDGES), "rows": [row]}) == 1
    row[place] = value
    assert OutputLengths().restore({"edges": list(EDGES), "rows": [row, "text", [1, 2]]}) == 0
    assert OutputLengths().restore({"edges": [1, 2], "rows": [GOOD]}) == 0
    assert OutputLengths().restore({"edges": list(EDGES), "rows": "none"}) == 0


@given(st.integers(-5, 10**12))
def test_every_length_has_its_bucket(tokens: int) -> None:
    index = bucket_of(tokens)
    assert EDGES[index] <= max(tokens, 1)
    assert max(tokens, 1) < EDGES[index + 1] or index == BUCKETS - 1


@given(
    st.lists(st.integers(-3, 10**9), max_size=40),
    st.one_of(st.none(), st.integers(-3, 10**9)),
    st.integers(0, 10**9),
)
def test_any_history_gives_sane_numbers(lengths: list[int], limit: int | None, produced: int) -> None:
    made = taught(lengths, limit=limit)
    mean, high = made.expect("t", "chat", limit)
    assert mean >= 1
    assert high >= 1
    beyond = made.expect_beyond("t", "chat", limit, produced)
    assert beyond > produced or (limit is not None and beyond >= min(limit, produced + 1))
    assert limit_of(limit) < 64


def test_a_routes_own_histogram_is_not_counted_twice() -> None:
    made = OutputLengths()
    made.observe("", "chat", None, 10)
    assert len(made) == 1


def test_the_quantile_survives_rounding() -> None:
    for odd in ([0.0] * (BUCKETS - 1) + [1e-300], [math.nan] * BUCKETS):
        histogram = outputs.Histogram()
        histogram.fill(odd, [0.0] * BUCKETS)
        assert outputs._quantile([outputs._Part(histogram, 1.0)], sum(odd)) <= EDGES[-1]


names = st.sampled_from(["", "a", "b"])


@given(st.lists(st.tuples(names, names, names, st.none() | st.integers(1, 600), st.integers(0, 5000)), max_size=60))
def test_what_is_told_is_the_mean_of_what_the_mixture_says(seen: list[tuple[str, str, str, int | None, int]]) -> None:
    """The same by adding up whole distributions, as they are described."""
    made = OutputLengths()
    for tenant, route, model, limit, tokens in seen:
        made.observe(tenant, route, limit, tokens, model)
    for tenant, route, model, limit, _ in seen:
        size = limit_of(limit)
        counts, sums = list(outputs.PRIOR.counts), list(outputs.PRIOR.sums)
        weight = outputs.PRIOR_WEIGHT
        for key in dict.fromkeys((("", route, "", size), ("", route, model, size), (tenant, route, model, size))):
            own, scale = made._histograms[key], weight / sum(counts)
            counts = [a + b * scale for a, b in zip(own.counts, counts, strict=True)]
            sums = [a + b * scale for a, b in zip(own.sums, sums, strict=True)]
            weight = outputs.SHRINK
        parts = made._parts((tenant, route, model, size))
        assert sum(part.histogram.total * part.factor for part in parts) == pytest.approx(sum(counts))
        assert sum(part.histogram.length * part.factor for part in parts) == pytest.approx(sum(sums))
        mixed = [sum(part.histogram.counts[index] * part.factor for part in parts) for index in range(BUCKETS)]
        assert mixed == pytest.approx(counts)


def test_a_histogram_that_was_dropped_is_not_taught_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_HISTOGRAMS", 4)
    made = OutputLengths()
    made.observe("t", "chat", None, 1000, "m")
    made.observe("t", "completions", None, 1000, "m")
    for _ in range(100):
        made.observe("t", "chat", None, 1000, "m")
    assert len(made) == 4
    assert made._histograms["", "chat", "", 0].total in (100, 101)
    assert made.expect("new", "chat", None, "m")[0] > 800
