"""Heads as read before: a client that keeps asking sends the same bytes again, its body's length apart, and so does an
engine that keeps answering.

What a head says follows from its bytes alone, so equal bytes need not be read twice: looking one up costs a hash, and
reading it some twenty calls. What others find out about a head (who the caller is, which fields go to an engine) they
note here as well, beside whatever it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .answer_fields import Fields
from .headers import field_lines, forwarded_response_fields, request_id_of
from .messages import HttpLimits, RawRequest
from .verdicts import Reading, reading_of

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_HEADS: Final = 512
"""Heads kept of each kind; all are forgotten when there are more, as clients whose heads never repeat bring about."""

MAX_HEAD_BYTES: Final = 2048
"""Longer ones are read each time: what is kept stays below a few MiB."""

LENGTH_DIGITS: Final = 12
"""Of a body's length: more than any limit allows."""

_LENGTH: Final = b"\r\ncontent-length:"
_END: Final = b"\r\n\r\n"


def _not_known() -> list[bytes | None]:
    return [None, None]


@dataclass(slots=True, eq=False)
class HeadNotes:
    """What was found out about a head. Whoever reads a note checks that what it depended on still holds."""

    gate: Any = None  # the gate's own
    request_id: str | None = None  # the client's own, if it may go on
    forwarded: list[bytes | None] = field(default_factory=_not_known)  # fields for engines; then with credentials


@dataclass(slots=True, eq=False)
class KnownHead:
    """A well-formed head whose body, if any, has a fixed length."""

    limits: HttpLimits  # it was read within
    method: str
    path: str
    query: bytes
    fields: Fields
    length_at: int  # where Content-Length stood, which is not among the fields; -1: there was none
    keep_alive: bool
    http10: bool
    expects_continue: bool
    before: bytes  # its bytes up to the digits of the length
    after: bytes  # and from there on
    plain: bool  # its length is between these two, and no digits of it make it too long
    notes: HeadNotes = field(default_factory=HeadNotes)

    def body_of(self, data: bytes, limits: HttpLimits) -> bytes | None:
        """The body of a whole request with this head and nothing behind it; None: that is not what these bytes are."""
        if self.limits is not limits or not self.plain:
            return None
        if self.length_at < 0:
            return b"" if data == self.before else None
        return _body_behind(self.before, self.after, data)


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
        return _body_behind(self.before, self.after, data)


def _body_behind(before: bytes, after: bytes, data: bytes) -> bytes | None:
    """The whole body of which the head between `before` and `after` says the length; None: `data` is not just that."""
    if not data.startswith(before):
        return None
    size: i64 = len(data)
    begin: i64 = len(before)
    at: i64 = begin
    length: i64 = 0
    while at < size and at - begin < LENGTH_DIGITS:
        digit: i64 = data[at] - 48
        if not 0 <= digit <= 9:
            break
        length = length * 10 + digit
        at += 1
    if at == begin or (data[begin] == 48 and at - begin > 1):
        return None  # no digits, or a zero before others: that head would have been read as another one
    end: i64 = at + len(after)
    return data[end:] if size - end == length and data[at:end] == after else None


_heads: Final[dict[bytes, KnownHead]] = {}
_answers: Final[dict[bytes, KnownAnswer]] = {}
_streams: Final[dict[bytes, KnownAnswer]] = {}


def without_length(head: bytes) -> tuple[bytes, bytes]:
    """The head without its first Content-Length line, and that line's digits; empty where it has no usable ones."""
    _, digits, after = around_length(head)
    at = head.lower().find(_LENGTH)
    return (head[:at] + after, digits) if digits else (head, b"")


def around_length(head: bytes) -> tuple[bytes, bytes, bytes]:
    """The head up to the digits of its first Content-Length, these, and the rest; all of it where there are none."""
    at = head.lower().find(_LENGTH)
    if at >= 0:
        at += len(_LENGTH)
        end = head.find(b"\r\n", at)
        digits = head[at:end].strip(b" \t")
        if digits.isdigit() and len(digits) <= LENGTH_DIGITS:
            at = head.find(digits, at)
            return head[:at], digits, head[at + len(digits) :]
    return head, b"", b""


def known_head_of(request: RawRequest, limits: HttpLimits, head: bytes, expects_continue: bool) -> KnownHead:
    """A head that has just been read."""
    names = [name for name, _ in request.headers]
    before, digits, after = around_length(head)
    length_at = names.index(b"content-length") if b"content-length" in names else -1
    known = KnownHead(
        limits,
        request.method,
        request.path,
        request.query,
        request.headers,
        length_at,
        request.keep_alive,
        request.http10,
        expects_continue,
        before,
        after,
        (length_at >= 0) is bool(digits) and len(head) + LENGTH_DIGITS <= min(limits.header_bytes, limits.line_bytes),
    )
    known.notes.request_id = request_id_of(request.header(b"x-request-id"))
    return known


def find(key: bytes, digits: bytes, limits: HttpLimits) -> KnownHead | None:
    """The head read before from these bytes within these limits."""
    known = _heads.get(key)
    # A key with its length cut out may equal a whole head that never had one.
    if known is None or known.limits is not limits or (known.length_at >= 0) is not bool(digits):
        return None
    return known


def remember(key: bytes, known: KnownHead) -> bool:
    """Keep what was read; False if it is too long for that."""
    if len(key) > MAX_HEAD_BYTES:
        return False
    if len(_heads) >= MAX_HEADS:
        _heads.clear()
    _heads[key] = known
    return True


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
    before, digits, after = around_length(head)
    return _answers.get(before + after) if digits else _streams.get(head)


def remember_answer(head: AnswerHead, told: bytes, *, chunked: bool) -> KnownAnswer | None:
    """Keep what was read from `told`. Not for answers that have no body whatever their head says."""
    if len(told) > MAX_HEAD_BYTES or head.status in (204, 304):
        return None
    if chunked:
        kept, key, known = _streams, told, KnownAnswer(head, told, b"", True)
    else:
        before, digits, after = around_length(told)
        if not digits:
            return None
        kept, key, known = _answers, before + after, KnownAnswer(head, before, after, False)
    if len(kept) >= MAX_HEADS:
        kept.clear()
    kept[key] = known
    return known
