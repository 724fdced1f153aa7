"""The share that a class gets even while higher ones wait."""

from __future__ import annotations

from gateway.scheduling.floors import CAP_TOKENS, MARGIN, Floors

BOTH = {("a", 0): 5, ("a", 2): 5}


def test_a_class_is_owed_its_floor_of_all_work() -> None:
    floors = Floors([0.0, 0.1, 0.25])
    assert floors.first(BOTH) == []
    served = {0: 0.0, 2: 0.0}
    for _ in range(400):
        due = floors.first(BOTH)
        klass = due[0][1] if due else 0
        served[klass] += 100.0
        floors.dispatched("a", klass, 100.0, BOTH)
    assert abs(served[2] / (served[0] + served[2]) - 0.25 * MARGIN) < 0.01


def test_nothing_is_owed_to_a_class_that_does_not_wait() -> None:
    floors = Floors([0.0, 0.0, 0.5])
    floors.dispatched("a", 0, 100.0, {("a", 0): 1})
    assert floors.first(BOTH) == []
    floors.dispatched("a", 0, 100.0, BOTH)
    assert floors.first({("a", 0): 1}) == []
    assert floors.first(BOTH) == [("a", 2)]
    floors.dispatched("a", 0, 100.0, {("a", 0): 1})
    assert floors.first(BOTH) == []


def test_pools_are_apart_and_the_most_owed_goes_first() -> None:
    floors = Floors([0.0, 0.1, 0.2])
    waiting = {("a", 1): 1, ("a", 2): 1, ("b", 1): 1}
    floors.dispatched("a", 0, 100.0, waiting)
    assert floors.first(waiting) == [("a", 2), ("a", 1)]
    floors.dispatched("b", 0, 1000.0, waiting)
    assert floors.first(waiting) == [("b", 1), ("a", 2), ("a", 1)]


def test_debt_is_capped_and_ends_with_the_floor() -> None:
    floors = Floors([0.0, 0.0, 1.0])
    for _ in range(10):
        floors.dispatched("a", 0, CAP_TOKENS, BOTH)
    floors.dispatched("a", 2, CAP_TOKENS + 1.0, BOTH)
    assert floors.first(BOTH) == [("a", 2)]
    floors.adopt([0.0, 0.5, 0.0])
    assert floors.first(BOTH) == []


def test_work_that_was_less_than_estimated_is_owed_again() -> None:
    floors = Floors([0.0, 0.5])
    waiting = {("p", 0): 1, ("p", 1): 1}
    floors.dispatched("p", 1, 1000.0, waiting)
    assert floors.first(waiting) == []
    floors.dispatched("p", 1, -1000.0, waiting)
    floors.dispatched("p", 0, 10.0, waiting)
    assert floors.first(waiting) == [("p", 1)]


def test_what_a_class_got_too_much_is_bounded_too() -> None:
    floors = Floors([0.0, 0.5])
    waiting = {("p", 0): 1, ("p", 1): 1}
    floors.dispatched("p", 1, 1e9, waiting)
    floors.dispatched("p", 0, 4 * CAP_TOKENS, waiting)
    assert floors.first(waiting) == [("p", 1)]
