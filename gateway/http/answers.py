"""Heads of answers to clients: status line, the engine's allowed fields, our own, and exactly one framing field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from .headers import header_value

LAST_CHUNK: Final = b"0\r\n\r\n"
MAX_ROUTES: Final = 256
"""Classes kept of one worker."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_AT_ONCE: Final = b"x-headrace-queue-ms: 0\r\nx-headrace-attempts: 1\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """The first line of an answer; the phrase is ours, whatever the engine's was."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


@lru_cache(maxsize=4096)
def route_fields(pool: str, worker: str, class_name: str, revision: int, why: str) -> bytes:
    """The fields that tell where a request went and why; few different ones, so made once."""
    parts = []
    if pool:
        parts.append(b"x-headrace-pool: " + header_value(pool) + b"\r\n")
    if worker:
        parts.append(b"x-headrace-worker: " + header_value(worker) + b"\r\n")
    if class_name:
        parts.append(b"x-headrace-class: " + header_value(class_name) + b"\r\n")
    parts.append(b"x-headrace-revision: %d\r\n" % revision)
    if why:
        parts.append(b"x-headrace-reason: " + header_value(why) + b"\r\n")
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Route:
    """What the fields said of the last request of one class to one worker."""

    pool: str
    revision: int
    why: str
    lines: bytes


def route_of(
    routes: dict[str, Route] | None, pool: str, worker: str, class_name: str, revision: int, why: str
) -> bytes:
    """The same fields. `routes`: those of this worker, by class; most often its next request has the same."""
    known = None if routes is None else routes.get(class_name)
    if known is not None and known.revision == revision and known.why == why and known.pool == pool:
        return known.lines
    lines = route_fields(pool, worker, class_name, revision, why)
    if routes is not None:
        if len(routes) >= MAX_ROUTES:
            routes.clear()
        routes[class_name] = Route(pool, revision, why, lines)
    return lines


def timing_fields(queue_s: float, attempts: int) -> bytes:
    """How long the request waited for a worker, over all attempts, and how many there were."""
    if queue_s < 0.001 and attempts == 1:
        return _AT_ONCE
    return b"x-headrace-queue-ms: %d\r\nx-headrace-attempts: %d\r\n" % (int(queue_s * 1000), attempts)


def answer_head(
    status: int,
    lines: bytes,
    own: bytes,
    *,
    length: int | None,
    chunked: bool,
    keep_alive: bool,
    http10: bool,
    body: bytes = b"",
) -> bytes:
    """A whole head. `lines` are those of the engine that cross, or an error's; `own` are ours.

    `length` None and not `chunked`: no framing field, the body (if the status has one) ends with the connection.
    `body`: what follows at once, in the same bytes.
    """
    end = b"\r\n"
    if not keep_alive:
        end = b"connection: close\r\n\r\n"
    elif http10:
        end = b"connection: keep-alive\r\n\r\n"
    start = _STATUS_LINES.get(status) or status_line(status)
    if chunked:
        return b"%b%b%btransfer-encoding: chunked\r\n%b%b" % (start, lines, own, end, body)
    if length is not None and status != 204:
        return b"%b%b%bcontent-length: %d\r\n%b%b" % (start, lines, own, length, end, body)
    return b"%b%b%b%b%b" % (start, lines, own, end, body)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty, that would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)
