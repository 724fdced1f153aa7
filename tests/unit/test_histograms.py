"""Percentiles of histograms: interpolation, windows, and texts that are no histogram."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.histograms import Histogram, Window, from_buckets

INF = math.inf


def test_quantiles_are_interpolated():
    seen = Histogram((1.0, 2.0, INF), (10.0, 30.0, 40.0))
    assert seen.quantile(0.25) == pytest.approx(1.0)
    assert seen.quantile(0.5) == pytest.approx(1.5)
    assert seen.quantile(0.125) == pytest.approx(0.5)
    assert seen.quantile(0.99) == 2.0  # past the last bound: at least that
    assert Histogram((1.0, INF), (0.0, 0.0)).quantile(0.5) is None
    assert Histogram((), ()).quantile(0.5) is None
    assert Histogram((INF,), (5.0,)).quantile(0.5) is None
    assert Histogram((1.0, INF), (0.0, 4.0)).quantile(0.0) == 1.0


@given(st.lists(st.floats(0, 99), min_size=1, max_size=50), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values, share):
    bounds = (1.0, 5.0, 10.0, 50.0, 100.0, INF)
    histogram = Histogram(bounds, tuple(float(sum(value <= bound for value in values)) for bound in bounds))
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    found = histogram.quantile(share)
    high = next(bound for bound in bounds if true <= bound)
    low = max((bound for bound in bounds if bound < high), default=0.0)
    assert low <= found <= high


def test_since():
    then = Histogram((1.0, INF), (3.0, 5.0))
    now = Histogram((1.0, INF), (4.0, 9.0))
    assert now.since(then) == Histogram((1.0, INF), (1.0, 4.0))
    assert then.since(now) == then  # went back: another start
    assert now.since(Histogram((2.0, INF), (0.0, 0.0))) == now


def test_series_add_up():
    pairs = [("1", 2.0), ("+Inf", 3.0), ("1.0", 1.0), ("+Inf", 1.0)]
    assert from_buckets(pairs) == Histogram((1.0, INF), (3.0, 4.0))


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("1", 2.0)],
        [("x", 2.0), ("+Inf", 2.0)],
        [("nan", 2.0), ("+Inf", 2.0)],
        [("1", 3.0), ("+Inf", 2.0)],
        [("1", 1.0), ("+Inf", 2.0), ("+Inf", 2.0)],
        [*[(str(n), 0.0) for n in range(300)], ("+Inf", 2.0)],
    ],
)
def test_what_is_no_histogram(pairs):
    assert from_buckets(pairs) is None


def test_a_window_forgets_what_is_old():
    window = Window(looks=3)
    assert window.quantile(0.5) is None
    for slow, fast in ((100.0, 0.0), (100.0, 10.0), (100.0, 20.0), (100.0, 30.0)):
        window.observe(Histogram((1.0, 10.0, INF), (fast, fast + slow, fast + slow)))
    assert window.quantile(0.99) <= 1.0
    window.observe(None)
    assert window.quantile(0.5) is None
    window.observe(Histogram((INF,), (0.0,)))
    window.clear()
    window.observe(Histogram((INF,), (0.0,)))
    assert window.quantile(0.5) is None
