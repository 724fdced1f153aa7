"""When an engine is said to hang."""

from dataclasses import replace

from workers.report import WorkerReport
from workers.watchdog import Watchdog

IDLE = WorkerReport("a", "i", 1, "http://h", "vllm", "p", ("m",), generation_tokens=5)
BUSY = replace(IDLE, running=2)
AWAY = replace(IDLE, state="unreachable")


def test_an_idle_engine_never_hangs():
    dog = Watchdog(10)
    assert [dog.observe(IDLE, now) for now in (0.0, 100.0, 1000.0)] == [None] * 3


def test_one_that_does_not_answer():
    dog = Watchdog(10)
    assert dog.observe(IDLE, 0.0) is None
    assert dog.observe(AWAY, 1.0) is None
    assert dog.observe(AWAY, 10.9) is None
    assert dog.observe(AWAY, 11.0) == "does not answer for 10 s"


def test_one_that_was_never_seen_at_work_is_silent_too():
    dog = Watchdog(10)
    assert dog.observe(replace(IDLE, state="starting"), 0.0) is None
    assert dog.observe(replace(IDLE, state="starting"), 10.0) == "does not answer for 10 s"


def test_one_that_makes_nothing_of_its_requests():
    dog = Watchdog(10)
    assert dog.observe(BUSY, 0.0) is None
    assert dog.observe(BUSY, 1.0) is None
    assert dog.observe(replace(BUSY, running=3), 11.0) == "makes nothing of 3 running requests for 10 s"


def test_any_progress_begins_anew():
    for field in ("prompt_tokens", "generation_tokens", "preemptions", "prefix_queries"):
        dog = Watchdog(10)
        dog.observe(BUSY, 0.0)
        dog.observe(BUSY, 1.0)
        assert dog.observe(replace(BUSY, **{field: 99}), 10.0) is None
        assert dog.observe(replace(BUSY, **{field: 99}), 20.0) is None
        assert dog.observe(replace(BUSY, **{field: 99}), 30.0) is not None


def test_two_kinds_of_trouble_are_not_added():
    dog = Watchdog(10)
    dog.observe(BUSY, 0.0)
    dog.observe(BUSY, 1.0)
    assert dog.observe(AWAY, 11.0) is None
    assert dog.observe(AWAY, 21.0) is not None


def test_without_patience_nothing_is_judged():
    dog = Watchdog(0)
    assert [dog.observe(AWAY, now) for now in (0.0, 1e9)] == [None, None]
