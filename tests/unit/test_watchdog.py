"""When an engine is said to hang."""

from dataclasses import replace

from workers.report import WorkerReport
from workers.watchdog import Watchdog

IDLE = WorkerReport("a", "i", 1, "http://h", "vllm", "p", ("m",), generation_tokens=5)
BUSY = replace(IDLE, running=2)
AWAY = replace(IDLE, state="unreachable")
PROGRESS = ("prompt_tokens", "generation_tokens", "preemptions", "prefix_queries")


def judge(patience_s, *looks):
    """What is said at each (report, time). Each look has a report with its own number; None: the last once more."""
    dog, report, said = Watchdog(patience_s), IDLE, []
    for number, (seen, now) in enumerate(looks):
        report = report if seen is None else replace(seen, sequence=number)
        said.append(dog.observe(report, now))
    return said


def test_an_idle_engine_never_hangs():
    assert judge(10, (IDLE, 0.0), (IDLE, 100.0), (IDLE, 1000.0)) == [None] * 3


def test_one_that_does_not_answer():
    said = judge(10, (IDLE, 0.0), (AWAY, 1.0), (AWAY, 10.9), (AWAY, 11.0))
    assert said == [None, None, None, "does not answer for 10 s"]


def test_one_that_was_never_seen_at_work_is_silent_too():
    starting = replace(IDLE, state="starting")
    assert judge(10, (starting, 0.0), (starting, 10.0)) == [None, "does not answer for 10 s"]


def test_one_that_makes_nothing_of_its_requests():
    said = judge(10, (BUSY, 0.0), (BUSY, 1.0), (replace(BUSY, running=3), 11.0))
    assert said == [None, None, "makes nothing of 3 running requests for 10 s"]


def test_a_report_that_is_repeated_says_nothing_of_the_requests_in_it():
    """The first looks that fail repeat the last report, with whatever ran when it was taken."""
    assert judge(10, (BUSY, 0.0), (None, 1.0), (None, 11.0)) == [None, None, "does not answer for 10 s"]
    assert judge(10, (BUSY, 0.0), (None, 1.0), (AWAY, 6.0), (AWAY, 11.0))[-1] == "does not answer for 10 s"
    assert judge(10, (BUSY, 0.0), (None, 1.0), (BUSY, 10.0), (None, 11.0), (None, 20.0)) == [None] * 5


def test_a_look_that_fails_now_and_then_does_not_hide_that_it_makes_nothing():
    said = judge(10, (BUSY, 0.0), (BUSY, 1.0), (None, 4.0), (BUSY, 6.0), (AWAY, 9.0), (BUSY, 11.0))
    assert said == [None] * 5 + ["makes nothing of 2 running requests for 10 s"]


def test_any_progress_begins_anew():
    for field in PROGRESS:
        more = replace(BUSY, **{field: 99})
        said = judge(10, (BUSY, 0.0), (BUSY, 1.0), (more, 10.0), (more, 20.0), (more, 30.0))
        assert said == [None] * 4 + ["makes nothing of 2 running requests for 10 s"]


def test_two_kinds_of_trouble_are_not_added():
    assert judge(10, (BUSY, 0.0), (BUSY, 1.0), (AWAY, 11.0))[-1] is None
    assert judge(10, (BUSY, 0.0), (BUSY, 1.0), (AWAY, 11.0), (AWAY, 21.0))[-1] is not None


def test_without_patience_nothing_is_judged():
    assert judge(0, (AWAY, 0.0), (AWAY, 1e9)) == [None, None]
