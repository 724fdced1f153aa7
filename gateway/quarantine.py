"""Requests that workers die of: when one counts as such, and for how long it is kept from all others.

A body under which connections of two distinct workers were reset is suspect, and its request is not tried a third time.
Only if one of these workers is then found dead is it quarantined: a crash loses innocent requests too, and two crashes
can have the same ones on board. Where more than `MAX_TOGETHER` bodies were on the last two, nothing says which it was.

What other gateways of the fleet saw counts like what was seen here. Pure: time is an argument. Bodies are kept as keyed
hashes only.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

QUARANTINE_S: Final = 600.0  # reliability rules, poison guard
SUSPECT_S: Final = 600.0
TOGETHER_S: Final = 1.0
"""Resets by one worker this close together are one crash."""
MAX_TOGETHER: Final = 8
MAX_KEPT: Final = 1024
"""Bodies kept of each kind, the oldest go first."""
MAX_WORKERS: Final = 8
"""Workers kept of one body, those lost last."""
MARK_BYTES: Final = 24


class Sighting(NamedTuple):
    """A worker that was lost under a body, and when; without a worker: the body has been quarantined since then."""

    mark: bytes
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """Workers that were lost under one body and when each was, the last one last."""

    losses: tuple[tuple[str, float], ...]

    @property
    def workers(self) -> tuple[str, ...]:
        """Without the times."""
        return tuple(worker for worker, _ in self.losses)

    @property
    def at(self) -> float:
        """When the last one was lost."""
        return self.losses[-1][1]


class Quarantine:
    """What is suspect and what is quarantined. `key`: secret, so that nobody can find out bodies by their hash."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.changes = 0  # how often what is kept has changed
        self._suspects: OrderedDict[bytes, Suspect] = OrderedDict()
        self._held: OrderedDict[bytes, float] = OrderedDict()
        self._former_key = b""  # of what was quarantined before the fleet's key was known
        self._former: OrderedDict[bytes, float] = OrderedDict()
        self._sizes: frozenset[int] = frozenset()

    @property
    def active(self) -> bool:
        """Something may be quarantined: `left_s` is worth asking."""
        return bool(self._sizes)  # asked for each request

    def use_key(self, key: bytes) -> None:
        """Hash by the fleet's key from now on. What is quarantined stays so here; suspicions by the other key end."""
        if key != self.key:
            self._former_key, self._former = self.key, self._held
            self.key, self._held = key, OrderedDict()
            self._suspects.clear()
            self._count_sizes()
            self.changes += 1

    def fingerprint(self, body: bytes) -> bytes:
        """What is kept of a body; its size is part of it."""
        return _fingerprint(self.key, body)

    def left_s(self, body: bytes, now: float) -> float:
        """How long a body stays quarantined; 0 where it is not. Bodies of other sizes cost no hash."""
        for held in (self._held, self._former):
            while held and next(iter(held.values())) <= now:
                del held[next(iter(held))]
                self._count_sizes()
        if len(body) not in self._sizes:
            return 0.0
        until = self._held.get(self.fingerprint(body), 0.0)
        if self._former:
            until = max(until, self._former.get(_fingerprint(self._former_key, body), 0.0))
        return max(until - now, 0.0)

    def observe_reset(self, mark: bytes, worker: str, now: float) -> tuple[str, ...]:
        """A worker's connection was reset under this body. All workers where it was so, if this makes it suspect."""
        suspect = self._lose(mark, worker, now, now)
        workers = suspect.workers
        return workers if len(workers) > 1 and self._alone(suspect) else ()

    def convict(self, mark: bytes, now: float) -> bool:
        """One of the workers has not come back: quarantine a suspect body, unless too many others were there too."""
        suspect = self._suspects.get(mark)
        if suspect is None or len(suspect.losses) < 2 or not self._alone(suspect):
            return False
        self._hold(mark, now + QUARANTINE_S)
        return True

    # -- the fleet ------------------------------------------------------------------------------------------------

    def sightings(self) -> list[Sighting]:
        """All that is known, for the others."""
        found = [Sighting(mark, "", until - QUARANTINE_S) for mark, until in self._held.items()]
        for mark, suspect in self._suspects.items():
            found += [Sighting(mark, worker, at) for worker, at in suspect.losses]
        return found

    def hear(self, sightings: Collection[Sighting], now: float) -> tuple[list[bytes], list[bytes]]:
        """Take in what others saw: what is quarantined by that, and what has become suspect by it."""
        held, suspected = [], {}
        for mark, worker, at in sightings:
            until = at + QUARANTINE_S
            if not worker and until > now and mark not in self._held:
                self._hold(mark, until)
                held.append(mark)
        for mark, worker, at in sorted(sightings, key=lambda each: each.at):
            if not worker or mark in self._held or now - at > SUSPECT_S:
                continue
            before = self._suspects.get(mark)
            if before is None or worker not in before.workers:
                suspected[mark] = self._lose(mark, worker, at, now)
        return held, [mark for mark, one in suspected.items() if len(one.losses) > 1 and self._alone(one)]

    def workers_of(self, mark: bytes) -> tuple[str, ...]:
        """Workers that were lost under a suspect body."""
        suspect = self._suspects.get(mark)
        return () if suspect is None else suspect.workers

    # -- both -----------------------------------------------------------------------------------------------------

    def _lose(self, mark: bytes, worker: str, at: float, now: float) -> Suspect:
        """Note that a worker was lost under a body."""
        before = self._suspects.pop(mark, None)
        losses = () if before is None or now - before.at > SUSPECT_S else before.losses
        losses = (*(each for each in losses if each[0] != worker), (worker, at))
        suspect = self._suspects[mark] = Suspect(tuple(sorted(losses, key=_when)[-MAX_WORKERS:]))
        if len(self._suspects) > MAX_KEPT:
            self._suspects.popitem(last=False)
        self.changes += 1
        return suspect

    def _alone(self, suspect: Suspect) -> bool:
        last = suspect.losses[-1][0]
        together = sum(
            len(each.losses) > 1 and each.losses[-1][0] == last and abs(each.at - suspect.at) <= TOGETHER_S
            for each in self._suspects.values()
        )
        return together <= MAX_TOGETHER

    def _hold(self, mark: bytes, until: float) -> None:
        self._suspects.pop(mark, None)
        self._held.pop(mark, None)
        self._held[mark] = until
        if len(self._held) > MAX_KEPT:
            del self._held[next(iter(self._held))]
        self.changes += 1
        self._count_sizes()

    def _count_sizes(self) -> None:
        self._sizes = frozenset(int.from_bytes(mark[:8]) for mark in (*self._held, *self._former))


def _fingerprint(key: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(8) + hmac.digest(key, body, "sha256")[: MARK_BYTES - 8]


def _when(loss: tuple[str, float]) -> float:
    return loss[1]
