"""One connection to a worker, read strictly, asked one thing at a time.

A connection goes back to the pool only after an answer that was complete in every respect. One that ended oddly (extra
bytes other than empty lines, a short body, `Connection: close`, bytes while idle) never does: what it would answer next
belongs to nobody.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import httptools

from gateway.scheduling.model import OutcomeKind

from .answer_fields import Fields
from .answers import LAST_CHUNK
from .known_heads import AnswerHead, KnownAnswer, answer_head_of, find_answer, remember_answer
from .plain_chunks import PlainChunks, one_chunk, several_chunks

if TYPE_CHECKING:
    from .upstream import UpstreamPool

clock: Final = time.monotonic
"""What idle connections' times are in; a loop's own clock is asked by name, and is as fine as its turns are long."""

MAX_HEAD_BYTES: Final = 65_536
"""Heads of one answer, interim ones included."""
MAX_FIELDS: Final = 128
MAX_INTERIM: Final = 8
JOIN_BYTES: Final = 16_384
STALE_WINDOW_S: Final = 1.0
"""A reused connection that is lost this soon, with nothing answered, was stale: the worker had closed it already."""

_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
"""What llhttp is told in place of a head that was read before, if it has to read of the body behind it."""


class AnswerSink:
    """Who reads one answer. After `on_failed`, or `on_piece` with `last`, nothing more comes."""

    __slots__ = ()

    def on_head(self, head: AnswerHead, length: int | None) -> None:
        """The final head; `length` of the body where it was declared."""
        raise NotImplementedError

    def on_piece(self, piece: bytes, last: bool, framed: bytes | None = None) -> None:
        """The next bytes of the body, maybe none with `last`. `framed`: the whole chunks in which they came."""
        raise NotImplementedError

    def on_failed(self, kind: OutcomeKind, detail: str, stale: bool) -> None:
        """The answer will never be complete. `stale`: a reused connection that had ended before it was asked."""
        raise NotImplementedError


class UpstreamConnection(asyncio.Protocol):
    """One connection to a worker; asked one thing at a time."""

    __slots__ = (
        "_answered", "_bodyless", "_broken", "_chunked", "_chunks", "_complete", "_field_bytes", "_fields",
        "_head_bytes", "_headed", "_interim", "_keep", "_known", "_lead", "_length", "_parser", "_parts", "_poll",
        "_pool", "_secure", "_sink", "_status", "_told", "_transport", "_until_eof", "_whole_parts", "_write",
        "idle_next", "idle_since", "loop", "lost", "on_body", "reused", "taken_at",
    )  # fmt: skip

    def __init__(self, pool: UpstreamPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self.loop = loop
        self._transport: asyncio.Transport | None = None
        self._sink: AnswerSink | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # llhttp calls it: no Python frame for a piece of a body
        self._parser = httptools.HttpResponseParser(self)
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        self._secure = False
        self._fields: Fields = []
        self._known: KnownAnswer | None = None  # the answer before, if its head is one to be known again
        self.idle_since = 0.0
        self.idle_next: UpstreamConnection | None = None  # the pool's
        self.taken_at = 0.0
        self.reused = False
        self.lost = False
        self._reset(False)

    def _reset(self, bodyless: bool) -> None:
        self._bodyless = bodyless
        self._answered = self._headed = self._told = self._complete = self._keep = self._until_eof = False
        self._chunked = False
        self._chunks: PlainChunks | None = None  # reads the body as long as its chunks are plain
        self._lead = b""  # a head to put before what llhttp gets to read
        self._broken: str | None = None
        if len(self._fields) != 0:
            self._fields = []
        self._status = 0
        self._length: int | None = None
        self._whole_parts: int | None = None  # how many of the parts are ours, once an answer to nothing follows
        self._head_bytes = self._field_bytes = self._interim = 0

    # -- what the exchange does -------------------------------------------------------------------------------------

    def ask(self, sink: AnswerSink, head: bytes, body: list[bytes], *, bodyless: bool) -> None:
        """Send a request; its answer goes to `sink`. `bodyless`: the answer has no body (HEAD).

        `head` may have a body of less than `JOIN_BYTES` behind it: one small copy costs less than a gathering write.
        """
        assert self._sink is None
        assert self._transport is not None
        self._reset(bodyless)
        self._sink = sink
        if body:
            self._transport.writelines([head, *body])
        else:
            self._write(head)

    def pause(self) -> None:
        """Read nothing for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Drop it now, whatever is on its way: this is how an engine learns that nobody waits any more."""
        self._sink = None
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def quiet(self) -> bool:
        """Whether nothing waits to be read: an idle connection has nothing to say, and an end is also readable.

        Asks the kernel, because what arrived since the loop last looked would else be taken for the next answer.
        """
        transport = self._transport
        if self.lost or transport is None:
            return False
        if self._poll is None:
            poll = select.poll()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = poll.poll
            self._secure = transport.get_extra_info("sslcontext") is not None
        # A socket that the loop has read an error of is readable as well; only what ended TLS need not show there.
        return not (self._secure and transport.is_closing()) and len(self._poll(0)) == 0

    # -- what the loop does -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast(asyncio.Transport, transport)
        self._write = self._transport.write

    def data_received(self, data: bytes) -> None:  # noqa: D102
        sink = self._sink
        if sink is None:
            self._pool.distrust()
            self._pool.discard(self)  # unsolicited: whatever it is, it answers nothing we asked
            return
        chunks = self._chunks
        if chunks is not None:
            if not chunks.inside:
                # Not `if piece`: in the compiled core asking for the length is a tenth of asking for the truth.
                piece = one_chunk(data)
                if len(piece) == 0:
                    piece = several_chunks(data)
                if len(piece) != 0:
                    sink.on_piece(piece, False, data)
                    return
            self._read_chunks(sink, chunks, data)
        elif self._answered:
            self._parse(sink, data)
        else:
            self._answered = True
            if self._bodyless or not self._read_known(sink, data):
                self._read_head(sink, data)

    def _read_known(self, sink: AnswerSink, data: bytes) -> bool:
        """Read an answer whose head was read before; False if this is none."""
        known = self._known
        body = None if known is None else known.body_of(data)
        if body is None:
            known = find_answer(data)
            body = None if known is None else known.body_of(data)
            if body is None:
                return False
            self._known = known
        assert known is not None
        if not known.chunked:
            self._keep = True
            sink.on_head(known.head, len(body))
            if self._sink is sink:
                self._end(sink, body)
            return True
        self._headed = self._told = True
        self._lead = _CHUNKED_HEAD
        chunks = self._chunks = PlainChunks()
        sink.on_head(known.head, None)
        if body and self._sink is sink:
            self._read_chunks(sink, chunks, body)
        return True

    def _read_head(self, sink: AnswerSink, data: bytes) -> None:
        """The first bytes of an answer. If its head is there whole, the body is read apart from it."""
        end = data.find(b"\r\n\r\n") + 4
        told = data[:end] if end > 3 else data
        self._feed(told)
        rest = data[len(told) :]
        if not self._headed:
            self._head_bytes = len(told)
        if not self._headed or self._broken is not None or self._complete or told.count(b"\n") != told.count(b"\r\n"):
            self._parse(sink, rest)
            return
        head = answer_head_of(self._status, self._fields)
        if self._parser.should_keep_alive() and (self._chunked or self._length == len(rest)):
            self._known = remember_answer(head, told, chunked=self._chunked)
        self._told = True
        chunks = self._chunks = PlainChunks() if self._chunked else None
        sink.on_head(head, self._length)
        if self._sink is not sink:
            return
        if chunks is None:
            self._parse(sink, rest)
        elif rest:
            self._read_chunks(sink, chunks, rest)

    def _read_chunks(self, sink: AnswerSink, chunks: PlainChunks, data: bytes) -> None:
        """More of a chunked body. From the first chunk on that is not plain llhttp reads it."""
        piece = chunks.feed(data)
        if chunks.rest is not None:
            self._chunks = None
            if len(self._lead) != 0 and chunks.rest == LAST_CHUNK:  # llhttp knows nothing of this answer yet
                self._keep = True
                self._end(sink, piece)
                return
            if piece:
                self._parts.append(piece)
            self._parse(sink, self._lead + chunks.rest)
        elif piece:
            sink.on_piece(piece, False, data if chunks.whole else None)
        if chunks.fault and self._sink is sink:
            self._fail(OutcomeKind.PROTOCOL, chunks.fault)

    def _feed(self, data: bytes) -> None:
        """Have llhttp read; it tells the `on_...` methods at the end of this class."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._broken = self._broken or "switches protocols"
        except httptools.HttpParserError as error:
            if self._complete:
                self._surplus()  # the answer is whole; what is wrong lies behind it
            else:
                self._broken = self._broken or str(error)

    def _parse(self, sink: AnswerSink, data: bytes) -> None:
        """Read on with llhttp, and tell what there is now."""
        self._feed(data)
        if not self._told:
            if not self._headed:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._broken = self._broken or "head too large"
            elif self._broken is None:
                self._told = True
                sink.on_head(answer_head_of(self._status, self._fields), self._length)
                if self._sink is not sink:
                    return
        parts = self._parts
        if self._whole_parts is not None:
            del parts[self._whole_parts :]  # the body of an answer to nothing
        if parts:
            piece = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
        else:
            piece = b""
        if self._complete and self._broken is None:
            self._end(sink, piece)
            return
        if piece and self._told:
            sink.on_piece(piece, False)
        if self._broken is not None and self._sink is sink:
            self._fail(OutcomeKind.PROTOCOL, self._broken)

    def eof_received(self) -> bool:  # noqa: D102
        # A worker that has closed its side has ended its answer; waiting for our own unsent bytes would be in vain.
        self._ended("closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self.lost = True
        self._ended("closed the connection" if exc is None else "reset the connection", exc)
        self._pool.discard(self)

    def _ended(self, how: str, exc: Exception | None = None) -> None:
        sink = self._sink
        self.lost = True
        if sink is None:
            return
        if self._until_eof and self._told and exc is None:
            self._end(sink, b"")
        else:
            self._fail(OutcomeKind.RESET, how)

    def _fail(self, kind: OutcomeKind, detail: str) -> None:
        sink = self._sink
        stale = self.reused and not self._answered and clock() - self.taken_at < STALE_WINDOW_S
        self.abort()
        self._pool.discard(self)
        if sink is not None:
            sink.on_failed(kind, detail, stale)

    def _end(self, sink: AnswerSink, piece: bytes) -> None:
        self._sink = None
        transport = self._transport
        # An answer before the end of the question leaves half a request in the pipe.
        if self._keep and not self.lost and transport is not None and not transport.get_write_buffer_size():
            self.reused = True
            self._pool.give_back(self)
        else:
            self.abort()
            self._pool.discard(self)
        sink.on_piece(piece, True)

    def _surplus(self) -> None:
        self._keep = False
        self._pool.distrust()

    # -- what llhttp does -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins; behind a whole answer it is one that nobody asked for."""
        if self._complete:
            self._surplus()
            if self._whole_parts is None:
                self._whole_parts = len(self._parts)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; trailers and what follows a whole answer go nowhere."""
        if not self._headed:
            self._fields.append((name.lower(), value))
            self._field_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """A head is whole: interim ones are counted and dropped."""
        if self._headed:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim += 1
            self._fields = []
            if self._interim > MAX_INTERIM or status == 101:
                self._broken = "too many interim answers" if status != 101 else "switches protocols"
            return
        self._status = status
        self._headed = True
        if self._field_bytes > MAX_HEAD_BYTES:
            self._broken = "head too large"
            return
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0") or not 200 <= status <= 599 or len(self._fields) > MAX_FIELDS:
            self._broken = f"HTTP/{version} {status} with {len(self._fields)} header fields"
            return
        chunked = False
        for name, value in self._fields:
            if name == b"content-length":
                self._length = int(value)  # llhttp has refused everything but one number
            elif name == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked" or version == "1.0":
                    self._broken = "transfer encoding other than chunked"
                    return
                chunked = True
        if self._bodyless or status in (204, 304):
            self._length = None
            self._complete = self._bodyless
        else:
            self._chunked = chunked
            self._until_eof = self._length is None and not chunked

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._headed and not self._complete:
            self._complete = True
            self._keep = self._parser.should_keep_alive()
