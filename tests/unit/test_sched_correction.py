"""Factors that follow what a worker is seen to do."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_support import request, worker

from gateway.scheduling.correction import CEILING, FLOOR, GAIN, corrected, learn_decode, learn_prefill
from gateway.scheduling.model import Cost, Lease, Outcome, OutcomeKind, Ticket
from gateway.scheduling.worker import Worker


@pytest.mark.parametrize("truth", [0.6, 1.0, 1.7])
def test_the_factor_finds_the_truth(truth: float) -> None:
    factor = 1.0
    for _ in range(300):
        factor = corrected(factor, truth * 2.0, factor * 2.0)
    assert factor == pytest.approx(truth, rel=0.01)


def test_one_odd_request_changes_little() -> None:
    assert 1.0 < corrected(1.0, 1e5, 1.0) < 1.1
    assert 0.9 < corrected(1.0, 1e-9, 1.0) < 1.0


@given(st.floats(), st.floats())
def test_nothing_leads_out_of_bounds(observed: float, predicted: float) -> None:
    factor = corrected(1.0, observed, predicted)
    assert FLOOR <= factor <= CEILING
    assert not math.isnan(factor)


def test_what_cannot_be_compared_changes_nothing() -> None:
    assert corrected(1.2, 0.0, 5.0) == 1.2
    assert corrected(1.2, 5.0, 0.0001) == 1.2
    assert corrected(1.2, math.nan, 5.0) == 1.2


def leased(**changes: Any) -> tuple[Worker, Lease]:
    one = worker()
    usual: dict[str, Any] = {"predicted_ttft_s": 0.5, "first_token_at": 1.0, "number": 7, "booked_on": one}
    lease = Lease(Ticket(request(), None, 0, 9), "w", "a", Cost(1, 0.0, 0.0, 100), 0.0, 0.0, **{**usual, **changes})
    one.book(lease)
    one.picked = 7
    return one, lease


def test_an_undisturbed_prefill_teaches() -> None:
    one, lease = leased()
    learn_prefill(one, lease)
    assert one.prefill_scale == pytest.approx(2.0**GAIN)
    for change in ({"predicted_ttft_s": 0.0}, {"first_token_at": None}):
        one, lease = leased(**change)
        learn_prefill(one, lease)
        assert one.prefill_scale == 1.0


def test_an_undisturbed_decode_teaches() -> None:
    one, lease = leased()
    step = one.step.decode_step_s(1, 100)
    learn_decode(one, lease, Outcome(OutcomeKind.OK, output_tokens=11), 1.0 + 10 * step / 1.5)
    assert one.decode_scale == pytest.approx(1.5**-GAIN)
    one, lease = leased(tokens=21)
    learn_decode(one, lease, Outcome(OutcomeKind.OK), 1.0 + 20 * step * 3)
    assert one.decode_scale == pytest.approx(3.0**GAIN)


@pytest.mark.parametrize(
    ("change", "kind", "tokens"),
    [
        ({}, OutcomeKind.RESET, 100),
        ({"first_token_at": None}, OutcomeKind.OK, 100),
        ({"number": 6}, OutcomeKind.OK, 100),
        ({}, OutcomeKind.OK, 3),
    ],
)
def test_what_was_disturbed_or_broken_teaches_nothing(change: dict, kind: OutcomeKind, tokens: int) -> None:
    one, lease = leased(**change)
    learn_decode(one, lease, Outcome(kind, output_tokens=tokens), 500.0)
    assert one.decode_scale == 1.0
