"""What came of requests that were really sent: each in one outcome, times and shares of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.fidelity import percentile
from loadtest.live_figures import (
    CODES,
    GROUPS,
    LATE_S,
    OTHERS,
    Clock,
    Goal,
    Group,
    Outcome,
    Record,
    Report,
    Spread,
    Times,
    judge,
    report,
)

MS = st.floats(1e-4, 100.0)


def record(index: int = 0, outcome: Outcome = Outcome.ANSWERED, code: str = "", **more: object) -> Record:
    told = Record(index, float(index), 10, 5, late_s=0.0)
    told.settle(outcome, code)
    for name, value in more.items():
        setattr(told, name, value)
    return told


def told(records: list[Record], **more: object) -> Report:
    usual = {"seconds": 10.0, "took_s": 10.0, "gaps": Spread(), "lag": Spread(), "peak_in_flight": 1}
    return report(records, Goal(), **{**usual, **more})  # type: ignore[arg-type]


RECORDS = st.lists(
    st.builds(
        lambda outcome, code, pool, ttft, tpot: (outcome, code, pool, ttft, tpot),
        st.sampled_from(Outcome),
        st.sampled_from(["", "queue_full", "shed"]),
        st.sampled_from(["", "short", "long"]),
        MS,
        st.none() | MS,
    ),
    max_size=60,
)


@given(RECORDS)
def test_every_request_is_in_exactly_one_outcome(given_: list[tuple[Outcome, str, str, float, float | None]]) -> None:
    records = [
        record(index, outcome, code, pool=pool, ttft_s=ttft, tpot_s=tpot, tokens_out=3)
        for index, (outcome, code, pool, ttft, tpot) in enumerate(given_)
    ]
    found = told(records)
    assert found.summed
    assert sum(found.all.outcomes.values()) == len(records)
    assert sum(one.count for one in found.troubles) == len(records) - found.answered
    assert sum(group.requests for group in found.pools.values()) == sum(bool(one.pool) for one in records)
    assert found.all.tokens_out == 3 * len(records)
    if found.all.goodput is not None:
        counted = len(records) - found.all.outcomes[Outcome.CANCELLED]
        assert found.all.goodput == pytest.approx(sum(map(Goal().met, records)) / counted)


def test_a_request_ends_once() -> None:
    with pytest.raises(AssertionError, match="request 3 ended twice: answered, then failed"):
        record(3).settle(Outcome.FAILED)


def test_one_that_never_ended_shows_in_the_sum() -> None:
    assert not told([record(), Record(1, 0.0, 1, 1)]).summed


@pytest.mark.parametrize(
    ("status", "kind", "outcome"),
    [
        (429, "rate_limit_error", Outcome.REFUSED),
        (400, "", Outcome.REFUSED),
        (401, "authentication_error", Outcome.REFUSED),
        (503, "overloaded_error", Outcome.REFUSED),
        (500, "server_error", Outcome.FAILED),
        (502, "", Outcome.FAILED),
        (302, "", Outcome.FAILED),
        (504, "", Outcome.TIMED_OUT),
        (0, "timeout_error", Outcome.TIMED_OUT),
        (0, "server_error", Outcome.FAILED),
    ],
)
def test_what_an_error_means(status: int, kind: str, outcome: Outcome) -> None:
    assert judge(status, kind) is outcome


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"ttft_s": 2.0, "tpot_s": 0.1}, True),
        ({"ttft_s": 2.1}, False),
        ({"tpot_s": 0.11}, False),
        ({"tpot_s": None}, True),
        ({"ttft_s": None}, False),
        ({"outcome": Outcome.FAILED}, False),
    ],
)
def test_a_good_answer_is_whole_and_in_time(changes: dict[str, object], met: bool) -> None:
    one = record(ttft_s=1.0, tpot_s=0.05)
    assert Goal().met(replace(one, **changes)) is met  # type: ignore[arg-type]


def test_times_of_none_are_none() -> None:
    found = Group.of([], Goal())
    assert found.goodput is None
    assert found.ttft == Times() == Times.spread(Spread())
    assert found.as_dict()["ttft"] == {"p50_s": None, "p90_s": None, "p99_s": None}


@given(st.lists(MS, min_size=1, max_size=200), st.floats(0, 1))
def test_a_spread_is_right_within_two_percent(values: list[float], share: float) -> None:
    spread = Spread()
    for value in values:
        spread.add(value)
    exact = percentile(values, share)
    found = spread.at(share)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * 1.0201
    assert spread.count == len(values)


def test_a_spread_takes_what_is_beyond_its_ends() -> None:
    spread = Spread()
    for value in (0.0, -1.0, 1e9):
        spread.add(value)
    assert spread.at(0.1) == Spread.LEAST_S
    assert spread.count == 3
    assert spread.above(LATE_S) == 1


def test_codes_and_groups_are_bounded() -> None:
    """A server may make up a code, a pool and a class for every request."""
    many = [
        record(index, Outcome.REFUSED, f"code{index}", pool=f"pool{index}", class_name=f"class{index}")
        for index in range(2 * max(CODES, GROUPS))
    ]
    found = told(many)
    assert len(found.troubles) == CODES + 1
    assert len(found.pools) == len(found.classes) == GROUPS + 1
    assert found.troubles[0].code == OTHERS
    assert sum(one.count for one in found.troubles) == len(many)
    assert sum(group.requests for group in found.pools.values()) == len(many)


def test_what_a_request_says_is_cut() -> None:
    one = Record(0, 0.0, 1, 1)
    one.settle(Outcome.FAILED, "c" * 1000, "m" * 1000)
    assert (len(one.code), len(one.message)) == (64, 300)
    assert one.as_dict()["class"] == ""


def test_a_slow_client_is_told() -> None:
    late = [record(index, late_s=LATE_S * 2 if index < 3 else 0.0) for index in range(100)]
    slow = Clock.of(late, Spread())
    assert (slow.sent_late, slow.kept_up) == (3, False)
    assert slow.late_most_s == 2 * LATE_S
    assert Clock.of(late[1:], Spread()).kept_up  # now and then is no harm
    assert Clock.of([record(index, late_s=LATE_S * 2 if index < 3 else 0.0) for index in range(400)], Spread()).kept_up


def test_a_client_that_does_not_come_to_read_is_told() -> None:
    lag = Spread()
    for _ in range(3):
        lag.add(1.0)
    found = Clock.of([record()], lag)
    assert (found.looked_late, found.looks, found.kept_up) == (3, 3, False)


def test_the_rate_reached_counts_what_was_sent_until_the_last_was() -> None:
    on_time = [record(index, late_s=0.0) for index in range(10)]
    assert told(on_time).reached_per_s == pytest.approx(1.0)
    assert told([*on_time[:9], record(9, late_s=11.0)]).reached_per_s == pytest.approx(0.5)
    assert told([record(index, Outcome.NOT_SENT, late_s=None) for index in range(3)]).reached_per_s == 0.0
    assert told([]).reached_per_s == 0.0


def test_cut_off_after_a_part() -> None:
    cut = [record(0), record(1), *(record(index, Outcome.CANCELLED, late_s=None) for index in range(2, 10))]
    found = told(cut, took_s=2.0, interrupted=True)
    assert found.reached_per_s == pytest.approx(1.0)
    assert found.all.goodput == 0.0  # of the two that were not cancelled: they have no first token here


def test_the_gateway_is_gone_when_the_last_finds_nobody() -> None:
    lost = record(1, Outcome.FAILED, "connect")
    assert told([record(0), lost]).gone
    assert not told([lost, record(2)]).gone
    assert not told([]).gone


def test_everything_is_in_the_json() -> None:
    found = told([record(0, ttft_s=0.5, pool="short", tokens_in=7), record(1, Outcome.REFUSED, "shed")]).as_dict()
    assert found["outcomes"] == {**dict.fromkeys(map(str, Outcome), 0), "answered": 1, "refused": 1}
    assert found["troubles"] == [{"outcome": "refused", "code": "shed", "count": 1, "message": ""}]
    assert found["pools"].keys() == {"short"}
    assert found["client"]["kept_up"]
    assert found["tokens_in_per_s"] == pytest.approx(0.7)
