"""Where an exchange asks for a place and gives it back: a class, no protocol, so that compiled it is called directly.

The dispatcher is one. Whatever else stands in its place is called by the names of its methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway.scheduling.model import Lease, Outcome, Request, Ticket


class Desk:
    """What an exchange calls."""

    def submit(self, request: Request, sink: Any) -> Ticket:
        """Ask for a place; the answer comes to `sink`, possibly before this returns."""
        raise NotImplementedError

    def cancel(self, ticket: Ticket) -> None:
        """Take a queued ticket out."""
        raise NotImplementedError

    def first_token(self, lease: Lease) -> None:
        """The first token of this lease has come."""
        raise NotImplementedError

    def progress(self, lease: Lease, tokens: int) -> None:
        """That many more tokens have come."""
        raise NotImplementedError

    def settle(self, lease: Lease, outcome: Outcome, *, retry: bool = False) -> None:
        """The lease ended; with `retry` the sink hears again."""
        raise NotImplementedError


class Scheduling(Protocol):
    """The same of any object, and the clock it goes by."""

    def now(self) -> float:
        """Seconds."""
        ...

    def submit(self, request: Request, sink: Any) -> Ticket:
        """Ask for a place; the answer comes to `sink`, possibly before this returns."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Take a queued ticket out."""
        ...

    def first_token(self, lease: Lease) -> None:
        """The first token of this lease has come."""
        ...

    def progress(self, lease: Lease, tokens: int) -> None:
        """That many more tokens have come."""
        ...

    def settle(self, lease: Lease, outcome: Outcome, *, retry: bool = False) -> None:
        """The lease ended; with `retry` the sink hears again."""
        ...


class ByName(Desk):
    """Passes on what it is asked."""

    __slots__ = ("_to",)

    def __init__(self, to: Scheduling) -> None:
        self._to = to

    def submit(self, request: Request, sink: Any) -> Ticket:
        """Ask for a place."""
        return self._to.submit(request, sink)

    def cancel(self, ticket: Ticket) -> None:
        """Take a queued ticket out."""
        self._to.cancel(ticket)

    def first_token(self, lease: Lease) -> None:
        """The first token of this lease has come."""
        self._to.first_token(lease)

    def progress(self, lease: Lease, tokens: int) -> None:
        """That many more tokens have come."""
        self._to.progress(lease, tokens)

    def settle(self, lease: Lease, outcome: Outcome, *, retry: bool = False) -> None:
        """The lease ended."""
        self._to.settle(lease, outcome, retry=retry)


def desk(scheduling: Scheduling) -> Desk:
    """`scheduling` as one that is called without a look-up."""
    return scheduling if isinstance(scheduling, Desk) else ByName(scheduling)
