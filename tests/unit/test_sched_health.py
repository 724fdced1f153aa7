"""What outcomes do to a worker's health."""

from __future__ import annotations

import math
from random import Random

import pytest

from gateway.scheduling.health import FAILURES, PENALTY_CAP_S, Health
from gateway.scheduling.model import Outcome, OutcomeKind, WorkerState
from policies.document import Health as Rules

RULES = Rules(consecutive_failures=3, connect_failures=2, ejection_s=5.0, ejection_cap_s=40.0)
RNG = Random(7)


def fail(health: Health, kind: OutcomeKind, now: float, canary: bool = False, may_eject: bool = True) -> str | None:
    return health.fail(kind, canary, now, RULES, RNG, may_eject)


def ejected(now: float = 0.0) -> Health:
    health = Health(now, ramp=False)
    for _ in range(3):
        fail(health, OutcomeKind.RESET, now)
    assert health.ejected
    return health


def test_failures_in_a_row_eject_and_a_success_breaks_the_row() -> None:
    health = Health(0.0, ramp=False)
    assert fail(health, OutcomeKind.SERVER_ERROR, 0.0) is None
    assert fail(health, OutcomeKind.RESET, 0.0) is None
    assert not health.succeed(False, 0.0)
    assert fail(health, OutcomeKind.GAP_TIMEOUT, 0.0) is None
    assert fail(health, OutcomeKind.PROTOCOL, 0.0) is None
    assert fail(health, OutcomeKind.TTFT_TIMEOUT, 0.0) == "3 failures in a row"
    assert health.state is WorkerState.EJECTED
    assert 4.0 <= health.ejected_until <= 6.0


def test_failed_connections_have_their_own_row_and_ignore_the_share() -> None:
    health = Health(0.0, ramp=False)
    assert fail(health, OutcomeKind.CONNECT_FAILED, 0.0, may_eject=False) is None
    assert fail(health, OutcomeKind.CONNECT_FAILED, 0.0, may_eject=False) == "2 failed connections"
    assert not health.soft


def test_soft_reasons_wait_until_the_pool_can_spare_the_worker() -> None:
    health = Health(0.0, ramp=False)
    for _ in range(5):
        assert fail(health, OutcomeKind.RESET, 0.0, may_eject=False) is None
    assert fail(health, OutcomeKind.RESET, 0.0) == "6 failures in a row"
    assert health.soft


def test_what_ran_before_the_ejection_changes_nothing() -> None:
    health = ejected()
    until = health.ejected_until
    assert fail(health, OutcomeKind.RESET, 1.0) is None
    assert health.ejected_until == until
    assert not health.end_ejection(until - 0.1)
    assert health.end_ejection(until)
    assert health.probing
    assert not health.end_ejection(until)
    assert fail(health, OutcomeKind.RESET, until) is None
    assert health.probing
    assert not health.succeed(False, until)
    assert health.probing


def test_a_failed_probe_ejects_for_longer_up_to_the_cap() -> None:
    health = ejected()
    spans = []
    for _ in range(6):
        now = health.ejected_until
        health.end_ejection(now)
        assert fail(health, OutcomeKind.CONNECT_FAILED, now, canary=True) == "probe failed: connect_failed"
        spans.append(health.ejected_until - now)
    assert 8.0 <= spans[0] <= 12.0
    assert 16.0 <= spans[1] <= 24.0
    assert all(span <= 48.0 for span in spans)


def test_a_good_probe_lets_it_back_in_slowly() -> None:
    health = ejected()
    now = health.ejected_until
    health.end_ejection(now)
    assert health.succeed(True, now)
    assert health.state is WorkerState.READY
    assert health.ramp_from == now
    assert not health.soft


@pytest.mark.parametrize(("pause", "first_again"), [(39.0, False), (41.0, True)])
def test_long_good_health_forgets_earlier_ejections(pause: float, first_again: bool) -> None:
    health = ejected()
    back = health.ejected_until
    health.end_ejection(back)
    health.succeed(True, back)
    now = back + pause
    for _ in range(3):
        fail(health, OutcomeKind.RESET, now)
    assert (health.ejected_until - now <= 6.0) is first_again


@pytest.mark.parametrize(
    ("asked", "wait"), [(None, 1.0), (0.0, 0.0), (7.0, 7.0), (1e9, 60.0), (math.nan, 1.0), (-5.0, 1.0)]
)
def test_busy_rests_as_long_as_asked_within_bounds(asked: float | None, wait: float) -> None:
    health = Health(0.0, ramp=True)
    health.rest(Outcome(OutcomeKind.BUSY, 503, asked), 100.0)
    assert health.cool_until == 100.0 + wait
    health.rest(Outcome(OutcomeKind.BUSY, 503, 0.0), 100.0)
    assert health.cool_until == 100.0 + wait
    assert health.state is WorkerState.READY
    assert health.ramp_from == 0.0


def test_failures_leave_a_penalty_that_fades_and_is_bounded() -> None:
    health = Health(0.0, ramp=False)
    assert health.penalty_s(0.0, 5.0) == 0.0
    fail(health, OutcomeKind.SERVER_ERROR, 0.0)
    assert health.penalty_s(0.0, 5.0) == 2.0
    assert health.penalty_s(2.5, 5.0) == 1.0
    assert health.penalty_s(5.0, 5.0) == health.penalty_s(100.0, 5.0) == 0.0
    for _ in range(100):
        fail(health, OutcomeKind.SERVER_ERROR, 0.0)
    assert health.penalty == PENALTY_CAP_S


def test_only_what_the_worker_did_is_a_failure() -> None:
    innocent = {"ok", "client_error", "client_gone", "busy", "misrouted", "deadline", "local"}
    assert {str(kind) for kind in OutcomeKind} - {str(kind) for kind in FAILURES} == innocent
