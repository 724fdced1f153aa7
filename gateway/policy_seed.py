"""The policy file as a source of revisions: it seeds the first one, and every later change of its meaning is a change
of the policy, unless guard rails or faults stand against it. What it says and what is in use may then differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.policy_draft import ConflictError, Draft, GuardError, StoreDownError
from gateway.policy_file import POLL_S, PolicyFile
from policies.document import parse_policy
from policies.problems import PolicyError
from policies.revisions import digest

if TYPE_CHECKING:
    from gateway.policy_store import PolicyStore

INVALID = "policy_rejected"
GUARDED = "policy_guard"

OnReject = Callable[[str, list[str]], None]
"""Hears of every content of the file that is refused: `INVALID` or `GUARDED`, and why in lines."""


class Seed:
    """The file at `path`, read once when this is made. Raises `PolicyError` for a file that cannot be used: nothing
    runs yet that refusing it could break."""

    def __init__(self, path: Path, on_reject: OnReject) -> None:
        self.file = PolicyFile(path)
        self._on_reject = on_reject
        self.digest = ""
        """Of the last document in the file that could be read."""
        self.rejected: str | None = None
        """Why what the file says now was not taken over; None when it was."""
        self.rejections = 0
        """Contents of the file that were refused since the start."""
        self._why = ""
        raw = self.file.read()
        self.draft = self._draft(raw, "")
        self.file.notice(raw)

    @property
    def guarded(self) -> bool:
        """Whether only guard rails stand against the file: it may be applied by force."""
        return self.rejected is not None and self._why == GUARDED

    def _draft(self, raw: bytes, note: str) -> Draft:
        policy = parse_policy(raw)
        self.digest = digest(policy)
        return Draft(policy, raw.decode("utf-8-sig", "replace"), "file", note, "file")

    async def watch(self, store: PolicyStore, clock: Callable[[], float]) -> None:
        """Offer the file whenever it has changed; for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            raw = await asyncio.to_thread(self.file.changed, clock())
            if raw is not None:
                await self.offer(raw, store)

    async def reload(self, store: PolicyStore) -> bool:
        """Read the file now, settled or not; True when that brought a new revision."""
        try:
            raw = await asyncio.to_thread(self.file.read)
        except PolicyError as error:
            self._refuse(INVALID, [str(error)])
            return False
        return await self.offer(raw, store)

    async def offer(self, raw: bytes, store: PolicyStore) -> bool:
        """The file has this content; True when that brought a new revision."""
        try:
            draft = await asyncio.to_thread(self._draft, raw, "the file changed")
        except PolicyError as error:
            self.file.notice(raw)
            self._refuse(INVALID, [str(problem) for problem in error.problems])
            return False
        self.rejected = None
        changed = False
        # What was taken over before, said again: a change that the API has made since then still holds.
        if self.digest != store.taken:
            try:
                changed = await self.take(draft, store)
            except (ConflictError, StoreDownError):
                return False  # not noticed, so it is offered again with the next look
        self.file.notice(raw)
        return changed

    async def take(self, draft: Draft, store: PolicyStore) -> bool:
        """Make what the file says current. Raises `ConflictError` and `StoreDownError`: try again later."""
        try:
            applied = await store.apply(draft, "*")
        except GuardError as error:
            self._refuse(GUARDED, [str(guard) for guard in error.guards])
            return False
        self.rejected = None
        return applied.changed

    def _refuse(self, why: str, problems: list[str]) -> None:
        told = "\n".join(problems)
        if told != self.rejected:
            self.rejections += 1
            self._on_reject(why, problems)
        self.rejected, self._why = told, why
