"""What was seen of a gateway under load, and whether it kept its promises: facts in, figures out. Pure.

Every judgement also asks whether the situation was there that it judges: a queue that was never full, an engine that
nobody used say nothing, and a figure that says nothing must fall short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from loadtest.verify_client import Fate, Told
from loadtest.verify_figures import Figure, every, failed, lost, none_of

PROMISED_FREE_S: Final = 0.1
"""Within this a slot is free after its client left, and a deadline is kept."""

# -- requests and what engines hold -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A mix of requests: what clients, gateway and engines count of the same ones."""

    told: Sequence[Told]
    gateway: Mapping[str, float]  # by outcome
    attempts: float
    generations: int
    held: float  # at rest


def judge_outcomes(facts: Outcomes) -> list[Figure]:
    """Each request ended in exactly one outcome, and all three count the same."""
    fates = Counter(one.fate for one in facts.told)
    pairs = (
        (fates[Fate.ANSWERED], "ok"),
        (fates[Fate.LEFT], "cancelled"),
        (fates[Fate.REFUSED], "client_error"),
    )
    apart = sum(abs(count - facts.gateway.get(outcome, 0.0)) for count, outcome in pairs)
    return [
        every(
            "requests that ended in exactly one outcome at their client",
            len(facts.told) - lost(facts.told), len(facts.told),
        ),
        none_of(
            "requests that the gateway counts more or less than were sent",
            abs(sum(facts.gateway.values()) - len(facts.told)),
        ),
        none_of("answers, refusals and departures that clients and gateway count differently", apart),
        none_of(
            "requests that engines took up more or less than the gateway sent", abs(facts.generations - facts.attempts)
        ),
        none_of("requests running or waiting at rest, and work booked for them", facts.held),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """More requests at once than there are places for, first in number and then in KV tokens."""

    limit: int  # requests at once that the policy allows an engine
    most: Mapping[str, int]  # that each engine saw
    kv_share: float  # the most of an engine's KV cache that was in use
    kv_at_once: int  # requests that the engine saw meanwhile
    places: int  # that it has: with fewer at once it was the KV cache that bound
    preemptions: int
    told: Sequence[Told]


def judge_limits(facts: Limits) -> list[Figure]:
    """No engine saw more than its limit, and the limits were reached."""
    most = max(facts.most.values(), default=0)
    kept = 0 < facts.kv_share <= 1 and facts.preemptions == 0 and facts.kv_at_once < facts.places
    return [
        Figure(
            "requests at once that the fullest engine saw", most, f"{facts.limit}, the limit", most == facts.limit
        ),
        Figure(
            "KV cache that the fullest engine used, share", round(facts.kv_share, 3),
            "<= 1, before its places ran out" if facts.kv_at_once < facts.places else
            f"<= 1, and fewer than its {facts.places} places taken by it: {facts.kv_at_once}",
            kept,
        ),
        none_of("requests that engines had to preempt for want of KV cache", facts.preemptions),
        none_of("requests of these floods that were not answered", failed(facts.told)),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pools:
    """Short and long requests at an idle fleet."""

    short: Sequence[Told]
    long: Sequence[Told]
    pool_of: Mapping[str, str]  # by worker


def judge_pools(facts: Pools) -> list[Figure]:
    """Each kind was at home: in the pool that the gateway named, at a worker that belongs to it."""

    def at_home(told: Sequence[Told], pool: str) -> int:
        return sum(
            one.fate is Fate.ANSWERED and one.pool == pool == facts.pool_of.get(one.worker) for one in told
        )  # fmt: skip

    return [
        every("short requests that went to the short pool", at_home(facts.short, "short-chat"), len(facts.short)),
        every("long requests that went to the long pool", at_home(facts.long, "long-context"), len(facts.long)),
    ]


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams, as the engine wrote them and as clients read them."""

    told: Sequence[Told]
    sent: Sequence[bytes]  # bodies that left the engine


def judge_streams(facts: Streams) -> list[Figure]:
    """Each client read exactly the bytes of one answer, each answer was read by one client, and all ended in [DONE]."""
    left = Counter(facts.sent)
    same = 0
    for one in facts.told:
        if left[one.body] > 0:
            left[one.body] -= 1
            same += 1
    done = sum(one.fate is Fate.ANSWERED and one.body.endswith(b"data: [DONE]\n\n") for one in facts.told)
    return [
        every("streams that arrived byte for byte as the engine sent them", same, len(facts.told)),
        every("streams that ended with [DONE]", done, len(facts.told)),
    ]


# -- order and time ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """Who of those that waited was begun with first; 'interactive' and 'batch' in the order of their first bytes."""

    begun: Sequence[str]
    told: Sequence[Told]


def judge_order(facts: Order) -> list[Figure]:
    """No batch request was begun while interactive ones waited, but for one that its floor may have let in."""
    high = [at for at, name in enumerate(facts.begun) if name == "interactive"]
    before = sum(name == "batch" for name in facts.begun[: high[-1]]) if high else len(facts.begun)
    behind = facts.begun.count("batch") - before if high else 0
    return [
        Figure(
            "batch requests begun before the last interactive one", before, "<= 1, its floor's",
            before <= 1 and behind > 0,
        ),
        none_of("requests of these classes that were not answered", failed(facts.told)),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Requests that cannot be served in time, each beside the wait that it was promised, in seconds."""

    deadline: Sequence[tuple[Told, float]]  # a time of their own
    queued: Sequence[tuple[Told, float]]  # their class's longest wait
    own_late_s: float  # how late this process came to its own timer meanwhile


def judge_deadlines(facts: Deadlines) -> list[Figure]:
    """Each is told so, with the right code, in time."""
    late = [told.ended_s - told.sent_s - wanted for told, wanted in (*facts.deadline, *facts.queued)]
    most = PROMISED_FREE_S + facts.own_late_s
    worst = max(late, default=0.0)

    def as_promised(found: Sequence[tuple[Told, float]], status: int, code: str) -> int:
        return sum((told.status, told.code) == (status, code) for told, _ in found)

    return [
        every(
            "requests over their own time that got 504 deadline_exceeded",
            as_promised(facts.deadline, 504, "deadline_exceeded"), len(facts.deadline),
        ),
        every(
            "requests over their class's wait that got 429 queue_timeout",
            as_promised(facts.queued, 429, "queue_timeout"), len(facts.queued),
        ),
        Figure(
            "seconds that the latest of them was told too late", round(worst, 3),
            f"<= {most:.3g}: 0.1, and what this machine's own timers are late", bool(late) and worst <= most,
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Departures:
    """How long places stayed taken after their clients had left; seconds."""

    through: Sequence[float]  # by the gateway
    alone: Sequence[float]  # of the same engine, asked without it
    waiting: Sequence[float]  # in the queue
    kept: float  # held at rest


def judge_departures(facts: Departures) -> list[Figure]:
    """A place is free at once: what the engine alone takes, and 0.1 s.

    The median counts: a processor that is taken away for a moment delays one of them, a gateway that waits all.
    """
    alone = median(facts.alone) if facts.alone else 0.0
    most = PROMISED_FREE_S + alone
    target = f"<= {most:.3g}: 0.1, and what this machine takes without a gateway"
    figures = []
    for name, times in (("running", facts.through), ("waiting", facts.waiting)):
        middle = median(times) if times else 0.0
        figures.append(
            Figure(
                f"seconds until a place is free after its client left, {name}, median", round(middle, 4), target,
                bool(times) and bool(facts.alone) and middle <= most,
            )
        )  # fmt: skip
    return [*figures, none_of("requests and work still held for clients that left", facts.kept)]
