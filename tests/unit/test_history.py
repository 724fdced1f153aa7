"""The latencies of the last quarter of an hour: percentiles within their error, steps and classes bounded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.history import ERROR, LEAST_S, MAX_CLASSES, MOST_S, STEP_S, STEPS, History, Sketch
from gateway.records import RequestRecord, Terminal
from gateway.series import OTHER


def record(outcome: Terminal, class_name: str = "standard") -> RequestRecord:
    return RequestRecord("r", "POST", "/", "p", class_name=class_name, outcome=outcome)


@given(st.lists(st.floats(LEAST_S * 1.1, MOST_S / 1.1), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_a_percentile_is_within_its_error(values: list[float], share: float):
    sketch = Sketch()
    for value in values:
        sketch.observe(value)
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = sketch.quantile(share)
    assert found is not None
    assert true * (1 - ERROR) * (1 - 1e-9) <= found <= true * (1 + ERROR) * (1 + 1e-9)


@given(st.lists(st.floats(0.0, 1e9), max_size=50))
def test_any_value_counts_and_buckets_are_bounded(values: list[float]):
    sketch = Sketch()
    for value in (*values, -1.0):
        sketch.observe(value)
    assert sketch.count == len(values) + 1
    assert sketch.quantile(1.0) is not None
    assert len(sketch._counts) <= math.log(MOST_S / LEAST_S) / math.log(1.05) + 2


def test_no_values_no_percentile():
    assert Sketch().quantile(0.5) is None


def test_steps_classes_and_ages():
    history = History()
    history.first_token("standard", 0.2, 1.0)
    history.itl("standard", 0.02, 4.0)
    history.finished(record(Terminal.OK), 5.0)
    history.finished(record(Terminal.REJECTED, "batch"), 12.0)
    history.finished(record(Terminal.TIMEOUT, "batch"), 12.0)
    history.finished(record(Terminal.REJECTED, ""), 12.0)
    seen = history.view(13.0)
    assert seen["step_s"] == STEP_S
    first, second = seen["steps"]
    assert (first["age_s"], second["age_s"]) == (3.0, -7.0)
    standard = first["classes"]["standard"]
    assert standard["requests"] == 1
    assert standard["ttft_p50_s"] == standard["ttft_p95_s"] == pytest.approx(0.2, rel=ERROR)
    assert standard["itl_p95_s"] == pytest.approx(0.02, rel=ERROR)
    assert list(second["classes"]) == ["batch"]
    batch = second["classes"]["batch"]
    assert (batch["requests"], batch["rejected"], batch["failed"], batch["ttft_p50_s"]) == (2, 1, 1, None)


def test_old_steps_go_and_quiet_ones_take_no_room():
    history = History()
    for number in range(3 * STEPS):
        history.first_token("a", 0.1, number * STEP_S)
    assert len(history) == STEPS
    now = 3 * STEPS * STEP_S
    assert len(history.view(now)["steps"]) == STEPS - 1, "the window moves on without requests too"
    assert history.view(now + STEPS * STEP_S)["steps"] == []


def test_the_last_minute_in_one():
    history = History()
    history.first_token("a", 0.1, 5.0)
    for at in (61.0, 95.0, 119.0):
        history.first_token("a", at / 100, at)
        history.itl("a", 0.05, at)
        history.finished(record(Terminal.UPSTREAM_ERROR, "a"), at)
    seen = history.lately(121.0)["a"]
    assert (seen["requests"], seen["failed"], seen["rejected"]) == (3, 3, 0)
    assert seen["ttft_p50_s"] == pytest.approx(0.95, rel=ERROR)
    assert seen["itl_p50_s"] == pytest.approx(0.05, rel=ERROR)
    assert history.lately(1000.0) == {}


def test_a_clock_that_stands_or_steps_back_a_little_is_the_last_step():
    history = History()
    history.first_token("a", 0.1, 20.0)
    history.first_token("a", 0.1, 19.99)
    assert len(history) == 1


def test_classes_are_bounded():
    history = History()
    for number in range(MAX_CLASSES * 3):
        history.finished(record(Terminal.OK, f"c{number}"), 0.0)
    (step,) = history.view(0.0)["steps"]
    assert len(step["classes"]) == MAX_CLASSES
    assert step["classes"][OTHER]["requests"] == MAX_CLASSES * 2 + 1
