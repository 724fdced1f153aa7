"""What was seen of a gateway that is changed, misused, or loses something: facts in, figures out. Pure.

As in `verify_judge.py`, a situation that did not come about makes a figure fall short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadtest.verify_client import Fate, Told
from loadtest.verify_figures import Figure, every, failed, none_of

RETRY_AFTER: Final = range(1, 61)  # seconds

# -- changes while traffic flows --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """Something that must be refused: what it is, what came back (status, code), what should have."""

    name: str
    got: tuple[int, str]
    wanted: tuple[int, str]  # without a code: any will do

    @property
    def right(self) -> bool:
        """Whether it came back as it should."""
        return self.got == self.wanted if self.wanted[1] else self.got[0] == self.wanted[0]

    def __str__(self) -> str:
        got, wanted = (" ".join(map(str, filter(None, pair))) or "nothing" for pair in (self.got, self.wanted))
        return f"{self.name}: got {got}, wanted {wanted}"


def all_right(name: str, asked: Sequence[Asked]) -> Figure:
    """All of these came back as they should."""
    return every(name, sum(one.right for one in asked), len(asked), [str(one) for one in asked if not one.right])


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """A policy that sends chat to another pool, applied under load."""

    before: int  # revisions
    after: int
    pool: str
    applied_s: float
    told: Sequence[Told]


def judge_live_policy(facts: LivePolicy) -> list[Figure]:
    """Nobody noticed but by where new requests go; each request was decided by one of the two revisions."""
    later = [one for one in facts.told if one.sent_s > facts.applied_s]
    earlier = [one for one in facts.told if one.ended_s < facts.applied_s]
    known = sum(one.revision in (facts.before, facts.after) for one in facts.told)
    new = sum(one.revision == facts.after and one.pool == facts.pool for one in later)
    old = sum(one.revision == facts.before for one in earlier)
    return [
        none_of("requests that a policy change under load cost", failed(facts.told)),
        every("requests sent after it that it decided", new, len(later)),
        every("requests answered before it that the old one decided", old, len(earlier)),
        every("requests that carry one of the two revisions", known, len(facts.told)),
    ]


@dataclass(frozen=True, slots=True)
class BadPolicy:
    """Documents that must be refused: what each is, what came, what should have."""

    tried: Sequence[Asked]
    placed: int  # of the faulty ones whose answer names the place of the fault
    faulty: int
    before: Any  # the policy and its revision
    after: Any
    told: Sequence[Told]


def judge_bad_policy(facts: BadPolicy) -> list[Figure]:
    """All refused as they should be, and nothing has changed."""
    return [
        all_right("policies with faults, or too late, that were refused as they must be", facts.tried),
        every("refusals that name the place of the fault", facts.placed, facts.faulty),
        none_of("values of the policy that they changed", differences(facts.before, facts.after)),
        none_of("requests that they cost", failed(facts.told) if facts.told else 1),
    ]


def differences(one: Any, other: Any) -> int:
    """Leaves in which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return sum(differences(one.get(name), other.get(name)) for name in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return sum(map(differences, one, other))
    return int(one != other)


@dataclass(frozen=True, slots=True)
class Drained:
    """A worker drained under load, and let in again."""

    told: Sequence[Told]
    before: int  # requests that it had taken up when it was drained
    leases: float  # of it, when it was given up waiting for 0
    taken_up: int  # by it between its last one's end and its return
    others: int  # requests answered by others meanwhile
    again: int  # taken up after its return


def judge_drained(facts: Drained) -> list[Figure]:
    """Nothing lost, nothing left, nothing new; and work again afterwards."""
    met = facts.before > 0 and facts.others > 0
    return [
        none_of("requests that draining a worker under load cost", failed(facts.told) if facts.told else 1),
        Figure("requests running on the drained worker in the end", facts.leases, "0", facts.leases == 0 and met),
        Figure(
            "requests that it took up while drained", facts.taken_up, "0, and others at least 1",
            facts.taken_up == 0 and met,
        ),
        Figure("requests that it took up after it was let in again", facts.again, ">= 1", facts.again >= 1),
    ]  # fmt: skip


# -- refusals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Full:
    """A queue filled to its end and over."""

    told: Sequence[Told]
    room: int  # places and queue together
    later: Told  # sent when all of them had ended


def judge_full(facts: Full) -> list[Figure]:
    """Those beyond the queue are told when to come again; those in it are answered, and so is who comes later."""
    refused = [one for one in facts.told if one.fate is Fate.REFUSED]

    def advised(one: Told) -> bool:
        after = one.headers.get("retry-after", "")
        when = after.isdecimal() and int(after) in RETRY_AFTER
        return (one.status, one.code) == (429, "queue_full") and when and "x-should-retry" in one.headers

    beyond = max(0, len(facts.told) - facts.room)
    answered = sum(one.fate is Fate.ANSWERED for one in facts.told)
    return [
        every("requests beyond the queue that got 429 queue_full and Retry-After", sum(map(advised, refused)), beyond),
        every("requests that found room and were answered", answered, len(facts.told) - beyond),
        every("requests answered after the queue was full", int(facts.later.fate is Fate.ANSWERED), 1),
    ]


@dataclass(frozen=True, slots=True)
class BadInput:
    """Requests that must be refused before any engine hears of them."""

    asked: Sequence[Asked]
    generations: int  # engines' requests meanwhile
    good: Told  # sent afterwards


def judge_bad_input(facts: BadInput) -> list[Figure]:
    """Each with its status and code."""
    return [
        all_right("bad requests that got the status and code for it", facts.asked),
        none_of("bad requests that reached an engine", facts.generations),
        every("good requests answered after them", int(facts.good.fate is Fate.ANSWERED), 1),
    ]


@dataclass(frozen=True, slots=True)
class Doors:
    """Paths and calls that must be closed to those who may not use them."""

    paths: Sequence[Asked]  # of engines and of the admin plane, on the data listener
    changes: Sequence[Asked]  # of the admin plane, without a token
    engine_requests: int  # that came through


def judge_doors(facts: Doors) -> list[Figure]:
    """All closed."""
    return [
        all_right("paths of engines and operators closed to clients", facts.paths),
        all_right("changes refused without an admin token", facts.changes),
        none_of("of these requests that reached an engine", facts.engine_requests),
    ]


@dataclass(frozen=True, slots=True)
class Keys:
    """Requests with and without a key, where a key exists."""

    without: Sequence[tuple[int, str]]  # status and code of those without, with a wrong one, with a revoked one
    right: Told
    tenant_kept: bool  # a header that names another tenant changed nothing
    generations: int  # that those without caused


def judge_keys(facts: Keys) -> list[Figure]:
    """Only who has the key is served."""
    refused = sum(got == (401, "invalid_api_key") for got in facts.without)
    return [
        every("requests without a valid key that got 401 invalid_api_key", refused, len(facts.without)),
        none_of("of these that reached an engine", facts.generations),
        every("requests with the key that were answered", int(facts.right.fate is Fate.ANSWERED), 1),
        every("requests accounted to the key's tenant, whatever their headers say", int(facts.tenant_kept), 1),
    ]


# -- what dies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineLoss:
    """An engine killed while it works."""

    begun: Sequence[Told]  # at it, answering already
    unbegun: int  # requests at it that it had not begun to answer
    second: Sequence[Told]  # those among which they were
    others: Sequence[Told]  # begun at other engines
    lost_worker: str
    later: Sequence[Told] = field(default_factory=tuple)  # sent afterwards


def judge_engine_loss(facts: EngineLoss) -> list[Figure]:
    """Who had nothing yet is served elsewhere; who had something is told that it ends here."""
    retried = sum(
        one.fate is Fate.ANSWERED and one.worker != facts.lost_worker and one.attempts >= 2 for one in facts.second
    )
    told = sum(one.fate is Fate.TOLD and one.code == "upstream_reset" for one in facts.begun)
    rest = failed(facts.others) + failed(facts.second)
    return [
        every("requests not begun at an engine that died, answered by another", retried, facts.unbegun),
        every("streams that it had begun, ended by an error event and no [DONE]", told, len(facts.begun)),
        none_of("further requests that its death cost", rest if facts.others else 1),
        none_of("requests sent afterwards that it cost", failed(facts.later) if facts.later else 1),
    ]


@dataclass(frozen=True, slots=True)
class RedisLoss:
    """The Valkey killed under load."""

    before: Sequence[Told]
    after: Sequence[Told]  # sent once it was gone
    noticed: bool  # the gateway said so
    back: bool  # and that it is there again


def judge_redis_loss(facts: RedisLoss) -> list[Figure]:
    """No request noticed."""
    sent = (*facts.before, *facts.after)
    return [
        none_of("requests that the loss of Valkey cost", failed(sent) if facts.after and facts.noticed else 1),
        every("times that the gateway noticed its loss and its return", facts.noticed + facts.back, 2),
    ]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A gateway told to stop under load."""

    told: Sequence[Told]  # accepted before it was told
    later: Sequence[Told]  # tried afterwards
    status: int | None  # exit; None: it did not end
    running: int  # requests when it was told
    unready: bool  # /readyz said so at once


def judge_stopped(facts: Stopped) -> list[Figure]:
    """Everyone who was in is served, who comes later is turned away, and it ends well."""
    turned_away = sum(
        one.status in (0, 503) or one.fate is Fate.ANSWERED for one in facts.later
    )  # the listener closes a moment later: who still gets in is served
    return [
        Figure(
            "accepted requests that a stop of the gateway cost", failed(facts.told), "0, of at least 1 running",
            failed(facts.told) == 0 and facts.running > 0,
        ),
        every("requests after it that were served, or told to go elsewhere", turned_away, len(facts.later)),
        every("times that /readyz said at once that it stops", int(facts.unready), 1),
        Figure("exit status of the gateway", -1 if facts.status is None else facts.status, "0", facts.status == 0),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replicas:
    """Two gateway processes before one engine."""

    limit: int
    most: int  # requests at once that the engine saw
    processes: int
    told: Sequence[Told]


def judge_replicas(facts: Replicas) -> list[Figure]:
    """Together they send an engine no more than one may."""
    return [
        Figure(
            "requests at once that an engine saw of two gateways", facts.most, f"{facts.limit}, the limit",
            facts.most == facts.limit,
        ),
        Figure("gateways that shared it", facts.processes, "2", facts.processes == 2),
        none_of("requests sent through both that were not answered", failed(facts.told) if facts.told else 1),
    ]  # fmt: skip
