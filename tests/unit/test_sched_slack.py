"""What streams can still bear, and what one more prefill would break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.slack import BUCKET_S, BUCKETS, LEAST_S, Slack


def held(slack: Slack, spare_s: float) -> float:
    at = slack.enter(slack.clock_s + spare_s)
    assert at is not None
    return at


def test_nobody_there_breaks_nothing() -> None:
    assert Slack().broken_by(1000.0) == 0.0


def test_it_is_empty_while_no_delay_can_break_anything() -> None:
    slack = Slack()
    assert slack.empty
    slack.enter(1.0)
    assert not slack.empty
    slack.delay(2.0)
    assert slack.empty
    assert slack.broken_by(5.0) == 0.0


def test_a_delay_breaks_by_the_square_of_its_share_of_the_slack_and_at_most_once() -> None:
    slack = Slack()
    held(slack, 5.1)  # the bucket of 5 … 5.5
    spare = 5.0 + BUCKET_S / 2 + LEAST_S
    assert slack.broken_by(1.0) == pytest.approx((1.0 / spare) ** 2)
    assert slack.broken_by(spare) == pytest.approx(1.0)
    assert slack.broken_by(100.0) == 1.0
    assert slack.broken_by(0.0) == 0.0


def test_what_is_sent_takes_slack_from_every_stream() -> None:
    slack = Slack()
    held(slack, 2.1)
    held(slack, 8.1)
    before = slack.broken_by(1.0)
    slack.delay(1.5)
    assert slack.broken_by(1.0) > before
    slack.delay(1.5)
    assert len(slack) == 1  # the first is broken: nothing is gained by sparing it
    assert slack.broken_by(100.0) == 1.0


def test_a_stream_that_has_nothing_left_does_not_enter() -> None:
    slack = Slack()
    slack.delay(3.0)
    assert slack.enter(2.9) is None
    assert slack.enter(3.0) is not None


def test_leaving_undoes_entering_even_when_the_clock_has_passed() -> None:
    slack = Slack()
    first, second, third = held(slack, 1.0), held(slack, 1.0), held(slack, 9.0)
    slack.leave(first)
    assert len(slack) == 2
    slack.delay(2.0)
    slack.leave(second)
    slack.leave(third)
    assert len(slack) == 0
    assert slack.broken_by(10.0) == 0.0


def test_one_with_very_much_to_spare_stands_in_the_last_bucket_and_a_long_prefill_passes_all() -> None:
    slack = Slack()
    at = held(slack, 1e9)
    assert at == pytest.approx(BUCKETS * BUCKET_S)
    slack.delay(1e6)
    assert len(slack) == 0
    assert slack.enter(1e6 + 1.0) is not None


@given(
    st.lists(st.floats(0.0, 60.0), min_size=1, max_size=40),
    st.lists(st.floats(0.0, 5.0), max_size=20),
    st.floats(0.0, 100.0),
    st.floats(0.0, 10.0),
)
def test_more_delay_never_breaks_less_and_never_more_than_there_are(
    spares: list[float], sent: list[float], delay_s: float, more_s: float
) -> None:
    slack = Slack()
    entered = [held(slack, spare) for spare in spares]
    for prefill_s in sent:
        slack.delay(prefill_s)
    less, more = slack.broken_by(delay_s), slack.broken_by(delay_s + more_s)
    assert 0.0 <= less <= more + 1e-9
    assert more <= len(slack) + 1e-9
    for at in entered:
        slack.leave(at)
    assert len(slack) == 0
