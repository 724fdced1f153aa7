"""Who hears of leases: classes and no protocols, so that compiled they are called without a look-up by name.

Whoever is not one of them is heard through the same methods by name; tests' own are, and nothing else needs to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.scheduling.model import Lease, Outcome, Refuse


class Owner:
    """What a ticket belongs to: it hears what is decided. Both calls may come before `submit` has returned."""

    __slots__ = ()

    def on_lease(self, lease: Lease) -> None:
        """The request may run on `lease.worker` now; whoever gets this settles the lease, exactly once."""
        raise NotImplementedError

    def on_refused(self, refused: Refuse) -> None:
        """The request ends here, and why."""
        raise NotImplementedError


class Onlooker:
    """Hears of every lease."""

    __slots__ = ()

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease; its owner hears of it next."""
        raise NotImplementedError

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        raise NotImplementedError


class Watch(Protocol):
    """The same for any object."""

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease; its owner hears of it next."""
        ...

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        ...


class ByName(Onlooker):
    """Passes on what it hears."""

    __slots__ = ("_to",)

    def __init__(self, to: Watch) -> None:
        self._to = to

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease."""
        self._to.dispatched(lease)

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        self._to.settled(lease, outcome)


def onlooker(watch: Watch) -> Onlooker:
    """`watch` as one that is called without a look-up."""
    return watch if isinstance(watch, Onlooker) else ByName(watch)
