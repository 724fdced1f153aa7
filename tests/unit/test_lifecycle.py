"""The life cycle's table, restarts with growing pauses, and one start at a time on each device."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lifecycle import (
    ENDED,
    HOLDS_DEVICES,
    NEXT,
    Event,
    IllegalEvent,
    Life,
    RestartPolicy,
    State,
    due,
    next_due,
    step,
)

POLICY = RestartPolicy(base_s=1.0, cap_s=8.0, give_up_after=5, quiet_s=300.0)


def go(life, *events, now=0.0, why=""):
    for event in events:
        life = step(life, event, now, POLICY, Random(1), why)
    return life


def test_a_whole_life():
    life = Life("a")
    seen = [life.state]
    for event in (Event.START, Event.ANSWER, Event.WARM, Event.DRAIN, Event.STOP, Event.EXIT, Event.WANT):
        life = go(life, event)
        seen.append(life.state)
    assert seen == [
        State.PENDING,
        State.STARTING,
        State.WARMING,
        State.READY,
        State.DRAINING,
        State.STOPPING,
        State.STOPPED,
        State.PENDING,
    ]
    assert life.starts == 1


def test_every_state_can_be_reached_and_left():
    assert set(NEXT.values()) | {State.PENDING} == set(State)
    assert {state for state, _ in NEXT} == set(State)
    assert {event for _, event in NEXT} == set(Event)


def test_a_process_ends_in_every_state_that_has_one():
    for state in set(State) - ENDED:
        assert (state, Event.EXIT) in NEXT
        assert (state, Event.STOP) in NEXT or state is State.STOPPING


def test_what_the_table_does_not_have_is_refused():
    with pytest.raises(IllegalEvent, match=r"^a: warm cannot happen while pending$"):
        go(Life("a"), Event.WARM)


def test_a_failure_is_tried_again_after_a_pause_with_its_reason():
    life = go(Life("a"), Event.START, Event.EXIT, now=10.0, why="ended with status 1")
    assert (life.state, life.failures, life.why) == (State.FAILED, 1, "ended with status 1")
    assert life.retry_at is not None
    assert 10.5 <= life.retry_at <= 11.0
    assert due([life], 10.4) == []
    assert due([life], 11.0) == [("a", Event.RETRY)]
    assert next_due([life, Life("b")]) == life.retry_at
    again = go(life, Event.RETRY, now=11.0)
    assert (again.state, again.retry_at, again.failures) == (State.PENDING, None, 1)
    assert next_due([again]) is None


def test_it_is_given_up_after_so_many_failures_and_a_person_may_want_it_again():
    life = Life("a")
    for left in reversed(range(POLICY.give_up_after)):
        life = go(life, Event.START, Event.EXIT)
        assert life.given_up == (left == 0)
        if left:
            life = go(life, Event.RETRY)
    assert due([life], 1e9) == []
    fresh = go(life, Event.STOP, Event.WANT)
    assert (fresh.failures, fresh.state) == (0, State.PENDING)


def test_a_quiet_time_makes_the_next_failure_the_first():
    life = go(Life("a", failures=4), Event.START, Event.ANSWER, Event.WARM, now=0.0)
    assert go(life, Event.EXIT, now=299.0).failures == 5
    assert go(life, Event.EXIT, now=300.0).failures == 1


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_pauses_grow_up_to_their_cap(failures, seed):
    pause = POLICY.pause_s(failures, Random(seed))
    full = min(8.0, 2.0 ** min(failures - 1, 100))
    assert full / 2 <= pause <= full


def test_one_start_at_a_time_on_each_device():
    lives = [Life("a", ("0",)), Life("b", ("0",)), Life("c", ("1",)), Life("d", ("1", "2")), Life("e")]
    assert due(lives, 0.0) == [("a", Event.START), ("c", Event.START), ("e", Event.START)]
    lives[0] = go(lives[0], Event.START, Event.ANSWER)
    lives[2] = go(lives[2], Event.START, Event.ANSWER, Event.WARM)
    assert due(lives, 0.0) == [("d", Event.START), ("e", Event.START)]


@given(st.data())
def test_whatever_happens_no_device_has_two_coming_up(data):
    names = [Life(f"i{n}", tuple(sorted(data.draw(st.sets(st.sampled_from("012")))))) for n in range(4)]
    lives = {life.name: life for life in names}
    now = 0.0
    for _ in range(data.draw(st.integers(0, 30))):
        now += data.draw(st.floats(0, 10))
        for name, event in due(lives.values(), now):
            lives[name] = step(lives[name], event, now, POLICY, Random(0))
        name = data.draw(st.sampled_from(sorted(lives)))
        events = [event for state, event in NEXT if state is lives[name].state and event is not Event.START]
        lives[name] = step(lives[name], data.draw(st.sampled_from(sorted(events))), now, POLICY, Random(0))
        coming_up = [device for life in lives.values() if life.state in HOLDS_DEVICES for device in life.devices]
        assert len(coming_up) == len(set(coming_up))
        assert all(life.running == (life.state not in ENDED) for life in lives.values())
