"""What is kept of one request when it has ended: the source of the access log, the metrics and `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.admission import Admitted


class Terminal(StrEnum):
    """How a request ended for its client. Exactly one for each request that was read."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # the request's own fault: refused here or by the engine with a 4xx
    UPSTREAM_ERROR = "upstream_error"  # a worker failed and nothing could be done, or an error came inside a stream
    REJECTED = "rejected"  # refused because of load or limits before it was queued
    EVICTED = "evicted"  # had been queued, then given up
    CANCELLED = "cancelled"  # the client left
    TIMEOUT = "timeout"  # one of our deadlines ran out
    INTERNAL = "internal"  # our own fault

    __hash__ = str.__hash__  # Enum's own is a Python call; these are looked up several times a request


def refused_as(status: int) -> Terminal:
    """How a request ended that was answered with this error before anything was done for it."""
    if status in (429, 503):
        return Terminal.REJECTED
    return Terminal.INTERNAL if status >= 500 and status != 505 else Terminal.CLIENT_ERROR


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request from its first byte to its end; times in seconds, filled in as they become known.

    Nothing in it comes from the prompt or the answer's text. `ttft_s` and `duration_s` count from the moment the
    request had been read, `queue_s` is the sum over all attempts. `output_tokens` is the engine's own count, or the
    number of stream events where it sent none. `why` says what chose pool and class, `reason` why it ended as it did
    for everything but plain success.
    """

    request_id: str
    method: str
    path: str
    peer: str
    tenant: str = ""
    key_id: str | None = None
    class_name: str = ""
    why: str = ""
    pool: str = ""
    worker: str = ""
    endpoint: str = ""
    model: str = ""
    stream: bool = False
    status: int = 0  # what the client was told; 499: it left before being told anything
    outcome: Terminal = Terminal.INTERNAL
    reason: str = ""
    prompt_estimate: int = 0
    estimate_raw: int = 0  # the estimate before calibration
    max_output_tokens: int | None = None  # what the client allows
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    queue_s: float = 0.0
    ttft_s: float | None = None
    duration_s: float = 0.0
    attempts: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    revision: int = 0
    continued: bool = False  # the stream broke off and another worker was asked to go on with it

    def let_in(self, admitted: Admitted, endpoint: str) -> None:
        """What the gate decided; `endpoint` by its name."""
        self.tenant = admitted.tenant
        self.key_id = admitted.key_id
        self.class_name = admitted.classified.class_name
        self.max_output_tokens = admitted.request.max_output_tokens
        self.why = admitted.classified.why
        self.pool = admitted.classified.pool
        self.endpoint = endpoint
        self.model = admitted.model_public
        self.stream = admitted.stream
        self.prompt_estimate = admitted.prompt_estimate
        self.estimate_raw = admitted.estimate_raw
        self.revision = admitted.revision_number
