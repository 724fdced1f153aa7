"""The words of the lease protocol: what a gateway says in a step, and what it hears."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HOLD_S: Final = 20.0
"""After so long without renewal (by the holder's clock) a gateway starts nothing above its reserve."""

EXPIRE_S: Final = 28.0
"""After so long (by the store's clock) the store looks for what of a silent gateway's slots is free."""

LOW_S: Final = 20.0
"""Over how long the least in flight is told: as old as an engine's count may be, clocks that differ included."""

CLEAR: Final = 1000
"""A class below all others: whose queue is empty."""

MAX_PLACES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What a gateway's scheduler says about one worker.

    `limit`: places the worker has by policy and engine. `used`: places taken here. `need`: tickets that wait for a
    place there and could go if there were one; `klass`: the highest class among them. `running`: what the engine
    itself counts, if it said so just now. `low`: least places taken here in the last `LOW_S`.
    """

    limit: int
    used: int = 0
    need: int = 0
    klass: int = CLEAR
    running: int | None = None
    low: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """One resource in a step; see `lease.lua`. `limit` -1: nothing is wanted there any more."""

    name: str
    held: int
    keep: int
    reserve: int
    limit: int
    need: int
    klass: int
    wish: int
    low: int
    running: int

    def wire(self) -> list[str | int]:
        """As the script reads it."""
        return [
            self.name, self.held, self.keep, self.reserve, self.limit,
            self.need, self.klass, self.wish, self.low, self.running,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """What a gateway says. `full`: it names everything it holds."""

    id: str
    seq: int
    epoch: int
    who: str
    sent: float  # by the holder's clock; not sent
    full: bool = False
    fresh: bool = False
    leave: bool = False
    claims: tuple[Claim, ...] = ()
    peers: tuple[tuple[str, str], ...] = ()
    dead: tuple[tuple[str, str], ...] = ()
    alive: tuple[str, ...] = ()
    ledger: str | None = None

    def wire(self) -> dict[str, object]:
        """As the script reads it."""
        return {
            "id": self.id,
            "seq": self.seq,
            "epoch": self.epoch,
            "who": self.who,
            "full": self.full,
            "fresh": self.fresh,
            "leave": self.leave,
            "claims": [claim.wire() for claim in self.claims],
            "peers": self.peers,
            "dead": self.dead,
            "alive": self.alive,
            "ledger": self.ledger or False,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store says about one resource: own slots, the limit, what others hold, and what they need.

    `poor`: slots that others need and that are theirs by equal shares. `needs`: (class, count) of others.
    """

    held: int
    limit: int
    others: int
    poor: int
    needs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer to a step. `refused`: why nothing was done (announce, stale, crowded), or empty."""

    epoch: int
    refused: str = ""
    open: bool = False  # whether slots are granted in this epoch
    live: int = 1
    peers: dict[str, tuple[str, float]] = field(default_factory=dict)  # id -> who it is, seconds of silence
    slots: dict[str, Standing] = field(default_factory=dict)
    ledgers: dict[str, tuple[float, str]] = field(default_factory=dict)  # id -> age in seconds, text


class BadAnswer(ValueError):  # noqa: N818 - the answer is bad
    """The store's answer is not what the script says."""


def read_heard(value: object) -> Heard:
    """An answer as decoded from JSON, every part checked. Raises `BadAnswer`: what is in Redis is not trusted."""
    document = _mapping(value, "answer")
    epoch = _whole(document.get("epoch"), "epoch", 2**52)
    refused = next((word for word in ("announce", "stale", "crowded", "left") if word in document), "")
    if refused:
        return Heard(epoch, refused)
    peers = {}
    for name, entry in _mapping(document.get("peers"), "peers").items():
        who, age = _list(entry, 2, name)
        peers[name] = (who if isinstance(who, str) else "", _whole(age, name, 2**52) / 1000)
    slots = {}
    for name, entry in _mapping(document.get("slots"), "slots").items():
        held, limit, others, poor, needs = _list(entry, 5, name)
        own, most, theirs, owed = (_whole(each, name, 2**40) for each in (held, limit, others, poor))
        wants = tuple(sorted((_klass(k, name), _whole(n, name, 2**40)) for k, n in _mapping(needs, name).items()))
        slots[name] = Standing(own, most, theirs, owed, wants)
    ledgers = {}
    for name, entry in _mapping(document.get("ledgers"), "ledgers").items():
        age, text = _list(entry, 2, name)
        if isinstance(text, str):
            ledgers[name] = (_whole(age, name, 2**52) / 1000, text)
    live = _whole(document.get("live"), "live", 2**20)
    return Heard(epoch, "", document.get("open") is True, max(live, 1), peers, slots, ledgers)


def _mapping(value: object, name: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    if value == []:  # an empty table, as some JSON writers of Lua have it
        return {}
    raise BadAnswer(f"{name} is {type(value).__name__}, not an object")


def _list(value: object, length: int, name: str) -> list[object]:
    if isinstance(value, list) and len(value) == length:
        return value
    raise BadAnswer(f"{name} is not a list of {length}")


def _klass(value: str, name: str) -> int:
    if value.isascii() and value.isdigit() and len(value) <= 4:
        return _whole(int(value), name, CLEAR)
    raise BadAnswer(f"{name} is needed for class {value!r:.80}, which is no number")


def _whole(value: object, name: str, most: int) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most and value == int(value):
        return int(value)
    raise BadAnswer(f"{name} is {value!r:.80}, not a whole number up to {most}")
