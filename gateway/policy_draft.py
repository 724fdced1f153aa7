"""What goes into the policy store and what comes out: a wanted document, what became of it, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from policies.document import Policy
from policies.guards import Guard
from policies.revisions import Revision


@dataclass(frozen=True, slots=True)
class Draft:
    """A document that somebody wants to be current."""

    policy: Policy
    text: str
    author: str
    note: str = ""
    source: str = "api"
    reverts: int | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it. `changed` is False for a document that means what is in use already."""

    changed: bool
    before: Revision
    revision: Revision
    guards: tuple[Guard, ...] = ()  # that were broken on purpose


class ConflictError(Exception):
    """Somebody else was faster: `current` is what holds."""

    def __init__(self, current: Revision) -> None:
        super().__init__(f"revision {current.etag} is current")
        self.current = current


class GuardError(Exception):
    """Guard rails that the change would break, and nobody said that it is meant."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        super().__init__("; ".join(map(str, guards)))
        self.guards = guards


class StoreDownError(Exception):
    """Redis does not answer, and a change of this replica alone would set the replicas apart."""
