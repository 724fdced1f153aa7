"""How many places a worker has."""

from __future__ import annotations

import itertools

import pytest
from sched_support import policy, worker

from gateway.scheduling.limits import effective_limit, full_limit, next_ramp_at, ramp_step
from gateway.scheduling.model import WorkerState


@pytest.mark.parametrize(
    ("seqs", "slots", "sections", "limit"),
    [
        (8, None, {}, 8),
        (8, None, {"admission": {"over_commit": 2}}, 10),
        (8, 3, {"admission": {"over_commit": 2}}, 3),
        (8, -1, {}, 0),
        (8, None, {"limits": {"max_in_flight_per_worker": 5}}, 5),
        (8, None, {"limits": {"max_in_flight_per_worker": 5}, "pools": {"a": {"max_in_flight_per_worker": 7}}}, 7),
        (8, None, {"pools": {"other": {}}}, 8),
        (None, None, {}, 256),
        (-3, None, {}, 0),
    ],
)
def test_the_least_of_all_limits_holds(seqs: int | None, slots: int | None, sections: dict, limit: int) -> None:
    one = worker(max_num_seqs=seqs)
    one.slots = slots
    assert full_limit(one, policy(**sections)) == limit
    assert effective_limit(one, policy(**sections), 0.0) == limit


def test_reports_lower_the_limit_but_never_raise_it() -> None:
    one = worker(max_num_seqs=8)
    one.adaptive.limit = 5
    assert effective_limit(one, policy(), 0.0) == 5
    one.adaptive.limit = 50
    assert effective_limit(one, policy(), 0.0) == 8


def test_slow_start_grows_by_a_tenth_at_a_time() -> None:
    one, rules = worker(max_num_seqs=20), policy(health={"slow_start_s": 30.0})
    one.health.ramp_from = 100.0
    seen = [effective_limit(one, rules, 100.0 + second) for second in range(31)]
    assert seen[0] == 2
    assert seen[3] == 4
    assert seen[-1] == 20
    assert all(after - before in (0, 2) for before, after in itertools.pairwise(seen))
    assert next_ramp_at(one, rules, 100.0) == pytest.approx(103.0)
    assert next_ramp_at(one, rules, 103.0) == pytest.approx(106.0)
    assert next_ramp_at(one, rules, 140.0) is None
    assert ramp_step(one, rules, 90.0) == 1
    assert ramp_step(one, policy(health={"slow_start_s": 0.0}), 100.0) == 10


def test_slow_start_leaves_at_least_one_place_where_there_is_any() -> None:
    one, rules = worker(max_num_seqs=3), policy()
    one.health.ramp_from = 0.0
    assert effective_limit(one, rules, 0.0) == 1
    one.slots = 0
    assert effective_limit(one, rules, 0.0) == 0
    one.health.ramp_from = None
    assert next_ramp_at(one, rules, 0.0) is None


def test_a_probed_worker_gets_one_place_beside_what_it_still_runs() -> None:
    one, rules = worker(max_num_seqs=8), policy()
    one.health.state = WorkerState.PROBING
    assert effective_limit(one, rules, 0.0) == 1
    one.in_flight = 4
    assert effective_limit(one, rules, 0.0) == 5
    one.in_flight, one.canaries = 5, 1
    assert effective_limit(one, rules, 0.0) == 5
    one.in_flight = 20
    assert effective_limit(one, rules, 0.0) == 8
