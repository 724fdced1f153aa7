"""The retry budget and the backoff."""

from __future__ import annotations

from random import Random

import pytest

from gateway.scheduling.model import OutcomeKind
from gateway.scheduling.retries import CAP_TOKENS, MAX_CRASHES, START_TOKENS, RetryBudget, backoff_s


def spend_all(budget: RetryBudget, now: float, kind: OutcomeKind = OutcomeKind.SERVER_ERROR) -> int:
    count = 0
    while budget.try_spend(kind, "w", now):
        count += 1
        assert count < 1000
    return count


def test_retries_stay_within_a_floor_and_a_share_of_successes() -> None:
    budget = RetryBudget(0.0)
    assert spend_all(budget, 0.0) == START_TOKENS
    assert spend_all(budget, 60.0) == 10
    for _ in range(50):
        budget.earn(0.1)
    assert spend_all(budget, 60.0) in (4, 5)
    assert spend_all(budget, 59.0) == 0


def test_savings_are_capped() -> None:
    budget = RetryBudget(0.0)
    for _ in range(10_000):
        budget.earn(1.0)
    assert spend_all(budget, 1e9) == CAP_TOKENS


def test_a_connection_never_made_costs_nothing() -> None:
    budget = RetryBudget(0.0)
    spend_all(budget, 0.0)
    assert budget.try_spend(OutcomeKind.CONNECT_FAILED, "w", 0.0)


def test_the_victims_of_one_crash_cost_one() -> None:
    budget = RetryBudget(0.0)
    assert all(budget.try_spend(OutcomeKind.RESET, "w", 0.01 * n) for n in range(64))
    assert budget.tokens == pytest.approx(START_TOKENS - 1, abs=0.2)
    assert budget.try_spend(OutcomeKind.RESET, "v", 0.5)
    assert budget.tokens == pytest.approx(START_TOKENS - 2, abs=0.2)
    assert budget.try_spend(OutcomeKind.RESET, "w", 1.5)
    assert budget.tokens == pytest.approx(START_TOKENS - 3, abs=0.3)


def test_memory_of_crashes_is_bounded() -> None:
    budget = RetryBudget(0.0)
    for n in range(3 * MAX_CRASHES):
        budget.earn(1.0)
        assert budget.try_spend(OutcomeKind.RESET, f"w{n}", 0.0)
    assert len(budget._crashes) == MAX_CRASHES


def test_backoff_is_full_jitter_over_a_growing_range() -> None:
    rng = Random(3)
    for retry, top in ((0, 0.05), (1, 0.1), (4, 0.8), (5, 1.0), (10**6, 1.0)):
        waits = [backoff_s(retry, 0.05, 1.0, rng) for _ in range(300)]
        assert 0.0 <= min(waits) < 0.1 * top
        assert 0.9 * top < max(waits) <= top
