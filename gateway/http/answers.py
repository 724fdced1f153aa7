"""Heads of answers to clients: status line, the engine's allowed fields, our own, and exactly one framing field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from gateway.decimals import digits

from .answer_fields import UNKNOWN, Fields
from .headers import field_lines, header_value

LAST_CHUNK: Final = b"0\r\n\r\n"
HEARTBEAT: Final = b": waiting for the first token\n\n"
MAX_ROUTES: Final = 256
"""Classes kept of one worker."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_AT_ONCE: Final = b"x-headrace-queue-ms: 0\r\nx-headrace-attempts: 1\r\n"

_SIZE_LINES: Final = [b"%x\r\n" % size for size in range(2048)]
"""First lines of chunks: formatting a number in hexadecimal digits costs as much as writing one."""

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

    class_name: str
    pool: str
    revision: int
    why: str
    lines: bytes
    at_once: bytes  # and behind them the fields of a request that did not wait and had one attempt


class Routes:
    """The same fields of the requests to one worker: most often the next one has those of the last one of its class."""

    __slots__ = ("_known", "_last")

    def __init__(self) -> None:
        self._known: dict[str, Route] = {}
        self._last: Route | None = None

    def __len__(self) -> int:
        return len(self._known)

    def of(self, pool: str, worker: str, class_name: str, revision: int, why: str) -> Route:
        """What they say of one request; `worker` is always the same."""
        known = self._last
        if known is None or known.class_name != class_name:
            known = self._known.get(class_name)
        if known is None or known.revision != revision or known.why != why or known.pool != pool:
            lines = route_fields(pool, worker, class_name, revision, why)
            known = Route(class_name, pool, revision, why, lines, lines + _AT_ONCE)
            if len(self._known) >= MAX_ROUTES:
                self._known.clear()
            self._known[class_name] = known
        self._last = known
        return known


def at_once(queue_s: float, attempts: int) -> bool:
    """Whether a request did not wait and had one attempt, as most."""
    return attempts == 1 and queue_s < 0.001


def timing_fields(queue_s: float, attempts: int) -> bytes:
    """How long the request waited for a worker, over all attempts, and how many there were."""
    if at_once(queue_s, attempts):
        return _AT_ONCE
    return b"x-headrace-queue-ms: %d\r\nx-headrace-attempts: %d\r\n" % (int(queue_s * 1000), attempts)


def answer_head(
    status: int,
    lines: bytes,
    request_id: bytes,
    own: bytes = b"",
    *,
    length: int,
    chunked: bool,
    keep_alive: bool,
    http10: bool,
    body: bytes = b"",
) -> bytes:
    """A whole head. `lines` are those of the engine that cross, or an error's; `own` are ours beside the id.

    `length` UNKNOWN and not `chunked`: no framing field, the body (if the status has one) ends with the connection.
    `body`: what follows at once, in the same bytes.
    """
    end = b"\r\n"
    if not keep_alive:
        end = b"connection: close\r\n\r\n"
    elif http10:
        end = b"connection: keep-alive\r\n\r\n"
    start = _OK if status == 200 else _STATUS_LINES.get(status) or status_line(status)
    if chunked:
        return b"%b%bx-request-id: %b\r\n%btransfer-encoding: chunked\r\n%b%b" % (
            start, lines, request_id, own, end, body,
        )  # fmt: skip
    if length != UNKNOWN and status != 204:
        return b"%b%bx-request-id: %b\r\n%bcontent-length: %b\r\n%b%b" % (
            start, lines, request_id, own, digits(length), end, body,
        )  # fmt: skip
    return b"%b%bx-request-id: %b\r\n%b%b%b" % (start, lines, request_id, own, end, body)


def own_answer(
    status: int,
    fields: Fields,
    request_id: str,
    body: bytes,
    keep_alive: bool,
    *,
    http10: bool = False,
    bodyless: bool = False,
) -> bytes:
    """A whole answer that no worker gave; `bodyless`: its head alone."""
    return answer_head(
        status,
        field_lines(fields),
        request_id.encode("ascii"),
        length=len(body),
        chunked=False,
        keep_alive=keep_alive,
        http10=http10,
        body=b"" if bodyless else body,
    )


Written = bytes | bytearray | memoryview


class HeadOnly:
    """Writes an answer's head and none of its body: the answer to HEAD, whoever makes it and in however many parts.

    Heads are written whole, and first. The connection has to end behind it: an answer that goes on is not noticed.
    """

    __slots__ = ("_done", "_write")

    def __init__(self, write: Callable[[Written], None]) -> None:
        self._write = write
        self._done = False

    def __call__(self, data: Written) -> None:
        """Take what would be written."""
        if not self._done:
            self._done = True
            head = bytes(data)
            self._write(head[: head.find(b"\r\n\r\n") + 4])


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty, that would be the end."""
    size = len(data)
    line = _SIZE_LINES[size] if size < len(_SIZE_LINES) else b"%x\r\n" % size
    return b"%b%b\r\n" % (line, data)
