"""The life of an instance as a table, and who may start next. Pure: no processes, no clock, no sockets.

The supervisor tells what happened (`step`) and asks what is due (`due`, `next_due`); it carries out the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final


class State(StrEnum):
    """Where an instance is in its life."""

    PENDING = "pending"  # wanted; waits for its turn on its devices
    STARTING = "starting"  # its process runs and has not answered a request yet
    WARMING = "warming"  # answers; its warm-up prompts run
    READY = "ready"  # gets traffic
    DRAINING = "draining"  # gets no new requests; those it has run on
    STOPPING = "stopping"  # told to end
    STOPPED = "stopped"  # ended because it was told to
    FAILED = "failed"  # ended by itself, or was not ready in time


class Event(StrEnum):
    """What can happen to an instance."""

    START = "start"  # its process was started
    ANSWER = "answer"  # it answered a request for one token
    WARM = "warm"  # its warm-up prompts are done
    DRAIN = "drain"  # it is wanted to leave
    STOP = "stop"  # it is told to end
    EXIT = "exit"  # its processes are gone, by themselves or because it was not ready in time
    RETRY = "retry"  # its pause is over
    WANT = "want"  # it is wanted again


NEXT: Final[Mapping[tuple[State, Event], State]] = {
    (State.PENDING, Event.START): State.STARTING,
    (State.PENDING, Event.STOP): State.STOPPED,
    (State.STARTING, Event.ANSWER): State.WARMING,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.STARTING, Event.EXIT): State.FAILED,
    (State.WARMING, Event.WARM): State.READY,
    (State.WARMING, Event.STOP): State.STOPPING,
    (State.WARMING, Event.EXIT): State.FAILED,
    (State.READY, Event.DRAIN): State.DRAINING,
    (State.READY, Event.STOP): State.STOPPING,
    (State.READY, Event.EXIT): State.FAILED,
    (State.DRAINING, Event.STOP): State.STOPPING,
    (State.DRAINING, Event.EXIT): State.STOPPED,  # it was to leave anyway
    (State.STOPPING, Event.EXIT): State.STOPPED,
    (State.FAILED, Event.RETRY): State.PENDING,
    (State.FAILED, Event.STOP): State.STOPPED,
    (State.STOPPED, Event.WANT): State.PENDING,
}
"""Every transition there is; any other pair is a fault of the supervisor."""

HOLDS_DEVICES: Final = frozenset({State.STARTING, State.WARMING})
"""Still taking memory: two at once on one device would count each other's memory as their own."""

ENDED: Final = frozenset({State.PENDING, State.STOPPED, State.FAILED})
"""No process runs."""


class IllegalEvent(ValueError):  # noqa: N818 - it is the event that is illegal
    """An event that cannot happen in this state."""

    def __init__(self, name: str, state: State, event: Event) -> None:
        super().__init__(f"{name}: {event} cannot happen while {state}")


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a failing instance is tried again. Pauses double; a quiet time makes a failure the first one again."""

    base_s: float = 1.0
    cap_s: float = 60.0
    give_up_after: int = 8  # failures in a row: pauses of about 2 minutes in all, and eight loads of the weights
    quiet_s: float = 300.0  # ready for this long: what happens later is a new story

    def pause_s(self, failures: int, rng: Random) -> float:
        """The pause after so many failures in a row: between half of it and all of it, so that hosts spread."""
        full = min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 32))
        return full * rng.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Life:
    """One instance. Times are seconds of the supervisor's monotonic clock."""

    name: str
    devices: tuple[str, ...] = ()
    state: State = State.PENDING
    since: float = 0.0  # when it came into this state
    starts: int = 0
    failures: int = 0  # in a row
    retry_at: float | None = None  # only while failed; None then means given up
    why: str = ""  # of the last failure, one line

    @property
    def given_up(self) -> bool:
        """Whether it failed so often that only a person can help."""
        return self.state is State.FAILED and self.retry_at is None

    @property
    def running(self) -> bool:
        """Whether a process of it may run."""
        return self.state not in ENDED


def step(life: Life, event: Event, now: float, policy: RestartPolicy, rng: Random, why: str = "") -> Life:
    """The life after `event`. Raises `IllegalEvent` for what the table does not have."""
    target = NEXT.get((life.state, event))
    if target is None:
        raise IllegalEvent(life.name, life.state, event)
    if target is State.FAILED:
        return _failed(life, now, policy, rng, why)
    starts = life.starts + 1 if target is State.STARTING else life.starts
    failures = 0 if event in {Event.WANT, Event.STOP} else life.failures
    return replace(life, state=target, since=now, starts=starts, failures=failures, retry_at=None)


def _failed(life: Life, now: float, policy: RestartPolicy, rng: Random, why: str) -> Life:
    quiet = life.state is State.READY and now - life.since >= policy.quiet_s
    failures = 1 if quiet else life.failures + 1
    retry_at = None if failures >= policy.give_up_after else now + policy.pause_s(failures, rng)
    return replace(life, state=State.FAILED, since=now, failures=failures, retry_at=retry_at, why=why)


def due(lives: Collection[Life], now: float) -> list[tuple[str, Event]]:
    """What is to happen now, in order: failed ones whose pause is over, then the starts there is room for.

    1. One start at a time on each device, over all devices that an instance needs.
    2. The order of `lives` decides, except that nobody waits for a device held by one that is still coming up.
    """
    retries = [(life.name, Event.RETRY) for life in lives if life.retry_at is not None and life.retry_at <= now]
    held = {device for life in lives if life.state in HOLDS_DEVICES for device in life.devices}
    starts: list[tuple[str, Event]] = []
    for life in lives:
        if life.state is State.PENDING and not held.intersection(life.devices):
            starts.append((life.name, Event.START))
            held.update(life.devices)
    return retries + starts


def next_due(lives: Collection[Life]) -> float | None:
    """When the next pause is over; None when nobody pauses."""
    return min((life.retry_at for life in lives if life.retry_at is not None), default=None)
