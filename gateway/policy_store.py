"""The policy in use: one numbered revision and its compiled classifier, swapped whole.

One rule of precedence: the file seeds, the API overrides, and a file whose meaning changes after it was taken over is
a change like any other (`policy_seed.py`). What the file says and what is in use is shown side by side; `export`
writes back.

The life of a change: decode, compare with the revision that its author has seen, guard rails, compare-and-set in
Redis where there is one, the journal on disk, one swap. Until the swap nothing has changed; a document that cannot be
used never gets that far. A request reads `current` once and keeps it to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.policy_draft import Applied, ConflictError, Draft, GuardError, StoreDownError
from gateway.policy_journal import Journal
from gateway.policy_seed import OnReject, Seed
from gateway.policy_shared import POLL_S, Replica, SharedPolicy, Swap
from policies.classify import Classifier
from policies.document import Policy
from policies.guards import FleetFacts, guards
from policies.revisions import (
    History,
    Revision,
    digest,
    first_revision,
    from_record,
    matches,
    next_revision,
    to_record,
)

LAG_S = 10.0
"""A replica that has been behind for longer says so in /readyz; it goes on serving."""

IN_STEP_S = 3.0
"""How long the last answer of Redis counts: shorter silences are a lost poll or two."""

MAX_TOLD_CHARS = 300

ANY_TRIES = 5
"""How often a change of whatever is current is held against a revision that another replica has just made."""


@dataclass(frozen=True, slots=True)
class Current:
    """One revision and what is compiled from it. A request reads it once and keeps it to its end."""

    revision: Revision
    classifier: Classifier

    @property
    def policy(self) -> Policy:
        """The document."""
        return self.revision.policy


class PolicyStore:
    """Holds the current revision; `on_adopt` is told of every new one after it has become current.

    `facts` says what guard rails protect. Without a journal nothing is kept; without `shared` this gateway is alone.
    Raises `PolicyError` for a file that cannot be used, `OSError` for a journal that cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        on_adopt: Callable[[Current], None],
        now: Callable[[], float] = time.time,
        *,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
        shared: SharedPolicy | None = None,
        facts: Callable[[], FleetFacts] = FleetFacts,
        on_reject: OnReject = lambda why, problems: None,
    ) -> None:
        self._on_adopt = on_adopt
        self._now = now
        self._clock = clock
        self._journal = journal
        self._shared = shared
        self._facts = facts
        self._lock = asyncio.Lock()
        self._in_step = clock()  # when this replica last knew that it has what Redis has
        self.seed = Seed(path, on_reject) if path is not None else None
        """The policy file, where there is one."""
        self.replicas: tuple[Replica, ...] = ()
        """The other replicas, as they were at the last look."""
        self.refused_remote: str | None = None
        """Why the fleet's revision cannot be used here; None when it can."""
        self.journal_error: str | None = None
        """Why the last revision is not on disk; None while it is, or nothing is to be kept."""
        self.history = journal.read() if journal is not None else History()
        self._on_disk = next((kept.record["chain"] for kept in reversed(self.history)), "")
        self.taken = ""
        """Digest of the file's document when it was last taken over."""
        self._current = _compiled(self._first())
        self.taken = self._current.revision.seed
        self.history.add(to_record(self._current.revision))

    # -- reading ---------------------------------------------------------------------------------------------------

    def current(self) -> Current:
        """What holds now."""
        return self._current

    @property
    def shares(self) -> bool:
        """Whether there may be other replicas."""
        return self._shared is not None

    @property
    def replica(self) -> str:
        """Our name among the replicas."""
        return self._shared.replica if self._shared is not None else "local"

    @property
    def drift(self) -> bool:
        """Whether the file says something else than what is in use."""
        return self.seed is not None and self.seed.digest != self._current.revision.digest

    def lag_s(self) -> float:
        """For how long this replica has not known that it is up to date; 0 while it is."""
        behind = self._clock() - self._in_step
        return behind if self._shared is not None and behind > IN_STEP_S else 0.0

    def revision(self, number: int) -> Revision | None:
        """A revision of the history; None where it is not kept. Raises `PolicyError` where it cannot be read today."""
        kept = self.history.find(number)
        return None if kept is None else from_record(kept.whole())

    # -- start -----------------------------------------------------------------------------------------------------

    def _first(self) -> Revision:
        last, seed = self._last_kept(), self.seed
        if last is None:
            if seed is None:
                return first_revision(Policy(), "{}\n", self._now(), "default")
            return first_revision(seed.draft.policy, seed.draft.text, self._now())
        if seed is None or seed.digest in {last.seed, last.digest}:
            return last
        return self._after(last, seed.draft)

    def _last_kept(self) -> Revision | None:
        """The newest revision on disk that can be used."""
        for kept in reversed(self.history):
            try:
                return from_record(kept.whole())
            except ValueError:
                continue  # of a newer version of this program
        return None

    async def start(self) -> None:
        """Agree with the other replicas, and have on disk what holds."""
        async with self._lock:
            if self._shared is not None:
                await self._learn(await self._shared.history())
                await self._sync()
            await self._keep(self._current.revision)
        held, seed = self._current.revision, self.seed
        if seed is not None and seed.digest not in {held.seed, held.digest}:
            try:
                await seed.take(seed.draft, self)
            except (ConflictError, StoreDownError):
                return  # what holds for the others holds here; that the file says otherwise is shown

    async def _learn(self, records: list[Mapping[str, Any]]) -> None:
        """Take over what the others remember, where that is newer than what we do."""
        numbers = [record.get("number") for record in records]
        newest = numbers[-1] if numbers else None
        if not isinstance(newest, int) or newest < self._current.revision.number:
            return
        for record in records:
            try:
                self.history.add(record)
            except ValueError:
                continue  # nothing in Redis is trusted

    # -- changing --------------------------------------------------------------------------------------------------

    async def apply(self, draft: Draft, expected: str, *, force: bool = False) -> Applied:
        """Make a document current if `expected` (an etag, a number, or `*`) still is.

        Raises `ConflictError`, `GuardError` or `StoreDownError`, and then nothing has changed.
        """
        async with self._lock:
            if self._shared is not None and not matches(self._current.revision, expected):
                await self._sync()  # its author may have seen at another replica what has not come here yet
            for _ in range(ANY_TRIES - 1):
                try:
                    return await self._apply(draft, expected, force)
                except ConflictError:
                    # Who says "whatever is current" has been told by no replica that this is not.
                    if expected != "*":
                        raise
            return await self._apply(draft, expected, force)

    async def _apply(self, draft: Draft, expected: str, force: bool) -> Applied:
        held = self._current.revision
        if not matches(held, expected):
            raise ConflictError(held)
        meaning = digest(draft.policy)
        if meaning == held.digest:
            if draft.source == "file":
                self.taken = meaning
            return Applied(False, held, held)
        found = await asyncio.to_thread(guards, held.policy, draft.policy, self._facts())
        if found and not force:
            raise GuardError(found)
        new = self._after(held, draft)
        await self._swap(held, new)
        await self._become(new)
        return Applied(True, held, new, found)

    async def _swap(self, held: Revision, new: Revision) -> None:
        """The compare-and-set among the replicas."""
        if self._shared is None:
            return
        swapped = await self._shared.swap(held, new)
        if swapped is Swap.DOWN:
            raise StoreDownError("Redis does not answer: a change of this replica alone would set the replicas apart")
        if swapped is Swap.CONFLICT:
            await self._sync()
            raise ConflictError(self._current.revision)

    def _after(self, held: Revision, draft: Draft) -> Revision:
        return next_revision(
            held,
            draft.policy,
            draft.text,
            draft.author,
            draft.note,
            self._now(),
            source=draft.source,
            seed=digest(draft.policy) if draft.source == "file" else self.taken or held.seed,
            reverts=draft.reverts,
        )

    async def _become(self, new: Revision) -> None:
        """Keep it, then swap."""
        current = await asyncio.to_thread(_compiled, new)
        self.history.add(to_record(new))
        await self._keep(new)
        self._current = current
        self.taken = new.seed
        self._in_step = self._clock()
        self._on_adopt(current)

    async def _keep(self, revision: Revision) -> None:
        """Have it on disk. A disk that is full must not keep the fleet from changing: it is said, and shown."""
        if self._on_disk != revision.chain:
            await self._write(to_record(revision))

    async def _write(self, record: Mapping[str, Any]) -> None:
        if self._journal is None:
            return
        try:
            await asyncio.to_thread(self._journal.append, record, self.history)
        except OSError as error:
            self.journal_error = f"{self._journal.path}: {error.strerror or error}"
        else:
            self._on_disk, self.journal_error = record["chain"], None

    # -- sources ---------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Take the file over whenever its meaning changes; for ever."""
        if self.seed is not None:
            await self.seed.watch(self, self._clock)

    async def reload(self) -> bool:
        """Read the file again now; True when that brought a new revision. Why not is in `seed.rejected`."""
        return self.seed is not None and await self.seed.reload(self)

    async def follow(self) -> None:
        """Follow the other replicas; for ever."""
        while self._shared is not None:
            await asyncio.sleep(POLL_S)
            await self.sync()

    async def sync(self) -> None:
        """Ask Redis once: take a newer revision over, offer ours where there is none, tell what we use."""
        if self._shared is not None:
            async with self._lock:
                await self._sync()

    async def leave(self) -> None:
        """This gateway stops."""
        if self._shared is not None:
            await self._shared.leave()

    async def _sync(self) -> None:
        assert self._shared is not None
        held = self._current.revision
        found = await self._shared.ask(held, self.refused_remote)
        if found is None:
            return
        self.replicas = found.replicas
        if found.chain == held.chain:
            self.refused_remote = None
            self._in_step = self._clock()
            return
        if not found.chain:
            await self._shared.offer(held)
            return
        try:
            stored = await asyncio.to_thread(_from_wire, found.record)
        except ValueError as error:
            # Of a newer version of this program, or somebody else's. PolicyError is one.
            self.refused_remote = str(error)[:MAX_TOLD_CHARS]
            return
        self.refused_remote = None
        if stored.number < held.number:
            await self._shared.offer(held)
        else:
            if stored.number > held.number + 1:
                await self._fill(held.number, stored.number)
            await self._become(stored)

    async def _fill(self, after: int, before: int) -> None:
        """Take over what came between our revision and the one that holds, for the history: several changes may come
        between two looks."""
        assert self._shared is not None
        for record in await self._shared.history():
            number = record.get("number")
            if not isinstance(number, int) or not after < number < before:
                continue
            try:
                self.history.add(record)
            except ValueError:
                continue  # nothing in Redis is trusted
            await self._write(record)


def _from_wire(record: bytes) -> Revision:
    found = orjson.loads(record)
    if not isinstance(found, dict):
        raise ValueError("not the record of a revision")
    return from_record(found)


def _compiled(revision: Revision) -> Current:
    return Current(revision, Classifier(revision.policy))
