"""What the data plane hands out and what it asks for: one request as read, and the ports it is built with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.admission import Admitted, LocalAnswer
    from gateway.errors import ErrorAnswer
    from gateway.records import RequestRecord
    from gateway.scheduling.model import Request

    from .answer_fields import Fields
    from .known_heads import HeadNotes


@dataclass(slots=True, eq=False)
class RawRequest:
    """One request as it was read: checked for form and size, not yet for meaning.

    `headers` in order with lower-case names, `body` whole, `path` and `query` split at the first `?` and not decoded.
    The list may be shared with other requests: read it only.
    `peer` is the client's address without its port; `secure` whether TLS ended here. `keep_alive`: the client allows
    another request on its connection. `http10`: it does not understand chunked answers.
    """

    method: str
    path: str
    query: bytes
    headers: Fields
    body: bytes
    peer: str = ""
    secure: bool = False
    keep_alive: bool = True
    http10: bool = False
    notes: HeadNotes | None = None  # shared by all requests with this head; None: it was not kept

    def header(self, name: bytes) -> bytes | None:
        """The first value of a field, by its lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one client connection; swapped whole when the policy changes."""

    body_bytes: int = 33_554_432
    header_bytes: int = 16_384
    line_bytes: int = 8_192
    header_count: int = 64
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    write_stall_s: float = 30.0
    pipelined_bytes: int = 65_536
    connections: int = 4_000


class Gate(Protocol):
    """Decides about a request that has been read: in, answered here, or refused."""

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """Never raises for what a client sent."""
        ...


class Telemetry(Protocol):
    """Where the data plane reports what happened."""

    def attempt(self, pool: str, worker: str, result: str) -> None:
        """One upstream attempt ended; `result` from a closed set (`OutcomeKind` values and finer ones)."""
        ...

    def first_token(self, record: RequestRecord) -> None:
        """The first token has come; `record.ttft_s` is set."""
        ...

    def itl(self, pool: str, class_name: str, seconds: float) -> None:
        """Mean time between events over a stretch of one stream."""
        ...

    def finished(self, record: RequestRecord, request: Request | None = None) -> None:
        """A request ended; the record is complete. `request`: what was asked of the scheduler, if it was let in."""
        ...
