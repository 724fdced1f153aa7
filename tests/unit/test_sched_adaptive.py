"""The limit that reports lower and use raises."""

from __future__ import annotations

from typing import Any

from gateway.scheduling.adaptive import Adaptive
from gateway.scheduling.model import Signal


class Engine:
    def __init__(self) -> None:
        self.adaptive = Adaptive(0.0)
        self.now = 0.0

    def report(self, in_flight: int = 20, after: float = 1.0, unexplained: bool = True, **signal: Any) -> bool:
        self.now += after
        usual = {"running": in_flight, "waiting": 0, "kv_used_tokens": 0, "preemptions": 0}
        return self.adaptive.observe(Signal(self.now, **{**usual, **signal}), in_flight, 30, 1000, 1, unexplained)


def test_it_has_nothing_to_say_until_there_is_a_reason() -> None:
    engine = Engine()
    assert not engine.report(preemptions=7)
    assert not engine.report(preemptions=7)
    assert engine.adaptive.limit is None


def test_preemption_lowers_once_and_then_rests() -> None:
    engine = Engine()
    engine.report()
    assert engine.report(preemptions=1)
    assert engine.adaptive.limit == 16
    assert not engine.report(preemptions=2)
    assert engine.report(in_flight=15, preemptions=3)
    assert engine.adaptive.limit == 12
    assert not engine.report(in_flight=0, after=5.0, preemptions=4)
    assert not engine.report(in_flight=15, after=5.0, preemptions=5)


def test_waiting_counts_in_two_reports_running_and_beyond_the_over_commit() -> None:
    engine = Engine()
    for waiting in (2, 1, 2, 0, 2):
        assert not engine.report(waiting=waiting)
    assert engine.report(waiting=2)
    assert engine.adaptive.limit == 16


def test_waiting_for_a_prefill_under_way_is_how_engines_work() -> None:
    engine = Engine()
    for _ in range(5):
        assert not engine.report(waiting=9, unexplained=False)
    assert not engine.report(waiting=9, unexplained=False, kv_used_tokens=971)
    assert engine.report(waiting=9, unexplained=False, kv_used_tokens=971)


def test_never_below_one_and_never_from_above_the_other_limits() -> None:
    engine = Engine()
    engine.report()
    engine.report(in_flight=1, preemptions=1)
    assert engine.adaptive.limit == 1
    engine.report(in_flight=90, after=3.0, preemptions=2)
    assert engine.adaptive.limit == 24


def test_it_grows_while_it_is_used_and_falls_away_in_the_end() -> None:
    engine = Engine()
    engine.report()
    engine.report(preemptions=1)
    same = {"preemptions": 1}
    assert not engine.report(in_flight=7, after=2.0, **same)
    assert not engine.report(in_flight=16, after=2.0, waiting=1, **same)
    assert not engine.report(in_flight=16, after=2.0, kv_used_tokens=801, **same)
    assert not engine.report(in_flight=16, after=1.0, **same)
    assert engine.report(in_flight=16, after=1.0, **same)
    assert engine.adaptive.limit == 17
    for _ in range(13):
        assert engine.report(in_flight=30, after=2.0, **same)
    assert engine.adaptive.limit == 30
    assert engine.report(in_flight=30, after=2.0, **same)
    assert engine.adaptive.limit is None
