"""The share of requests that went well lately, and the ejection it leads to."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_support import Bench, changes, policy, spec

from gateway.scheduling.health import Health
from gateway.scheduling.model import OutcomeKind
from gateway.scheduling.successes import LEAST_SAMPLES, SPAN_S, Successes
from policies.document import Health as Rules


def counted(well: int, failed: int, now: float = 100.0) -> Successes:
    made = Successes()
    for n in range(well + failed):
        made.count(n < well, now)
    return made


@pytest.mark.parametrize(
    ("well", "failed", "told"),
    [
        (0, 0, None),
        (0, LEAST_SAMPLES - 1, None),
        (16, 4, None),
        (15, 5, "only 15 of 20 requests went well in 10 s"),
        (79, 21, "only 79 of 100 requests went well in 10 s"),
    ],
)
def test_fewer_than_four_of_five_are_too_few_once_there_are_enough(well: int, failed: int, told: str | None) -> None:
    assert counted(well, failed).too_few(100.0) == told


def test_what_is_older_than_the_span_does_not_count() -> None:
    made = counted(0, LEAST_SAMPLES)
    assert made.too_few(100.0 + SPAN_S - 0.1) is not None
    assert made.too_few(100.0 + SPAN_S) is None
    made.count(False, 100.0 + SPAN_S)
    assert made.too_few(100.0 + SPAN_S) is None
    made = counted(0, LEAST_SAMPLES)
    made.clear()
    assert made.too_few(100.0) is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 3.0)), max_size=120))
def test_it_counts_what_a_list_of_all_would(ended: list[tuple[bool, float]]) -> None:
    made, now, all_of_them = Successes(), 0.0, []
    for well, pause in ended:
        now += pause
        made.count(well, now)
        all_of_them.append((well, int(now)))
        fresh = [one for one, second in all_of_them if second > int(now) - SPAN_S]
        few = len(fresh) >= LEAST_SAMPLES and sum(fresh) < 0.8 * len(fresh)
        assert (made.too_few(now) is not None) is few


def test_every_other_request_failing_ejects_though_none_fail_in_a_row() -> None:
    health, rules, rng = Health(0.0, ramp=False), Rules(consecutive_failures=3), Random(1)

    def every_other(may_eject: bool, count: int) -> list[str]:
        told = []
        for _ in range(count):
            health.succeed(False, 5.0)
            why = health.fail(OutcomeKind.SERVER_ERROR, False, 5.0, rules, rng, may_eject)
            told += [why] if why is not None else []
        return told

    assert every_other(False, 30) == []
    assert every_other(True, 1) == ["only 31 of 62 requests went well in 10 s"]
    assert (health.ejected, health.soft) == (True, True)
    # What still ran then counts for nothing, nor does anything from before once it is back.
    health.succeed(False, 6.0)
    health.readmit(6.0)
    assert every_other(True, 9) == []
    health.readmit(6.0)
    assert every_other(True, 9) == []
    assert len(every_other(True, 1)) == 1


def test_failed_connections_count_in_the_share() -> None:
    health, rules, rng = Health(0.0, ramp=False), Rules(connect_failures=3), Random(1)
    told = None
    for _ in range(10):
        health.succeed(False, 5.0)
        told = health.fail(OutcomeKind.CONNECT_FAILED, False, 5.0, rules, rng, True)
    assert told == "only 10 of 20 requests went well in 10 s"


def test_a_worker_that_fails_half_of_its_requests_is_out_within_seconds() -> None:
    """facts/reliability.md, row 16."""
    bench = Bench(policy(), spec("w"), spec("v"))
    bench.take(bench.scheduler.drain("v", 0.0))
    for n in range(100):
        bench.now += 0.1
        ticket = bench.submit(str(n))
        if ticket.lease is None:
            break
        bench.settle(ticket.lease, OutcomeKind.OK if n % 2 else OutcomeKind.SERVER_ERROR)
    assert changes(bench.effects)[-1] == ("w", "ejected")
    assert bench.now < 5.0
