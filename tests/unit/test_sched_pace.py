"""How fast requests end, and the Retry-After made of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.pace import Pace, clamp_retry_after


def steady(per_s: float, seconds: float) -> Pace:
    pace = Pace()
    for n in range(int(per_s * seconds)):
        pace.ended(n / per_s)
    return pace


@pytest.mark.parametrize("seconds", [3.0, 10.0, 100.0])
def test_a_steady_rate_is_measured_early_and_late(seconds: float) -> None:
    assert steady(5.0, seconds).per_s(seconds) == pytest.approx(5.0, rel=0.1)


def test_rate_fades_when_nothing_ends_any_more() -> None:
    pace = steady(5.0, 60.0)
    assert pace.per_s(100.0) < 0.2
    assert pace.retry_after_s(0, 1e6, Random(1)) == 60.0


def test_before_any_request_has_ended_there_is_a_guess() -> None:
    pace = Pace()
    assert not pace.measured
    assert pace.per_s(5.0) == 1.0
    pace.ended(5.0)
    assert pace.measured


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 99))
def test_retry_after_is_whole_bounded_and_grows_with_the_backlog(a: int, b: int, seed: int) -> None:
    pace = steady(2.0, 20.0)
    low, high = (pace.retry_after_s(backlog, 20.0, Random(seed)) for backlog in sorted((a, b)))
    assert 1.0 <= low <= high <= 60.0
    assert low == int(low)


def test_clamp() -> None:
    assert [clamp_retry_after(s) for s in (-5.0, 0.0, 1.2, 59.5, 61.0, float("inf"))] == [1, 1, 2, 60, 60, 60]
