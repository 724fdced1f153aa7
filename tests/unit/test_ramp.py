"""Which rate is tried next, and what a ramp says in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.live_figures import Goal, Outcome, Record, Spread, report
from loadtest.ramp import CLOSE, DOWN, MAX_STEPS, Ending, Range, Result, Step, ending, greatest, next_rate


def climbed(limit: float, between: Range) -> list[tuple[float, bool]]:
    """All rates that are tried at a gateway that keeps those up to `limit`."""
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, between)) is not None:
        tried.append((rate, rate <= limit))
    return tried


RANGES = st.builds(
    lambda low, times, factor, bisections: Range(low, low * times, factor, bisections),
    st.floats(0.01, 100),
    st.floats(1, 1000),
    st.floats(1.05, 10),
    st.integers(0, 12),
)


@given(RANGES, st.floats(0.0001, 1e6))
def test_it_ends_close_to_what_is_kept(between: Range, limit: float) -> None:
    tried = climbed(limit, between)
    rates = [rate for rate, _ in tried]
    assert len(tried) <= MAX_STEPS
    assert len(set(rates)) == len(rates)
    assert max(rates) <= between.to_per_s * (1 + 1e-9)
    best = greatest(tried)
    lost = [rate for rate, kept in tried if not kept]
    if len(tried) == MAX_STEPS:
        return
    if not lost:
        assert best == pytest.approx(between.to_per_s)
    elif best is None:
        assert len(tried) == DOWN + 1
        assert min(rates) == pytest.approx(between.from_per_s / between.factor**DOWN)
    else:
        # Halved so often, or as near as two rates are told apart.
        most = max(CLOSE, between.factor ** (0.5**between.bisections))
        assert best <= limit <= min(lost)
        assert min(lost) / best <= most * (1 + 1e-9)


def test_up_then_between() -> None:
    assert [rate for rate, _ in climbed(5.0, Range(1, 100, 2, 2))] == pytest.approx(
        [1, 2, 4, 8, 32**0.5, (4 * 32**0.5) ** 0.5]
    )


def test_down_when_the_first_is_too_much() -> None:
    assert [rate for rate, _ in climbed(3.0, Range(8, 100, 2, 0))] == [8, 4, 2]


def test_a_rate_that_is_noisy_ends_all_the_same() -> None:
    assert next_rate([(1, True), (2, False), (1.4, False), (1.2, True), (1.3, True)], Range(1, 9, 2, 3)) is None


def step(per_s: float, good: int = 100, *, not_sent: int = 0, late_s: float = 0.0, cut: int = 0) -> Step:
    """A step of 100 requests, so many of them good."""
    records = []
    for index in range(100):
        one = Record(index, index / per_s, 1, 1, ttft_s=0.1, late_s=late_s)
        if index < not_sent:
            one.late_s = None
            one.settle(Outcome.NOT_SENT)
        else:
            one.settle(Outcome.ANSWERED if index >= 100 - good else Outcome.REFUSED, "shed")
        records.append(one)
    seconds = 100 / per_s
    lag = Spread()
    found = report(records, Goal(), seconds=seconds, took_s=seconds, gaps=Spread(), lag=lag, peak_in_flight=1)
    return Step(per_s, found, 0.99)


def test_a_step_is_kept_when_enough_is_good_and_the_rate_is_reached() -> None:
    assert step(4.0).kept
    assert step(4.0, 99).kept
    assert not step(4.0, 98).kept
    assert not step(4.0, late_s=100.0).kept
    assert not step(4.0, 100, not_sent=1).kept


def test_whose_fault_it_is() -> None:
    assert not step(4.0, 50).clients_fault
    assert step(4.0, late_s=100.0).clients_fault
    assert step(4.0, 50, late_s=0.2).clients_fault
    assert step(4.0, not_sent=5).clients_fault
    assert not step(4.0, late_s=0.2).clients_fault  # it was kept all the same


def test_why_it_ended() -> None:
    assert ending([step(1.0), step(2.0)]) is Ending.TO
    assert ending([step(1.0), step(2.0, 50)]) is Ending.GOODPUT
    assert ending([step(1.0), step(2.0, not_sent=50)]) is Ending.CLIENT


def test_the_result() -> None:
    result = Result((step(1.0), step(4.0, 10), step(2.0)), Ending.GOODPUT)
    assert (result.per_s, result.first_not_kept) == (2.0, 4.0)
    none = Result((step(4.0, 10),), Ending.GOODPUT)
    assert (none.per_s, none.first_not_kept) == (None, 4.0)
    assert result.steps[0].as_dict()["kept"]
