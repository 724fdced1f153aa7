"""What a ticket needs, and which workers meet it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from sched_support import request, worker

from gateway.scheduling.lanes import KNOWN, Lane, LaneKey, kv_peak, output_within
from gateway.scheduling.model import WorkerState
from gateway.scheduling.queue import Bucket
from gateway.scheduling.worker import Worker


def lane(*workers: Worker) -> Lane:
    made = Lane(LaneKey("m", ("a", "b"), ()))
    for one in workers:
        one.is_open = True
        one.limit = 4
    made.refill(dict.fromkeys(workers, 1.0))
    return made


SHORT, LONG = {"name": "s", "max_model_len": 2000}, {"name": "l", "max_model_len": 8000}


def two() -> Lane:
    return lane(worker(**SHORT), worker(**LONG))


@pytest.mark.parametrize(
    ("prompt", "output", "exact", "length"),
    [
        (1000, 1000, False, 2000),
        (1000, 1001, False, 8000),
        (1000, None, False, 2000),
        (3000, 90_000, False, 8000),
        (1500, 90_000, False, 2000),  # nowhere whole: all that hold the prompt
        (8001, 1, True, None),
        (8001, 1, False, 8000),
        (16_000, 1, False, 8000),
        (16_001, 1, False, None),
    ],
)
def test_length_that_a_worker_must_hold(prompt: int, output: int | None, exact: bool, length: int | None) -> None:
    bucket = two().bucket(request(prompt_tokens=prompt, max_output_tokens=output, prompt_exact=exact), frozenset())
    assert (bucket and bucket.length) == length


def test_unknown_length_holds_everything() -> None:
    bucket = lane(worker(max_model_len=None)).bucket(request(prompt_tokens=10**8), frozenset())
    assert bucket is not None
    assert lane(worker(max_model_len=None)).fitting(bucket, 0.0, 0.1, 0.95).workers


def test_what_does_not_generate_needs_no_room_for_output() -> None:
    asked = request(generates=False, max_output_tokens=10**6, prompt_tokens=100)
    assert kv_peak(asked) == 100
    assert output_within(asked, 50) == 0
    bucket = two().bucket(asked, frozenset())
    assert bucket is not None
    assert bucket.length == 2000
    assert output_within(request(max_output_tokens=None), 77) == 77
    assert output_within(request(max_output_tokens=5), 77) == 5


def fits(one: Worker, **needs: Any) -> bool:
    usual = {"length": 100, "kv_each": 100, "sequences": 1, "excluded": frozenset[str]()}
    return lane(one).fitting(Bucket(**{**usual, **needs}), 0.0, 0.1, 0.5).workers == [one]


def busy(**changes: Any) -> Worker:
    one = worker(**changes)
    one.leases, one.in_flight = 1, 2
    return one


def test_length_and_exclusion() -> None:
    assert fits(worker(**SHORT), length=2000)
    assert not fits(worker(**SHORT), length=2001)
    assert not fits(worker(), excluded=frozenset({"w"}))
    assert fits(worker(), excluded=frozenset({"other"}))


def test_numbers_are_refreshed_only_when_they_are_out_of_date() -> None:
    one = worker()
    made = lane(one)
    needs = Bucket(1, 1, 1, frozenset())
    made.fitting(needs, 0.0, 0.1, 0.95)
    one.step_s = 77.0
    made.fitting(needs, 5.0, 0.1, 0.95)
    assert one.step_s == 77.0
    one.cached_until = 6.0
    made.fitting(needs, 6.0, 0.1, 0.95)
    assert one.step_s < 1.0


def test_who_does_not_fit_is_left_out_of_all_lists() -> None:
    workers = [worker(name=name, max_model_len=most) for name, most in (("a", 2000), ("b", 10**6), ("away", 10**6))]
    made = lane(*workers)
    made.refill({workers[0]: 1.0, workers[1]: 1.0, workers[2]: 1.5})
    everybody = made.fitting(Bucket(1, 1, 1, frozenset()), 0.0, 0.1, 0.95)
    assert (everybody.workers, everybody.factors) == (workers, [1.0, 1.0, 1.5])
    assert everybody.home is not None
    assert everybody.home.workers == workers[:2]
    assert made.fitting(Bucket(1, 1, 1, frozenset()), 0.0, 0.1, 0.95) is everybody
    few = made.fitting(Bucket(10**5, 1, 1, frozenset()), 0.0, 0.1, 0.95)
    assert (few.workers, few.factors) == (workers[1:], [1.0, 1.5])
    assert few.home is not None
    assert few.home.workers == [workers[1]]
    made.set_open(workers[0], False)
    left = made.fitting(Bucket(1, 1, 1, frozenset()), 0.0, 0.1, 0.95)
    assert left.workers == workers[1:]
    made.set_open(workers[0], True)
    assert made.fitting(Bucket(1, 1, 1, frozenset()), 0.0, 0.1, 0.95).workers == [*workers[1:], workers[0]]
    assert everybody.workers == workers


def test_kv_gates_a_worker_that_holds_something() -> None:
    assert fits(busy(kv_tokens=1000), kv_each=500)
    assert not fits(busy(kv_tokens=1000), kv_each=501)
    assert not fits(busy(kv_tokens=1000), kv_each=251, sequences=2)
    assert fits(busy(kv_tokens=1000, max_model_len=400), kv_each=9999)
    assert fits(busy(kv_tokens=None), kv_each=10**9)
    assert fits(worker(kv_tokens=1000), kv_each=10**6)


def test_several_sequences_need_their_places_or_a_worker_to_themselves() -> None:
    assert fits(busy(), sequences=2)
    assert not fits(busy(), sequences=3)
    assert fits(worker(), sequences=100)


def test_opening_and_closing_is_seen_at_once() -> None:
    one, other = worker(name="x"), worker(name="y")
    made = lane(one, other)
    assert made.home == "a"
    assert Lane(LaneKey("m", (), ())).home == ""
    made.set_open(one, False)
    assert list(made.open) == [other]
    made.set_open(one, True)
    assert list(made.open) == [other, one]
    assert made.step is one.step


def test_refilling_tells_whether_lengths_changed_and_keeps_workers_informed() -> None:
    one, other = worker(**SHORT), worker(**LONG)
    made = lane(one)
    assert made in one.lanes
    assert made.refill({one: 1.0, other: 2.0})
    assert not made.refill({one: 1.0, other: 1.0})
    assert made.refill({other: 1.0})
    assert made not in one.lanes
    assert made.open == {}
    other.is_open = True
    made.refill({other: 1.5})
    assert made.open == {other: 1.5}


def test_an_alternative_is_another_worker_in_rotation_that_is_long_enough() -> None:
    short, long = worker(**SHORT), worker(**LONG)
    made = lane(short, long)
    needs = Bucket(1000, 1, 1, frozenset({"s"}))
    assert made.alternative(needs)
    assert made.alternative(Bucket(9000, 1, 1, frozenset({"s"}))) is False
    long.health.state = WorkerState.EJECTED
    assert not made.alternative(needs)
    assert made.in_rotation
    short.draining = True
    assert not made.in_rotation


def test_equal_needs_are_one_bucket_and_few_are_remembered() -> None:
    made = lane(worker(**LONG))
    first = made.bucket(request(), frozenset())
    assert first is not None
    assert made.bucket(request("other"), frozenset()) is first
    assert made.without(first, frozenset({"w"})).excluded == {"w"}
    assert made.without(made.without(first, frozenset({"w"})), frozenset()) is first
    for n in range(2 * KNOWN):
        made.without(first, frozenset({str(n)}))
    again = made.bucket(request(), frozenset())
    assert again is not None
    assert again is not first
    assert first.within(again)
    assert again.within(first)


def test_bands_appear_when_asked_for() -> None:
    made = two()
    assert made.band_of(3) is None
    assert made.band(3) is made.band_of(3)
    assert made.band(3) in made.bands()
    assert made.band(3).least() == 0.0
    made.band(3).served(5.0)
    made.band(3).served(4.0)
    assert made.band(3).least() == 5.0
    assert inf > made.band(3).virtual
