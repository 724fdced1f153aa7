"""What a replay and a ramp print: on 80 columns, and saying what is wrong."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from loadtest.live_figures import Goal, Outcome, Record, Report, Spread, report
from loadtest.live_output import (
    bar,
    chart,
    conclusion,
    group_table,
    outcome_table,
    rate,
    sentences,
    share,
    span,
    steps_table,
    times_table,
    warnings,
)
from loadtest.ramp import Ending, Result, Step
from workers.plain_tables import fit


def told(*outcomes: tuple[Outcome, str], late_s: float = 0.0, interrupted: bool = False) -> Report:
    records = []
    for index, (outcome, code) in enumerate(outcomes):
        one = Record(index, index / 4, 10, 5, late_s=late_s, ttft_s=0.25, tpot_s=0.02, pool="short-chat")
        one.settle(outcome, code, "Every fitting worker is busy and the queue is full, [so] come back." if code else "")
        records.append(one)
    return report(
        records,
        Goal(),
        seconds=len(outcomes) / 4,
        took_s=9.0,
        gaps=Spread(),
        lag=Spread(),
        peak_in_flight=7,
        interrupted=interrupted,
    )


GOOD, REFUSED = (Outcome.ANSWERED, ""), (Outcome.REFUSED, "queue_full")


def drawn(table: Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    fit(table, width)
    console.print(table)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (0.0999, "99.9 ms"),
        (0.09996, "100 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (12.346, "12.35 s"),
        (123.4, "123 s"),
    ],
)
def test_times(value: float | None, text: str) -> None:
    assert span(value) == text


def test_shares_are_never_rounded_up_to_all() -> None:
    assert [share(part) for part in (None, 1.0, 0.99999, 0.5, 0.0)] == ["-", "100 %", "99.9 %", "50.0 %", "0.0 %"]


def test_rates() -> None:
    assert [rate(per_s) for per_s in (0.00123, 4.0, 27.39, 999.4, 1234.5)] == [
        "0.00123/s",
        "4/s",
        "27.4/s",
        "999/s",
        "1234/s",
    ]


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_bar_has_its_width(part: float, width: int) -> None:
    assert len(bar(part, width)) == width
    assert (bar(part, width) == " " * width) == (round(min(1.0, max(0.0, part)) * width * 8) == 0)


def test_every_outcome_has_a_line_and_its_codes() -> None:
    text = drawn(outcome_table(told(GOOD, GOOD, REFUSED, (Outcome.FAILED, "reset"))))
    assert max(map(len, text.splitlines())) <= 80
    for word in (*map(str, Outcome), "queue_full", "reset", "50.0 %", "[so]"):
        assert word in text
    assert "code" not in drawn(outcome_table(told(GOOD)))


def test_tables_fit_a_terminal() -> None:
    found = told(GOOD, REFUSED)
    steps = [Step(1234.5, found, 0.99), Step(4.0, told(GOOD), 0.99)]
    for table in (times_table(found), group_table("pool", found.pools), steps_table(steps)):
        assert max(map(len, drawn(table).splitlines())) <= 80
    lines = [*sentences(found, Goal()), *chart(steps)]
    assert max(map(len, lines)) <= 80
    assert "goodput    50.0 % answered with TTFT <= 2 s and TPOT <= 0.1 s" in lines
    assert "50.0 %  not kept" in lines[-1]
    assert "100 %" in lines[-2]


def test_nothing_to_warn_of() -> None:
    assert warnings(told(GOOD, REFUSED)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (told(*[GOOD] * 5, late_s=0.2), "did not keep up: it sent 5 requests more than 50 ms late"),
        (told(GOOD, (Outcome.NOT_SENT, "max_in_flight")), "not sent, though they were due: 1 (Every fitting"),
        (told(GOOD, (Outcome.FAILED, "connect")), "the gateway was gone"),
        (told(GOOD, interrupted=True), "ended before its time"),
    ],
)
def test_what_keeps_figures_from_being_trusted(found: Report, words: str) -> None:
    assert [words in one for one in warnings(found)] == [True]


def test_a_sum_that_is_wrong_is_told() -> None:
    found = report(
        [Record(0, 0.0, 1, 1)], Goal(), seconds=1.0, took_s=1.0, gaps=Spread(), lag=Spread(), peak_in_flight=0
    )
    assert warnings(found) == ["0 outcomes for 1 requests: a fault of ours"]


KEPT, LOST = Step(4.0, told(GOOD), 0.99), Step(8.0, told(GOOD, REFUSED), 0.99)


@pytest.mark.parametrize(
    ("steps", "why", "words"),
    [
        ((KEPT, LOST), Ending.GOODPUT, "Greatest rate that kept a goodput of 99.0 %: 4/s; 8/s did not."),
        ((KEPT,), Ending.TO, "Raise --to"),
        ((KEPT, LOST), Ending.CLIENT, "The client did not keep up"),
        ((KEPT, LOST), Ending.GONE, "until the gateway went away"),
        ((KEPT,), Ending.INTERRUPTED, "as far as it was tried"),
        ((LOST,), Ending.GOODPUT, "No rate was kept: goodput is below 99.0 % at 8/s already. Begin lower with --from."),
        ((), Ending.INTERRUPTED, "No rate was tried to its end."),
    ],
)
def test_the_conclusion(steps: tuple[Step, ...], why: Ending, words: str) -> None:
    assert words in conclusion(Result(steps, why), 0.99)
