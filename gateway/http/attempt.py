"""One try of a request at one worker: ask, hold the answer back while it can still be replaced, then relay it.

`verdicts.py` says how an answer is read and what it means for the worker. A stream is held until its first data
event, a short answer until its end: until then the attempt can fail without the client seeing any of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from gateway.errors import ErrorCode
from gateway.scheduling.model import Lease, OutcomeKind
from gateway.usage import Usage, usage_of

from .answer_fields import UNKNOWN
from .answer_modes import ERROR, EVENTS, FIRST, OVER, RAW, WAITING, WHOLE
from .answers import HEARTBEAT, LAST_CHUNK, chunk
from .headers import retry_after_of
from .known_heads import JSON_ERROR, AnswerHead
from .sse import STREAM_KINDS, StreamKind, StreamWatcher
from .sweep import NEVER
from .verdicts import PASSED_ON, Failure, Reading, failure_kind, gave_up, refusal_kind, verdict_of
from .whole_events import ERROR_BODY_BYTES, HOLD_BYTES, WholeEvents
from .worker_connection import JOIN_BYTES, AnswerSink

if TYPE_CHECKING:
    from .relay import Exchange
    from .upstream import UpstreamPool
    from .worker_connection import UpstreamConnection

REPORT_S: Final = 0.25  # progress goes to the scheduler this often, not with each event

_NOTHING: Final[list[bytes]] = []


class Attempt(AnswerSink):
    """Reads one worker's answer for an exchange. Tells the exchange exactly one end, unless it is aborted."""

    __slots__ = (
        "_answer", "_body", "_chunked", "_first_due", "_gap_s", "_held", "_held_bytes", "_hold_due", "_length",
        "_mode", "_moved", "_pending", "_pool", "_reported", "_resent", "_started", "_sweeper", "_tail", "_task",
        "_upstream", "_watcher", "_write", "events", "exchange", "lease", "sent_bytes", "status", "usage",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, lease: Lease, pool: UpstreamPool) -> None:
        self.exchange = exchange
        self.lease = lease
        self._pool = pool
        self._sweeper = exchange.server.sweeper
        self._mode = WAITING
        self._upstream: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._resent = self._started = False  # started: the first data event has come
        self._tail: WholeEvents | None = None  # only while an event is unfinished, or where something is taken out
        self._watcher: StreamWatcher | None = None
        self._held = _NOTHING
        self._body = b""  # of a whole answer, until it is delivered
        self._held_bytes = self._pending = self.sent_bytes = self.events = self.status = 0
        self.usage: Usage | None = None
        now = self._moved = self._reported = self._sweeper.now
        self._gap_s = exchange.patience.token_gap_s
        self._first_due = now + exchange.first_byte_s
        self._hold_due = now + exchange.patience.head_hold_s

    @property
    def tokens(self) -> int:
        """How many tokens came, as far as events tell."""
        return self.events - (self._watcher.silent if self._watcher is not None else 0)

    def start(self) -> None:
        """Ask the worker, on a connection that is open or a new one."""
        connection = self._pool.take()
        if connection is not None:
            self.on_connected(connection)
        else:
            self._task = self._pool.connect(self)

    def abort(self) -> None:
        """Stop at once; the exchange hears nothing more. What went by until now is counted."""
        self._mode = OVER
        if self._watcher is not None:
            self.usage = self._watcher.usage
        if self._started and self._pending:
            self._report(self._sweeper.now)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop()

    def pause(self) -> None:
        """The client takes no more for now."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client reads again; the time it did not is not the worker's."""
        self._moved = self._sweeper.now
        self.exchange.connection.due_by(self._moved + self._gap_s)
        if self._upstream is not None:
            self._upstream.resume()

    def check(self, now: float) -> float:
        """Act on deadlines that have passed; the time to come back at the latest."""
        if self._mode == OVER:
            return NEVER  # its whole answer is there
        if not self._started and self._mode != RAW:
            if now >= self._first_due:
                self.give_up(OutcomeKind.TTFT_TIMEOUT, "no first token in time", ErrorCode.TTFT_TIMEOUT)
                return now
            if self._mode == FIRST and now >= self._hold_due:
                self._open_stream(HEARTBEAT)
                self._irregular(self._take_held(), False, 0)
            return min(self._first_due, max(self._hold_due, now))
        if self.exchange.connection.paused_at is not None:
            return now + self._gap_s
        if now >= self._moved + self._gap_s:
            self.give_up(OutcomeKind.GAP_TIMEOUT, "the stream stood still", ErrorCode.GAP_TIMEOUT)
            return now
        return self._moved + self._gap_s

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Ask."""
        self._task = None
        self._upstream = connection
        exchange = self.exchange
        body = exchange.admitted.body_parts
        short = len(body) == 1 and len(body[0]) < JOIN_BYTES
        head = exchange.question_head(self._pool, body[0] if short else b"")
        connection.ask(self, head, _NOTHING if short else body, bodyless=exchange.bodyless)

    def on_connect_failed(self, kind: OutcomeKind, detail: str) -> None:
        """No connection to this worker."""
        self._task, self._mode = None, OVER
        self.exchange.attempt_failed(Failure(kind, detail))

    def on_failed(self, kind: OutcomeKind, detail: str, stale: bool) -> None:
        """The connection ended before the answer did."""
        self._upstream = None
        if stale and not self._resent:
            self._resent = True
            self._task = self._pool.connect(self)
        elif self._mode == ERROR and self.status >= 500:
            self._engine_refused(self.status, b"")
        else:
            protocol = kind is OutcomeKind.PROTOCOL
            self.give_up(kind, detail, ErrorCode.UPSTREAM_PROTOCOL_ERROR if protocol else ErrorCode.UPSTREAM_RESET)

    def on_head(self, head: AnswerHead, length: int | None) -> None:
        """Decide by status and content type how the body is read."""
        self.status = head.status
        self._answer = head
        self._length = UNKNOWN if length is None else length
        reading = head.reading
        if reading is Reading.ERROR or reading is Reading.WHOLE:
            self._mode = ERROR if reading is Reading.ERROR else WHOLE
        elif reading is Reading.EVENTS:
            self._watcher = StreamWatcher(STREAM_KINDS.get(self.exchange.admitted.endpoint, StreamKind.CHOICES))
            self._tail = self.exchange.edited
            self._mode = FIRST
        elif reading is Reading.OPAQUE:
            self._relay()
        else:
            self.give_up(OutcomeKind.PROTOCOL, f"redirect {head.status}", ErrorCode.UPSTREAM_REDIRECT)

    def on_piece(self, piece: bytes, last: bool, framed: bytes | None = None) -> None:
        """The next bytes of the body; if they came in whole chunks these, which may go on as they came."""
        if self._mode == EVENTS:
            watcher = self._watcher
            assert watcher is not None
            events = watcher.feed(piece)
            if events:
                now = self._moved = self._sweeper.now
                self._pending += events
                if not self._started:
                    self._first_token()
                elif now - self._reported >= REPORT_S:
                    self._report(now)
            elif watcher.in_data:  # a comment is a sign of the server's life, not of the stream's
                self._moved = self._sweeper.now
            if last or watcher.open or self._tail is not None:
                self._irregular(piece, last, watcher.boundary)
            else:
                self._send(piece, False, framed)
            return
        if last:
            self._upstream = None
        if self._mode == FIRST:
            self._before_first(piece, last)
        elif self._mode == RAW:
            self._moved = self._sweeper.now
            self._send(piece, last, framed)
            if last:
                self._mode = OVER
                self.exchange.attempt_done(refusal_kind(self.status, b"") if self.status >= 400 else OutcomeKind.OK)
        elif self._mode == WHOLE:
            if last and self._held_bytes == 0:
                self._whole(piece)
                return
            self._hold(piece)
            if last:
                self._whole(self._take_held())
            elif self._held_bytes > HOLD_BYTES:
                self._relay()
        elif self._mode == ERROR:
            self._hold(piece)
            if last:
                self._engine_refused(self.status, self._take_held())
            elif self._held_bytes > ERROR_BODY_BYTES:
                if failure_kind(self.status) in PASSED_ON:
                    self._relay()
                else:
                    self._drop()
                    self._engine_refused(self.status, b"")

    # -- streams --------------------------------------------------------------------------------------------------

    def _before_first(self, piece: bytes, last: bool) -> None:
        watcher = self._watcher
        assert watcher is not None
        self._hold(piece)
        self._pending += watcher.feed(piece)
        if last:
            watcher.end()
        if watcher.error is not None and watcher.error_first:
            # Nothing was generated: the error has a status after all, and another worker may do better.
            self._drop()
            self._answer = JSON_ERROR
            self._engine_refused(watcher.error.status or 500, watcher.error.payload)
        elif self._pending or watcher.done or self._held_bytes > HOLD_BYTES:
            held = self._take_held()
            boundary = watcher.boundary + len(held) - len(piece) if watcher.boundary else 0
            if last:
                self._open_stream(b"")
                if self._pending:
                    self._first_token()
                self._irregular(held, last, boundary)
                return
            # What the client waits for goes out with its head, before anything else is made of it.
            ready = self._ready(watcher, held, boundary)
            self.sent_bytes += len(ready)
            self._open_stream(ready)
            if self._pending:
                self._first_token()
        elif last:
            self.give_up(OutcomeKind.RESET, "the stream ended before its first event", ErrorCode.UPSTREAM_RESET)

    def _ready(self, watcher: StreamWatcher, piece: bytes, boundary: int) -> bytes:
        """What of the stream may go out now that `piece` has come; the rest is kept."""
        tail = self._tail or WholeEvents()
        ready = tail.take(piece, boundary, unfinished=watcher.open)
        self._tail = None if tail.empty else tail
        return ready

    def _open_stream(self, first: bytes) -> None:
        """The head goes out, with `first` behind it; from now on there is no other worker."""
        self._mode, self._moved = EVENTS, self._sweeper.now
        self._chunked = not self.exchange.raw.http10
        self._write = self.exchange.connection.write
        self._write(self._head() + (chunk(first) if first and self._chunked else first))
        self._pause_if_full()

    def _head(self) -> bytes:
        return self.exchange.head(self.status, self._answer.lines, length=UNKNOWN)

    def _first_token(self) -> None:
        self._started = True
        self.exchange.first_token(self.lease)
        self.exchange.connection.due_by(self._sweeper.now + self._gap_s)
        self._report(self._sweeper.now, quiet=True)

    def _report(self, now: float, *, quiet: bool = False) -> None:
        """Tell the scheduler and the histogram how far the stream is."""
        events, self._pending = self._pending, 0
        if not quiet:
            self.exchange.progress(self.lease, events, now - self._reported)
        elif events > 1:
            self.exchange.progress(self.lease, events - 1, 0.0)
        self._reported = now
        self.events += events

    def _irregular(self, piece: bytes, last: bool, boundary: int) -> None:
        """Send whole events, keep an unfinished one; at the end judge the stream by its events."""
        watcher = self._watcher
        assert watcher is not None
        if not last:
            self._send(self._ready(watcher, piece, boundary), False)
            return
        tail = self._tail or WholeEvents()
        ready = tail.take(piece, boundary, unfinished=watcher.open)
        self._upstream, self._mode = None, OVER
        watcher.end()
        if self._pending:
            self._report(self._sweeper.now)
        self.usage = watcher.usage
        exchange, verdict = self.exchange, verdict_of(watcher)
        exchange.record.finish_reason = watcher.finish_reason
        if verdict is not None and not tail.failed:
            self._send(ready + tail.rest(), True)
            exchange.attempt_done(verdict[0], verdict[1])
        else:
            self._send(ready, False)
            kind, why = verdict or (OutcomeKind.RESET, "stream_incomplete")
            exchange.attempt_broke(kind, ErrorCode.UPSTREAM_RESET, why, event=not tail.torn)

    def _hold(self, piece: bytes) -> None:
        if piece:
            if self._held_bytes == 0:
                self._held = []
            self._held.append(piece)
            self._held_bytes += len(piece)

    def _take_held(self) -> bytes:
        held, self._held, self._held_bytes = b"".join(self._held), _NOTHING, 0
        return held

    def _whole(self, body: bytes) -> None:
        """A complete answer that was held: it will be delivered in this turn of the loop."""
        self._mode = OVER
        self._body = body
        self.exchange.server.turn.whole(self)

    def deliver(self) -> bool:
        """Send the whole answer on in one piece; False where it is not wanted, or is none to be sent."""
        exchange, body = self.exchange, self._body
        if exchange.attempt is not self:  # the client has left since
            return False
        if gave_up(body):
            exchange.attempt_failed(Failure(OutcomeKind.SERVER_ERROR, "engine_abort", 500))
            return False
        self.usage = usage_of(body)
        length = UNKNOWN if self.status == 304 or exchange.bodyless else len(body)
        exchange.answer(self.status, self._answer.lines, body, length)
        return True

    def _relay(self) -> None:
        """Too long to hold, or not to be read: relay it as it comes."""
        self._mode, self._started = RAW, True
        exchange = self.exchange
        self._chunked = self._length == UNKNOWN and not exchange.raw.http10
        self._write = exchange.connection.write
        self._moved = self._sweeper.now
        exchange.connection.due_by(self._moved + self._gap_s)
        self._write(exchange.head(self.status, self._answer.lines, length=self._length))
        self._send(self._take_held(), False)
        self._pause_if_full()

    def _engine_refused(self, status: int, body: bytes) -> None:
        """A whole answer of 400 and more, or an error event in its place."""
        self._mode = OVER
        kind, exchange = refusal_kind(status, body), self.exchange
        if kind in PASSED_ON:
            exchange.answer(status, self._answer.lines + b"x-should-retry: false\r\n", body, len(body))
            exchange.attempt_done(kind)
        else:
            wait_s = retry_after_of(self._answer.fields, time.time())
            exchange.attempt_failed(Failure(kind, f"status {status}", status, wait_s))

    def _pause_if_full(self) -> None:
        """The client may not have read the answer before this one: its buffer was full when this one began."""
        if self.exchange.connection.paused_at is not None:
            self.pause()

    def _send(self, data: bytes, last: bool, framed: bytes | None = None) -> None:
        self.sent_bytes += len(data)
        if self._chunked:
            if framed is not None:
                data = framed
            elif data:
                data = chunk(data)
            if last:
                data = data + LAST_CHUNK  # compiled, `+=` would look for a way to do it in place
        if len(data) != 0:
            self._write(data)

    def _drop(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def wind_up(self) -> bool:
        """End a stream well of which nothing is missing but the end of its framing; False: it is not that far."""
        if self._mode != EVENTS or self._watcher is None or not self._watcher.complete:
            return False
        self._drop()
        self._irregular(b"", True, 0)
        return True

    def give_up(self, kind: OutcomeKind, detail: str, code: ErrorCode) -> None:
        """Stop asking. With nothing sent that is a failure; otherwise the client sees the answer break off."""
        if self.wind_up():
            return
        sent = self._mode in (EVENTS, RAW)
        events = self._mode == EVENTS and not (self._tail is not None and self._tail.torn)
        self.abort()
        if not sent:
            self.exchange.attempt_failed(Failure(kind, detail, code=code))
            return
        self.exchange.attempt_broke(kind, code, detail, event=events)
