"""The policy in use: one numbered revision and its compiled classifier, swapped whole.

A document that cannot be used changes nothing: the last good revision stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policies.classify import Classifier
from policies.document import Policy, parse_policy
from policies.problems import PolicyError, Problem
from policies.revisions import Revision, digest, first_revision, next_revision
from policies.yamltree import MAX_BYTES


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
    """Holds the current revision; `on_adopt` is told of every new one after it has become current."""

    def __init__(
        self, path: Path | None, on_adopt: Callable[[Current], None], now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._on_adopt = on_adopt
        self._now = now
        self.rejected: str | None = None
        """Why the file was refused last time; None when what it says is in use."""
        policy, text = self._read()
        self._current = _compiled(first_revision(policy, text, now(), "file" if path else "default"))

    def current(self) -> Current:
        """What holds now."""
        return self._current

    def reload(self) -> bool:
        """Read the file again; True when that brought a new revision. Raises `PolicyError`, then nothing changed."""
        try:
            policy, text = self._read()
        except PolicyError as error:
            self.rejected = str(error)
            raise
        self.rejected = None
        if digest(policy) == self._current.revision.digest:
            return False
        self._current = _compiled(
            next_revision(self._current.revision, policy, text, "file", "read again", self._now())
        )
        self._on_adopt(self._current)
        return True

    def _read(self) -> tuple[Policy, str]:
        if self._path is None:
            return Policy(), "{}\n"
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)  # one more than allowed, so that the parser says so
        except OSError as error:
            raise PolicyError(
                [Problem("", f"cannot read policy file {self._path}: {error.strerror or error}")]
            ) from error
        return parse_policy(raw), raw.decode("utf-8", "replace")


def _compiled(revision: Revision) -> Current:
    return Current(revision, Classifier(revision.policy))
