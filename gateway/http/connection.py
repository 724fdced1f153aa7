"""One client connection: reads requests, hands them to the gate, and never stops listening for the client's end.

Reading is not paused while a request runs: bytes that come early are held up to a bound (`limits.pipelined_bytes`),
then dropped and the connection ends after the current answer. So a client that leaves is noticed in every state.
A client that closes its side has left (half-close is an abort, as documented).
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

from gateway.admission import Admitted
from gateway.errors import ErrorAnswer, ErrorCode
from gateway.local_answers import LocalAnswer
from gateway.records import RequestRecord, Terminal, refused_as

from .answer_fields import Fields
from .answers import CONTINUE, HeadOnly, own_answer
from .calls import admit
from .faults import RequestFault
from .headers import request_id_of
from .large_body import read_in_place
from .relay import Exchange
from .request_reader import RequestReader
from .sweep import NEVER
from .uptake import WRITE_HIGH_BYTES, WRITE_LOW_BYTES, bound_unsent, unread, untaken

if TYPE_CHECKING:
    from .messages import RawRequest
    from .server import DataServer

PIPELINE_MAX: Final = 16
"""Requests answered in one go from bytes that came early; after that the connection ends."""
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
"""What is still read after a refusal, and how long its end is waited for: closing at once could destroy the answer on
its way. Of a body that is too large twice what is allowed is read: many clients read nothing before they have
sent everything."""
FIRST_S: Final = 1.0  # a draining server waits so long for the first request of a connection
STALL_LOOKS: Final = 4
"""How often in `write_stall_s` is looked whether a client whose buffer is full takes any bytes."""


class Phase(IntEnum):
    """What a connection waits for; each but the busy one has a deadline of its own."""

    IDLE = 0  # a request's first byte
    HEAD = 1
    BODY = 2
    BUSY = 3  # an answer: the exchange's deadlines hold
    LINGER = 4  # the client's end, after the last answer
    CLOSED = 5


class ClientConnection(asyncio.Protocol):
    """Protocol of one accepted connection."""

    __slots__ = (
        "_asked", "_exchange", "_in_place", "_linger_until", "_phase", "_raw", "_reader", "_reusable", "_surplus_left",
        "_transport", "_turns", "_untaken", "due", "paused_at", "server", "write",
    )  # fmt: skip

    def __init__(self, server: DataServer, *, secure: bool = False) -> None:
        self.server = server
        self.due = NEVER
        self.paused_at: float | None = None
        self._reader = RequestReader(server.limits, secure=secure)
        self._exchange: Exchange | None = None
        self._phase = Phase.IDLE
        self._reusable = True
        self._raw: RawRequest | None = None  # read, and not judged yet
        self._asked = False
        self._in_place = False
        self._turns = 0
        self._surplus_left = LINGER_BYTES
        self._linger_until = 0.0
        self._untaken = 0

    @property
    def reusable(self) -> bool:
        """Whether another request may follow the current one."""
        return self._reusable and not self.server.draining

    @property
    def busy(self) -> bool:
        """An answer is being waited for or written."""
        return self._phase is Phase.BUSY

    # -- what the loop does -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        server = self.server
        if not server.admit(self):
            self._phase = Phase.CLOSED
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self._reader.peer = peer[0] if isinstance(peer, tuple) else ""
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        bound_unsent(self._transport)
        server.sweeper.add(self, server.limits.header_s)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        phase = self._phase
        if phase is not Phase.IDLE and phase >= Phase.BUSY:
            self._early(data)
            return
        self._turns = 0
        try:
            request = self._reader.feed(data)
        except RequestFault as fault:
            self._reject(fault.answer)
            return
        if request is not None:
            self._serve(request)
        else:
            self._unfinished()

    def room(self) -> memoryview | None:
        """Where to read the next bytes to, if they are a large body's; `put` then tells how many came."""
        return self._reader.room() if self._phase is Phase.BODY else None

    def put(self, count: int) -> None:
        """So many bytes were read to where `room` had said."""
        self._reader.put(count)

    def eof_received(self) -> bool:  # noqa: D102
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._gone()
        self.server.sweeper.remove(self)
        self.server.forget(self)

    def pause_writing(self) -> None:  # noqa: D102
        self.paused_at = self.server.sweeper.now
        self._untaken = untaken(self._transport)
        self.due_by(self.paused_at + self.server.limits.write_stall_s / STALL_LOOKS)
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:  # noqa: D102
        self.paused_at = None
        if self._exchange is not None:
            self._exchange.resume()

    def on_due(self, now: float) -> None:
        """A deadline has passed."""
        limits = self.server.limits
        phase = self._phase
        if self.paused_at is not None and self._stalled(now):
            self._gone("write_stall")
            self._abort()
        elif phase is Phase.BUSY:
            exchange = self._exchange
            due = NEVER if exchange is None else exchange.check(now)
            if self._phase is Phase.BUSY and self._exchange is exchange:
                self._set_due(due)
        elif phase is Phase.HEAD:
            self._reject(_late("head", "timeouts.header_s", limits.header_s))
        elif phase is Phase.BODY:
            self._reject(_late("body", "timeouts.body_s", limits.body_s))
        elif phase is Phase.IDLE:
            self._close()
        else:
            self._abort()

    def _set_due(self, due: float) -> None:
        """Look again at `due`, or sooner when the client has to take bytes."""
        if self.paused_at is not None:
            due = min(due, self.server.sweeper.now + self.server.limits.write_stall_s / STALL_LOOKS)
        self.due = due

    def _stalled(self, now: float) -> bool:
        """Whether the client has taken nothing for too long. `paused_at` moves on with the bytes that it takes."""
        left = untaken(self._transport)
        if left < self._untaken:
            self._untaken, self.paused_at = left, now
            return False
        return self.paused_at is not None and now >= self.paused_at + self.server.limits.write_stall_s

    # -- reading --------------------------------------------------------------------------------------------------

    def _unfinished(self) -> None:
        """Part of a request is there: the deadline of what is missing begins when that part does."""
        reader, server = self._reader, self.server
        if reader.in_body:
            if self._phase is not Phase.BODY:
                self._phase = Phase.BODY
                self.due = server.sweeper.now + server.limits.body_s
                if reader.wants_continue:
                    self.write(CONTINUE)
                if reader.long_way and not self._in_place:
                    self._in_place = True
                    read_in_place(self, self._transport)
        elif reader.in_head and self._phase is Phase.IDLE:
            self._phase = Phase.HEAD
            self.due = server.sweeper.now + server.limits.header_s

    def _early(self, data: bytes) -> None:
        """Bytes while an answer is out, or after the last one."""
        if self._phase is Phase.BUSY:
            if self._reusable and not self._reader.hold(data):
                self._reusable = False
        else:
            self._surplus_left -= len(data)
            if self._surplus_left < 0:
                self._abort()
            elif self._phase is Phase.LINGER:
                self.due = min(self.server.sweeper.now + LINGER_S, self._linger_until)

    def _serve(self, raw: RawRequest) -> None:
        """One request has been read: it is judged in the same turn of the loop, with all that came in it."""
        self._asked = True
        self._phase = Phase.BUSY
        self._set_due(NEVER)
        self._reusable = self._reusable and raw.keep_alive
        self._raw = raw
        self.server.turn.read(self)

    def judge(self) -> Exchange | None:
        """Decide about the request that has been read: answer it here and now, or say what shall `begin`."""
        raw, self._raw = self._raw, None
        assert raw is not None
        server = self.server
        notes = raw.notes
        asked = request_id_of(raw.header(b"x-request-id")) if notes is None else notes.request_id
        request_id = asked or server.new_request_id()
        record = RequestRecord(request_id, raw.method, raw.path, raw.peer, bytes_in=len(raw.body))
        try:
            decision = admit(server.gate, raw, request_id)
        except Exception as error:
            server.on_error(error)
            decision = ErrorAnswer(ErrorCode.INTERNAL, "The gateway failed to read the request. Report its id.")
        here = self._phase is Phase.BUSY  # the client may have left since
        if isinstance(decision, Admitted):
            exchange = Exchange(self, raw, decision, record)
            if not here:
                exchange.client_gone()
                return None
            self._exchange = exchange
            return exchange
        if isinstance(decision, LocalAnswer):
            if here:
                fields: Fields = [(b"content-type", decision.content_type.encode("latin-1")), *decision.headers]
                self._answer(raw, decision.status, fields, decision.body, request_id)
            return None
        body = decision.body()
        record.status = decision.status
        record.reason = decision.code.value
        record.bytes_out = 0 if raw.method == "HEAD" else len(body)
        record.outcome = refused_as(decision.status)
        server.telemetry.finished(record)
        if here:
            self._answer(raw, decision.status, decision.head_fields(), body, request_id)
        return None

    def _answer(self, raw: RawRequest, status: int, fields: Fields, body: bytes, request_id: str) -> None:
        """Answer here and now."""
        keep_alive = raw.keep_alive and self.reusable
        bodyless = raw.method == "HEAD"
        self.write(own_answer(status, fields, request_id, body, keep_alive, http10=raw.http10, bodyless=bodyless))
        self.answered(keep_alive)

    def _reject(self, answer: ErrorAnswer) -> None:
        """What came is no request, too much or too late: say so and end the connection."""
        server, status, body, bodyless = self.server, answer.status, answer.body(), self._reader.bodyless
        request_id = server.new_request_id()
        record = RequestRecord(request_id, "", "", self._reader.peer, status=status, outcome=Terminal.CLIENT_ERROR)
        record.reason = answer.code.value
        record.bytes_out = 0 if bodyless else len(body)
        self.write(own_answer(status, answer.head_fields(), request_id, body, keep_alive=False, bodyless=bodyless))
        server.telemetry.finished(record)
        if answer.code is ErrorCode.REQUEST_TOO_LARGE:
            self._surplus_left += 2 * server.limits.body_bytes
        self._linger()

    # -- what the exchange does -------------------------------------------------------------------------------------

    def due_by(self, due: float) -> None:
        """Look again at `due` at the latest."""
        if due < self.due:
            self.due = due

    def head_only(self) -> None:
        """The exchange that begins answers HEAD: whatever it writes, its head goes out, and nothing follows."""
        self._reusable = False
        self.write = HeadOnly(self.write)

    def write_both(self, head: bytes, body: bytes) -> None:
        """A whole answer whose long body is not copied behind its head."""
        self._transport.writelines((head, body))

    def answered(self, keep_alive: bool) -> None:
        """The answer has been written whole; go on with the next request, or end."""
        self._exchange = None
        if self._phase is not Phase.BUSY:
            return
        if not keep_alive or self.server.draining:
            self._close()
            return
        self._phase = Phase.IDLE
        self._set_due(self.server.sweeper.now + self.server.limits.idle_s)
        if self._reader.held:
            self._advance()
        else:
            self._reader.restart(self.server.limits)

    def break_off(self, *, flush: bool) -> None:
        """The answer ends without having been complete: no final chunk, so that nobody takes it for whole."""
        self._exchange = None
        if flush:
            self._close()
        else:
            self._abort()

    def shut_down(self) -> None:
        """The process ends: idle connections close, a running answer is cut."""
        if self._exchange is not None:
            self._exchange.shut_down()
        else:
            self._close()

    def kill(self) -> None:
        """End now, whatever is still on its way."""
        self._gone("shutting_down")
        self._abort()

    def broken(self) -> None:
        """Something failed here that never should: nobody knows what the client may be told any more."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone(ErrorCode.INTERNAL.value, Terminal.INTERNAL)
        self._abort()

    def close_if_idle(self) -> None:
        """A draining server keeps no connection that does nothing. One on which a request begins, or may be on its way
        because it was made for one, gets that answer first."""
        if self._phase is Phase.IDLE and not self._asked:
            self.due_by(self.server.sweeper.now + FIRST_S)
        elif self._phase is Phase.IDLE and not unread(self._transport):
            self._close()

    # -- moving on --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve the next of what came early."""
        self._turns += 1
        if self._turns > PIPELINE_MAX:
            self._reusable = False
        try:
            request = self._reader.resume(self.server.limits)
        except RequestFault as fault:
            self._reject(fault.answer)
            return
        if request is None:
            self._unfinished()
        else:
            self._serve(request)

    def _gone(self, reason: str = "disconnected") -> None:
        """The client has left, or counts as such."""
        exchange, self._exchange = self._exchange, None
        self._phase = Phase.CLOSED if self._phase is not Phase.LINGER else Phase.LINGER
        if exchange is not None:
            exchange.client_gone(reason)
            self._abort()

    def _linger(self) -> None:
        """End after an answer that the client has not asked for: it may still be sending."""
        self._phase = Phase.LINGER
        now = self.server.sweeper.now
        self._linger_until = now + self.server.limits.body_s
        self.due = min(now + LINGER_S, self._linger_until)
        transport = self._transport
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _close(self) -> None:
        """End when what was written has been sent; not later than a stalled reader may take."""
        self._phase = Phase.LINGER
        self.due = self._linger_until = self.server.sweeper.now + self.server.limits.write_stall_s
        self._transport.close()

    def _abort(self) -> None:
        self._phase = Phase.CLOSED
        self._transport.abort()


def _late(what: str, knob: str, limit_s: float) -> ErrorAnswer:
    message = f"The request's {what} was not there after {limit_s:g} s ({knob}). Send it faster, or ask for more time."
    return ErrorAnswer(ErrorCode.REQUEST_TIMEOUT, message)
