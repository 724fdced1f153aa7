"""Events for listeners: bounded, and a slow one is told what it lost."""

import pytest

from gateway.events import MAX_LISTENERS, MAX_WAITING, Events, TooManyListenersError


async def test_listeners_get_what_they_asked_for():
    events = Events()
    everything, workers = events.listen(), events.listen(frozenset({"worker"}))
    events.put("policy", lambda: {"number": 2})
    events.put("worker", lambda: {"worker": "w1"})
    assert await everything.wait(1)
    assert everything.take() == ([("policy", {"number": 2}), ("worker", {"worker": "w1"})], 0)
    assert workers.take() == ([("worker", {"worker": "w1"})], 0)
    assert not await workers.wait(0.001)
    events.leave(workers)
    events.leave(workers)
    assert len(events) == 1


def test_nothing_is_made_for_nobody():
    events = Events()
    events.put("policy", lambda: pytest.fail("nobody listens"))
    events.listen(frozenset({"worker"}))
    events.put("policy", lambda: pytest.fail("nobody listens to this"))


async def test_a_slow_listener_loses_the_oldest():
    events = Events()
    listener = events.listen()
    for number in range(MAX_WAITING + 5):
        events.put("request", lambda number=number: {"number": number})
    found, lost = listener.take()
    assert (len(found), lost) == (MAX_WAITING, 5)
    assert found[0] == ("request", {"number": 5})
    assert listener.take() == ([], 0)


def test_listeners_are_bounded():
    events = Events()
    for _ in range(MAX_LISTENERS):
        events.listen()
    with pytest.raises(TooManyListenersError):
        events.listen()
