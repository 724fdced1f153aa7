"""Heads as read before: a client that keeps asking sends the same bytes again, its body's length apart, and so does an
engine that keeps answering.

What a head says follows from its bytes alone, so equal bytes need not be read twice: looking one up costs a hash, and
reading it some twenty calls. What others find out about a head (who the caller is, which fields go to an engine) they
note here as well, beside whatever it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .answer_fields import AnswerFields, Fields
from .headers import forwarded_response_fields
from .messages import HttpLimits

MAX_HEADS = 512
"""Heads kept of each kind; all are forgotten when there are more, as clients whose heads never repeat bring about."""

MAX_HEAD_BYTES = 2048
"""Longer ones are read each time: what is kept stays below a few MiB."""

_LENGTH = b"\r\ncontent-length:"
_LENGTH_DIGITS = 12  # more than any limit allows


@dataclass(slots=True, eq=False)
class HeadNotes:
    """What was found out about a head. Whoever reads a note checks that what it depended on still holds."""

    gate: Any = None  # the gate's own
    forwarded: dict[bool, bytes] = field(default_factory=dict)  # fields for engines, by whether credentials go along


@dataclass(slots=True, eq=False)
class KnownHead:
    """A well-formed head whose body, if any, has a fixed length."""

    limits: HttpLimits  # it was read within
    method: str
    path: str
    query: bytes
    fields: Fields
    length_at: int  # place of Content-Length among the fields; -1: there is none
    keep_alive: bool
    http10: bool
    expects_continue: bool
    notes: HeadNotes = field(default_factory=HeadNotes)


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The well-formed head of an answer in HTTP/1.1 with a body of fixed length, after which the connection stays."""

    status: int
    fields: AnswerFields


_heads: dict[bytes, KnownHead] = {}
_answers: dict[bytes, KnownAnswer] = {}


def without_length(head: bytes) -> tuple[bytes, bytes]:
    """The head without its first Content-Length line, and that line's digits; empty where it has no usable ones."""
    at = head.lower().find(_LENGTH)
    if at < 0:
        return head, b""
    end = head.find(b"\r\n", at + len(_LENGTH))
    digits = head[at + len(_LENGTH) : end].strip(b" \t")
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS:
        return head, b""
    return head[:at] + head[end:], digits


def find(key: bytes, digits: bytes, limits: HttpLimits) -> KnownHead | None:
    """The head read before from these bytes within these limits."""
    known = _heads.get(key)
    # A key with its length cut out may equal a whole head that never had one.
    if known is None or known.limits is not limits or (known.length_at >= 0) is not bool(digits):
        return None
    return known


def remember(key: bytes, known: KnownHead) -> None:
    """Keep what was read."""
    if len(key) > MAX_HEAD_BYTES:
        return
    if len(_heads) >= MAX_HEADS:
        _heads.clear()
    _heads[key] = known


def find_answer(data: bytes) -> tuple[KnownAnswer, bytes] | None:
    """A whole answer with nothing behind it, if its head was read before: that head, and the body."""
    end = data.find(b"\r\n\r\n") + 4
    if end > 3:
        key, digits = without_length(data[:end])
        if digits and len(data) - end == int(digits):
            known = _answers.get(key)
            if known is not None:
                return known, data[end:]
    return None


def remember_answer(data: bytes, status: int, fields: Fields) -> None:
    """Keep what was read of a whole answer. Not for answers that have no body whatever their head says."""
    end = data.find(b"\r\n\r\n") + 4
    key, digits = without_length(data[:end])
    if digits and len(data) - end == int(digits) and len(key) <= MAX_HEAD_BYTES and status not in (204, 304):
        kept = AnswerFields(fields)
        kept.crossing = forwarded_response_fields(fields)
        if len(_answers) >= MAX_HEADS:
            _answers.clear()
        _answers[key] = KnownAnswer(status, kept)
