"""Requests that workers die of: when one counts as such, and for how long it is kept from all others.

A body under which connections of two distinct workers were reset is suspect, and its request is not tried a third time.
Only if one of these workers is then found dead is it quarantined: a crash loses innocent requests too, and two crashes
can have the same ones on board. Where more than `MAX_TOGETHER` bodies were on the last two, nothing says which it was.

Pure: time is an argument. Bodies are kept as keyed hashes only.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final, NamedTuple

QUARANTINE_S: Final = 600.0  # reliability rules, poison guard
SUSPECT_S: Final = 600.0
TOGETHER_S: Final = 1.0
"""Resets by one worker this close together are one crash."""
MAX_TOGETHER: Final = 8
MAX_KEPT: Final = 1024
"""Bodies kept of each kind, the oldest go first."""


class Suspect(NamedTuple):
    """Workers that were lost under one body, the last one last, and when that was."""

    workers: tuple[str, ...]
    at: float


class Quarantine:
    """What is suspect and what is quarantined. `key`: secret, so that nobody can find out bodies by their hash."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._suspects: OrderedDict[bytes, Suspect] = OrderedDict()
        self._held: OrderedDict[bytes, float] = OrderedDict()
        self._sizes: frozenset[int] = frozenset()

    @property
    def active(self) -> bool:
        """Something may be quarantined: `left_s` is worth asking."""
        return bool(self._held)

    def fingerprint(self, body: bytes) -> bytes:
        """What is kept of a body; its size is part of it."""
        return len(body).to_bytes(8) + hmac.digest(self._key, body, "sha256")[:16]

    def left_s(self, body: bytes, now: float) -> float:
        """How long a body stays quarantined; 0 where it is not. Bodies of other sizes cost no hash."""
        while self._held and next(iter(self._held.values())) <= now:
            self._forget(next(iter(self._held)))
        if len(body) not in self._sizes:
            return 0.0
        until = self._held.get(self.fingerprint(body))
        return 0.0 if until is None else until - now

    def observe_reset(self, mark: bytes, worker: str, now: float) -> tuple[str, ...]:
        """A worker's connection was reset under this body. All workers where it was so, if this makes it suspect."""
        before = self._suspects.pop(mark, None)
        workers = () if before is None or now - before.at > SUSPECT_S else before.workers
        if worker not in workers:
            workers = (*workers, worker)
        suspect = self._suspects[mark] = Suspect(workers, now)
        if len(self._suspects) > MAX_KEPT:
            self._suspects.popitem(last=False)
        return workers if len(workers) > 1 and self._alone(suspect) else ()

    def convict(self, mark: bytes, now: float) -> bool:
        """One of the workers has not come back: quarantine a suspect body, unless too many others were there too."""
        suspect = self._suspects.get(mark)
        if suspect is None or len(suspect.workers) < 2 or not self._alone(suspect):
            return False
        del self._suspects[mark]
        self._held.pop(mark, None)
        self._held[mark] = now + QUARANTINE_S
        if len(self._held) > MAX_KEPT:
            self._forget(next(iter(self._held)))
        self._count_sizes()
        return True

    def _alone(self, suspect: Suspect) -> bool:
        last = suspect.workers[-1]
        together = sum(
            len(each.workers) > 1 and each.workers[-1] == last and abs(each.at - suspect.at) <= TOGETHER_S
            for each in self._suspects.values()
        )
        return together <= MAX_TOGETHER

    def _forget(self, mark: bytes) -> None:
        del self._held[mark]
        self._count_sizes()

    def _count_sizes(self) -> None:
        self._sizes = frozenset(int.from_bytes(mark[:8]) for mark in self._held)
