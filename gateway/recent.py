"""The last requests and why each went where it did: what `explain` reads. Bounded; no text of any request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.scheduling.model import Choice, Cost  # not for their names alone: the compiled core needs the classes

if TYPE_CHECKING:
    from gateway.records import RequestRecord
    from gateway.scheduling.model import Lease, Outcome

MAX_REQUESTS: Final = 4096
MAX_ATTEMPTS: Final = 16


@dataclass(slots=True)
class Attempt:
    """One lease: where it went, what else was considered at what score, and how it ended."""

    worker: str
    pool: str
    at: float
    queued_s: float
    score: float
    choice: Choice | None  # whom it was chosen among
    canary: bool
    klass: int  # index of its class
    wait_cause: str  # why it had to wait for this attempt, a `WaitCause`; empty where it did not
    cost: Cost  # what was booked
    prompt_tokens: int  # estimated
    cached_tokens: int  # of these, expected in the worker's prefix cache
    output_tokens: int  # expected
    ttft_s: float  # expected; 0 where other prefills were before it
    outcome: str | None = None  # None while it runs


class Story:
    """What is known of one request; `record` comes at its end."""

    __slots__ = ("_first", "_further", "record")

    def __init__(self, first: Attempt | None = None, record: RequestRecord | None = None) -> None:
        self._first = first
        self._further: list[Attempt] | None = None  # most have no second
        self.record = record

    @property
    def attempts(self) -> list[Attempt]:
        """In their order."""
        return [] if self._first is None else [self._first, *(self._further or ())]

    def add(self, attempt: Attempt) -> None:
        """Another attempt; what is beyond the bound is not kept."""
        if self._first is None:
            self._first = attempt
        elif self._further is None:
            self._further = [attempt]
        elif len(self._further) < MAX_ATTEMPTS - 1:
            self._further.append(attempt)


class Recent:
    """Stories by request id, the oldest forgotten first."""

    def __init__(self, size: int = MAX_REQUESTS) -> None:
        self._size = size
        self._stories: dict[str, Story] = {}
        self._ids: list[str] = []  # in a ring: the oldest is at `_oldest` once there are `size`
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._stories)

    def find(self, request_id: str) -> Story | None:
        """The story of a request that is not forgotten yet."""
        return self._stories.get(request_id)

    def dispatched(self, lease: Lease) -> None:
        """A request got a lease."""
        request = lease.ticket.request
        request_id = request.id
        # Its values only: a lease holds its ticket, and that the whole exchange.
        attempt = lease.note = Attempt(
            lease.worker,
            lease.pool,
            lease.dispatched,
            lease.queued_s,
            lease.score,
            lease.choice,
            lease.canary,
            request.klass,
            lease.ticket.cause if lease.queued_s else "",
            lease.cost,
            request.prompt_tokens,
            lease.held,
            request.expected_output if request.generates else 0,
            lease.predicted_ttft_s,
        )
        fresh = Story(attempt)
        story = self._stories.setdefault(request_id, fresh)
        if story is fresh:
            self._make_room(request_id)
        else:
            story.add(attempt)

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        """A lease ended."""
        attempt = lease.note
        if isinstance(attempt, Attempt):
            attempt.outcome = outcome.kind

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        story = self._stories.get(record.request_id)
        if story is None:
            self._stories[record.request_id] = Story(None, record)
            self._make_room(record.request_id)
        else:
            story.record = record

    def _make_room(self, request_id: str) -> None:
        """A story was added: the oldest one goes when there are too many."""
        ids, oldest = self._ids, self._oldest
        if len(ids) < self._size:
            ids.append(request_id)
        else:
            del self._stories[ids[oldest]]
            ids[oldest] = request_id
            self._oldest = (oldest + 1) % self._size
