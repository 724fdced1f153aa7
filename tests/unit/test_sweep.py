"""The data plane's one timer: deadlines reckoned from now, also after a time in which nothing was watched."""

from collections.abc import Callable
from typing import Any

from gateway.http.sweep import INTERVAL_S, Sweeper


class HandLoop:
    """A loop whose time is moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.at

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Any:
        self.timers.append((self.at + delay_s, work))
        return object()

    def pass_time(self, seconds: float) -> None:
        end = self.at + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.at = first[0]
            first[1]()
        self.at = end


class Watched:
    def __init__(self, sweeper: Sweeper) -> None:
        self.due = 0.0
        self.called: list[float] = []
        self.sweeper = sweeper

    def on_due(self, now: float) -> None:
        self.called.append(now)
        self.sweeper.remove(self)


def test_the_first_deadline_after_a_quiet_hour_is_not_over_at_once():
    loop = HandLoop()
    sweeper: Any = Sweeper(loop)  # type: ignore[arg-type]
    first = Watched(sweeper)
    sweeper.add(first, 1.0)
    loop.pass_time(2.0)
    assert len(first.called) == 1
    loop.pass_time(3600.0)
    assert not loop.timers, "nothing is watched, nothing ticks"
    second = Watched(sweeper)
    sweeper.add(second, 10.0)
    assert second.due == loop.at + 10.0
    loop.pass_time(10.0 - INTERVAL_S)
    assert second.called == []
    loop.pass_time(2 * INTERVAL_S)
    assert len(second.called) == 1
    assert sweeper.lags == 0
