"""Degraded modes, the least in flight, and who lives."""

import os
import subprocess
import sys

from gateway.leasing.evidence import identity, lives
from gateway.leasing.lows import Lows
from gateway.leasing.words import LOW_S
from gateway.modes import MEANING, PRESSURE_HOLD_S, Mode, Pressure, mode_of


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_gravest_mode_counts():
    well = {"redis_up": True, "settled": True, "usable": True, "pressed": False}
    assert mode_of(**well) is Mode.NORMAL
    assert mode_of(**{**well, "settled": False}) is Mode.REDIS_STALE
    assert mode_of(**{**well, "settled": False, "redis_up": False}) is Mode.REDIS_GONE
    assert mode_of(**{**well, "redis_up": False, "usable": False}) is Mode.NO_WORKER
    assert mode_of(**{**well, "usable": False, "pressed": True}) is Mode.PRESSURE
    assert set(MEANING) == set(Mode)


def test_pressure_lasts_a_little_longer_than_its_cause():
    clock = Clock()
    pressure = Pressure(clock)
    pressure.late(0.2)
    assert not pressure.on
    pressure.late(0.3)
    pressure.late(0.1)
    assert pressure.on
    assert "it was 0.3 s late within the last 2 s, 0.25 s are borne" in pressure.told
    clock.now = PRESSURE_HOLD_S
    assert not pressure.on


class Cost:
    count = 2


class Lease:
    worker = "w"
    cost = Cost()


class Passed:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def dispatched(self, lease) -> None:
        self.seen.append("dispatched")

    def settled(self, lease, outcome) -> None:
        self.seen.append("settled")


def test_the_least_in_flight_is_known_after_a_while_and_forgets():
    clock, passed = Clock(), Passed()
    lows = Lows(passed, clock)
    for _ in range(3):
        lows.dispatched(Lease())
    assert lows.low("w", 1.0) == 0, "too early to know"
    clock.now = LOW_S
    lows.settled(Lease(), None)
    lows.dispatched(Lease())
    assert lows.low("w", LOW_S) == 4
    clock.now = LOW_S + 0.5
    lows.settled(Lease(), None)
    lows.settled(Lease(), None)
    lows.settled(Lease(), None)
    assert lows.low("w", LOW_S + 1) == 0
    for _ in range(2):
        lows.dispatched(Lease())
    assert lows.low("w", 3 * LOW_S) == 4
    assert lows.low("unknown", 3 * LOW_S) == 0
    assert passed.seen.count("settled") == 4


def test_only_what_is_certain_is_said_of_a_process():
    me = identity()
    assert me
    assert lives(me) is True
    place, _, began = me.rpartition("/")
    place, _, pid = place.rpartition("/")
    assert pid == str(os.getpid())
    assert lives(f"{place}/{pid}/{int(began) + 1}") is False, "the same number, another process"
    assert lives("") is None
    assert lives(f"other-boot/1/{pid}/{began}") is None
    assert lives(f"{place}/x/{began}") is None
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert lives(f"{place}/{child.pid}/1") is False
