"""What is kept of each worker for the highest class."""

from __future__ import annotations

from typing import Any

import pytest
from sched_support import Bench, names, policy, spec, worker

from gateway.scheduling.queue import Bucket
from gateway.scheduling.reserve import beside_reserve, leaves_reserve
from gateway.scheduling.worker import Worker

CLASSES = [{"name": "high"}, {"name": "mid", "floor": 0.5}, {"name": "low"}]


def holding(in_flight: int, limit: int = 20, kv_used: int = 0) -> Worker:
    one = worker(kv_tokens=1000, max_model_len=600)
    one.limit, one.in_flight, one.leases, one.kv_tokens = limit, in_flight, in_flight, kv_used
    one.refresh(0.0, 0.1, 0.8)
    return one


def needs(kv_each: int = 1, sequences: int = 1) -> Bucket:
    return Bucket(1, kv_each, sequences, frozenset())


@pytest.mark.parametrize(
    ("one", "bucket", "may"),
    [
        (holding(17), needs(), True),
        (holding(18), needs(), False),
        (holding(16), needs(sequences=2), True),
        (holding(17), needs(sequences=2), False),
        (holding(9, limit=9), needs(), True),  # a tenth of nine places is none
        (holding(0), needs(kv_each=900, sequences=19), True),  # nothing of ours: anything
        (holding(1, kv_used=300), needs(kv_each=420), True),
        (holding(1, kv_used=300), needs(kv_each=421), False),
        (holding(1, kv_used=100), needs(kv_each=9000), True),  # no longer than the worker's 600
        (holding(1, kv_used=300), needs(kv_each=211, sequences=2), False),
    ],
)
def test_a_tenth_stays_free_of_lower_classes(one: Worker, bucket: Bucket, may: bool) -> None:
    assert leaves_reserve(one, bucket, 0.1, 0.8) is may


def test_only_those_that_keep_it_are_left_with_their_factors() -> None:
    full, free = holding(18), holding(3)
    assert beside_reserve([full, free], [1.0, 1.5], needs(), 0.1, 0.8) == ([free], [1.5])


def bench(**admission: Any) -> Bench:
    return Bench(policy(classes=CLASSES, admission=admission), spec(max_num_seqs=20, kv_tokens=1_000_000))


def test_the_highest_class_finds_a_place_that_others_may_not_have() -> None:
    made = bench(top_class_reserve=0.1)
    others = [made.submit(f"mid {n}", klass=1) for n in range(20)]
    assert [ticket.lease is not None for ticket in others] == [True] * 18 + [False] * 2
    # The floor that is owed to those that wait does not open the reserve, nor close it to the highest class.
    high = [made.submit(f"high {n}", klass=0) for n in range(3)]
    assert [ticket.lease is not None for ticket in high] == [True, True, False]
    first, second, third = (ticket.lease for ticket in others[:3])
    assert first is not None
    assert second is not None
    assert third is not None
    assert names(made.settle(first)) == ["high 2"]
    assert names(made.settle(second)) == []
    assert names(made.settle(third)) == []
    assert made.shown().in_flight == 18
    assert high[0].lease is not None
    assert names(made.settle(high[0].lease)) == ["mid 18"]


def test_without_a_reserve_all_places_are_for_all() -> None:
    made = bench()
    assert all(made.submit(str(n), klass=2).lease is not None for n in range(20))


def test_a_policy_may_bring_and_end_it_while_requests_run() -> None:
    made = bench(top_class_reserve=0.5)
    tickets = [made.submit(str(n), klass=1) for n in range(20)]
    assert made.shown().in_flight == 10
    made.take(made.scheduler.adopt(policy(classes=CLASSES), 0.0))
    assert all(ticket.lease is not None for ticket in tickets)
