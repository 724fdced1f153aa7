"""Heads as read before: a client that keeps asking sends the same bytes again, its body's length apart, and so does an
engine that keeps answering.

What a head says follows from its bytes alone, so equal bytes need not be read twice: looking one up costs a hash, and
reading it some twenty calls. What others find out about a head (who the caller is, which fields go to an engine) they
note here as well, beside whatever it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .answer_fields import Fields
from .headers import field_lines, forwarded_response_fields
from .messages import HttpLimits
from .verdicts import Reading, reading_of

MAX_HEADS = 512
"""Heads kept of each kind; all are forgotten when there are more, as clients whose heads never repeat bring about."""

MAX_HEAD_BYTES = 2048
"""Longer ones are read each time: what is kept stays below a few MiB."""

_LENGTH = b"\r\ncontent-length:"
_END = b"\r\n\r\n"
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
class AnswerHead:
    """The final head of a worker's answer, and what follows from it."""

    status: int
    fields: Fields
    reading: Reading
    lines: bytes  # of the fields that cross to clients, ready to be sent


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The well-formed head of an answer in HTTP/1.1 after whose body, chunked or of a fixed length, the connection
    stays. Its bytes are `before` and `after`, with the digits of the length between them."""

    head: AnswerHead
    before: bytes
    after: bytes
    chunked: bool

    def body_of(self, data: bytes) -> bytes | None:
        """What comes behind this head, of the whole body if its length is fixed; None: that is not this answer."""
        if self.chunked:
            return data[len(self.before) :] if data.startswith(self.before) else None
        # What is not head is digits and body, and the digits say how long the body is: only one number can be right.
        left = len(data) - len(self.before) - len(self.after)
        length = left - len(b"%d" % left)
        digits = b"%d" % length
        if len(digits) + length < left:
            length += 1
            digits = b"%d" % length
        head = self.before + digits + self.after
        return data[len(head) :] if data.startswith(head) and len(head) + length == len(data) else None


_heads: dict[bytes, KnownHead] = {}
_answers: dict[bytes, KnownAnswer] = {}
_streams: dict[bytes, KnownAnswer] = {}


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


def answer_head_of(status: int, fields: Fields) -> AnswerHead:
    """A head that has just been read."""
    return AnswerHead(status, fields, reading_of(status, fields), field_lines(forwarded_response_fields(fields)))


JSON_ERROR: Final = answer_head_of(500, [(b"content-type", b"application/json")])
"""Stands for the head of a stream that began with an error and so has a status after all."""


def find_answer(data: bytes) -> KnownAnswer | None:
    """What was read before from a head like the one that these bytes begin with."""
    end = data.find(_END) + len(_END)
    if end < len(_END):
        return None
    head = data[:end]
    return _streams.get(head) or _answers.get(without_length(head)[0])


def remember_answer(head: AnswerHead, told: bytes, *, chunked: bool) -> KnownAnswer | None:
    """Keep what was read from `told`. Not for answers that have no body whatever their head says."""
    if len(told) > MAX_HEAD_BYTES or head.status in (204, 304):
        return None
    if chunked:
        kept, key, known = _streams, told, KnownAnswer(head, told, b"", True)
    else:
        key, digits = without_length(told)
        at = told.find(digits, told.lower().find(_LENGTH) + len(_LENGTH))
        if not digits or at < 0:
            return None
        kept, known = _answers, KnownAnswer(head, told[:at], told[at + len(digits) :], False)
    if len(kept) >= MAX_HEADS:
        kept.clear()
    kept[key] = known
    return known
