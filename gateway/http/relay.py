"""One request over all its attempts: a callback state machine from admission to its one end.

reading (`ClientConnection`) -> queued -> [connecting -> waiting -> relaying] (`Attempt`, once a lease) -> done.
The lease is settled in one place, `_settle`; the request ends in one place, `_end`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import ErrorAnswer, ErrorCode, dialect_of, sse_error_event
from gateway.records import RequestRecord, Terminal
from gateway.scheduling.listeners import Owner
from gateway.scheduling.model import Lease, Outcome, OutcomeKind, Refuse, Ticket

from . import calls
from .answer_fields import UNKNOWN
from .answers import answer_head, at_once, chunk, route_fields, timing_fields
from .attempt import Attempt
from .continuation import CONTINUED_AFTER, Continuation, ContinuedAttempt, edits_of
from .headers import field_lines, request_head
from .patience import ASKED, patience_of, whole_answer_s
from .refusals import particular_of, refusal_of
from .uptake import WRITE_LOW_BYTES
from .verdicts import DEADLY, FAILURE_CODES, PASSED_ON, RETRYABLE, TIMEOUTS, Failure, message_of

if TYPE_CHECKING:
    from gateway.admission import Admitted

    from .connection import ClientConnection
    from .messages import RawRequest
    from .server import DataServer
    from .upstream import UpstreamPool


class Exchange(Owner):
    """The dispatcher's sink for one admitted request, and the owner of its lease, its record and its answer."""

    __slots__ = (
        "_ended", "_failure", "_lease", "_over", "_pool", "_started", "_ticket", "_total_due", "admitted", "attempt",
        "bodyless", "connection", "edited", "first_byte_s", "id_field", "patience", "raw", "record", "server",
    )  # fmt: skip

    def __init__(
        self, connection: ClientConnection, raw: RawRequest, admitted: Admitted, record: RequestRecord
    ) -> None:
        self.connection = connection
        self.server: DataServer = connection.server
        self.raw = raw
        self.admitted = admitted
        self.record = record
        self.id_field = record.request_id.encode("ascii")
        self._ticket: Ticket | None = None
        self._lease: Lease | None = None
        self._pool: UpstreamPool | None = None
        self.attempt: Attempt | None = None
        self._failure: Failure | None = None
        self._over = False
        self._ended = 0.0
        self.edited = edits_of(admitted) if admitted.usage_injected or admitted.continue_stream else None
        request, patience = admitted.request, patience_of(admitted.timeouts)
        asked = ASKED[admitted.endpoint]
        self.bodyless = raw.method == "HEAD"
        if self.bodyless:
            connection.head_only()
        self.patience = patience
        whole = asked.generates and not admitted.stream
        self.first_byte_s = whole_answer_s(patience.ttft_s, request) if whole else patience.ttft_s
        self._started = self.server.clock()
        left = patience.total_s
        if request.deadline is not None:
            left = min(left, request.deadline - self._started)
        self._total_due = self.server.sweeper.now + left
        record.let_in(admitted, asked.name)

    def begin(self) -> None:
        """Ask the scheduler for a place; the answer may come before this returns."""
        self.connection.due_by(self._total_due)
        ticket = calls.submit(self.server.dispatcher, self.admitted.request, self)
        if not self._over:
            self._ticket = ticket

    # -- from the dispatcher --------------------------------------------------------------------------------------

    def on_lease(self, lease: Lease) -> None:
        """There is a place at this worker."""
        if self._over:  # the client left while the decision was on its way
            self.server.dispatcher.settle(lease, Outcome(OutcomeKind.CLIENT_GONE))
            return
        self._lease = lease
        self.server.turn.leased(self)

    def ask(self) -> None:
        """Try it on the worker of the lease."""
        lease = self._lease
        if lease is None or self.attempt is not None:
            return
        record = self.record
        record.attempts += 1
        record.pool = lease.pool
        record.worker = lease.worker
        record.queue_s += lease.queued_s
        pool = self._pool = self.server.upstreams.get(lease.worker)
        if pool is None:
            self.attempt_failed(Failure(OutcomeKind.LOCAL, "the worker is gone"))
            return
        # Not one call of the class that fits: a call of a class by its name is the one that can be compiled.
        attempt = ContinuedAttempt(self, lease, pool) if record.continued else Attempt(self, lease, pool)
        self.attempt = attempt
        attempt.start()
        if self.attempt is attempt:
            self.connection.due_by(attempt.check(self.server.sweeper.now))

    def on_refused(self, refused: Refuse) -> None:
        """No place, or no further one: the request ends with what is known best."""
        if self._over:
            return
        class_name = self.admitted.classified.class_name
        particular = particular_of(refused, class_name, self._deadline_s, self.server.longest_context)
        answer, status, outcome = refusal_of(refused, self._failure, dialect_of(self.raw.path), particular)
        self._refuse(answer, status, outcome, refused.reason.value)

    # -- from the attempt -----------------------------------------------------------------------------------------

    def attempt_failed(self, failure: Failure) -> None:
        """Nothing went downstream: hand the lease back and hear whether there is another try."""
        self.attempt = None
        self._failure = failure
        outcome = Outcome(failure.kind, failure.status, failure.retry_after_s)
        if failure.kind is OutcomeKind.RESET and self._deadly():
            self._settle(outcome, failure.detail)
            answer = ErrorAnswer(ErrorCode.UPSTREAM_RESET, DEADLY, dialect=dialect_of(self.raw.path))
            self._refuse(answer, 500, Terminal.UPSTREAM_ERROR, ErrorCode.UPSTREAM_RESET.value)
            return
        if failure.kind in RETRYABLE and failure.code is not ErrorCode.SHUTTING_DOWN:
            self.connection.due_by(self._total_due)
            self._settle(outcome, failure.detail, retry=True)
            return
        self._settle(outcome, failure.detail)
        code = failure.code or FAILURE_CODES.get(failure.kind, ErrorCode.INTERNAL)
        answer = ErrorAnswer(code, self._message(code, failure.detail), dialect=dialect_of(self.raw.path))
        terminal = Terminal.TIMEOUT if failure.kind in TIMEOUTS else Terminal.EVICTED
        self._refuse(answer, answer.status, terminal, code.value)

    def attempt_broke(self, kind: OutcomeKind, code: ErrorCode, detail: str, *, event: bool) -> None:
        """The answer broke off after its beginning went out: the client must be able to tell."""
        deadly = kind is OutcomeKind.RESET and self._deadly()
        if event and not deadly and kind in CONTINUED_AFTER and self._continue(kind, code, detail):
            return
        if event:
            self._write_error(ErrorAnswer(code, self._message(code, detail), dialect=dialect_of(self.raw.path)))
        self._finish(kind, detail, Terminal.TIMEOUT if kind in TIMEOUTS else Terminal.UPSTREAM_ERROR, code.value)
        self.connection.break_off(flush=event)

    def _message(self, code: ErrorCode, detail: str) -> str:
        limits = {ErrorCode.TTFT_TIMEOUT: self.first_byte_s, ErrorCode.DEADLINE_EXCEEDED: self._deadline_s}
        return message_of(code, detail, limits.get(code, self.patience.token_gap_s), stream=self.admitted.stream)

    @property
    def _deadline_s(self) -> float:
        asked_s = self.admitted.classified.deadline_s
        return self.patience.total_s if asked_s is None else asked_s

    def _deadly(self) -> bool:
        """A worker was lost under this request: whether it shall be the last one."""
        return self._lease is not None and self.server.on_reset(self.raw.body, self._lease.worker)

    def _write_error(self, answer: ErrorAnswer) -> None:
        data = sse_error_event(answer)
        self.connection.write(data if self.raw.http10 else chunk(data))

    def _continue(self, kind: OutcomeKind, code: ErrorCode, detail: str) -> bool:
        """Have another worker go on with a stream that broke off; False where it cannot."""
        edited, attempt, record = self.edited, self.attempt, self.record
        if attempt is None or not isinstance(edited, Continuation) or not edited.resume():
            return False
        record.continued = True
        record.bytes_out += attempt.sent_bytes
        record.output_tokens = edited.tokens
        self.attempt = None
        self._failure = Failure(kind, detail, code=code)
        self.connection.due_by(self._total_due)
        self._settle(Outcome(kind, attempt.status), detail, retry=True)
        return True

    def attempt_done(self, kind: OutcomeKind, reason: str = "") -> None:
        """The answer is complete and has been written."""
        if kind is OutcomeKind.OK:
            terminal = Terminal.UPSTREAM_ERROR if reason else Terminal.OK
        else:
            terminal = Terminal.CLIENT_ERROR if kind in PASSED_ON else Terminal.UPSTREAM_ERROR
        self._finish(kind, reason, terminal, reason or ("" if terminal is Terminal.OK else kind.value))
        self.connection.answered(self._keep_alive)

    def first_token(self, lease: Lease) -> None:
        """The first token went out."""
        calls.first_token(self.server.dispatcher, lease)
        if not self.record.continued:
            self.record.ttft_s = self.server.clock() - self._started
            calls.heard(self.server.telemetry, self.record)

    def progress(self, lease: Lease, events: int, elapsed_s: float) -> None:
        """So many more events, in a stretch of `elapsed_s` (0: not a stretch to be measured)."""
        if events:
            calls.progress(self.server.dispatcher, lease, events)
            if elapsed_s > 0.0:
                calls.gap(self.server.telemetry, lease.pool, self.record.class_name, elapsed_s / events)

    def question_head(self, pool: UpstreamPool, body: bytes) -> bytes:
        """The head of the request as this worker gets it, with `body` behind it."""
        admitted, raw = self.admitted, self.raw
        parts = admitted.body_parts
        length = UNKNOWN
        if parts:
            length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        elif raw.method == "POST":
            length = 0
        return request_head(
            pool.start_of(raw.method, admitted.path),
            raw.headers,
            request_id=self.id_field,
            authorization=pool.authorization,
            forward_authorization=admitted.forward_authorization,
            length=length,
            forwarded=None if raw.notes is None else raw.notes.forwarded,
            body=body,
        )

    def head(self, status: int, lines: bytes, *, length: int) -> bytes:
        """The head of an answer of which `length` is known, or UNKNOWN and it ends by its framing."""
        self.record.status = status
        http10 = self.raw.http10
        if http10 and length == UNKNOWN:
            self.raw.keep_alive = False  # the end of the connection is then the end of the body
        return answer_head(
            status,
            lines,
            self.id_field,
            self._own_fields(),
            length=length,
            chunked=length == UNKNOWN and not http10,
            keep_alive=self._keep_alive,
            http10=http10,
        )

    def answer(self, status: int, lines: bytes, body: bytes, length: int) -> None:
        """A whole answer at once. `length` UNKNOWN: one that must not name it (304, HEAD)."""
        self.record.status = status
        if self.bodyless:
            body = b""
        self.record.bytes_out += len(body)
        short = len(body) < WRITE_LOW_BYTES
        head = answer_head(
            status,
            lines,
            self.id_field,
            self._own_fields(),
            length=length,
            chunked=False,
            keep_alive=self._keep_alive,
            http10=self.raw.http10,
            body=body if short else b"",
        )
        if short:
            self.connection.write(head)
        else:
            self.connection.write_both(head, body)

    # -- from the connection --------------------------------------------------------------------------------------

    def client_gone(self, reason: str = "disconnected", outcome: Terminal = Terminal.CANCELLED) -> None:
        """Nobody waits any more: stop the engine and give the place back, in whatever state this is."""
        if self._over:
            return
        attempt = self.attempt
        if attempt is not None:
            if outcome is Terminal.CANCELLED and self.connection.paused_at is None and attempt.wind_up():
                return  # it left at `[DONE]`, as some clients do
            attempt.abort()
        if self._lease is not None:
            self._finish(OutcomeKind.CLIENT_GONE, reason, outcome, reason)
            return
        ticket = self._ticket
        self._end(outcome, reason)
        if ticket is not None:
            self.server.dispatcher.cancel(ticket)

    def shut_down(self) -> None:
        """The process ends before the answer does."""
        attempt = self.attempt
        if attempt is not None:
            attempt.give_up(OutcomeKind.LOCAL, "shutting down", ErrorCode.SHUTTING_DOWN)
        elif self._ticket is not None:
            self._leave_queue(self._ticket, ErrorCode.SHUTTING_DOWN, Terminal.EVICTED)

    def pause(self) -> None:
        """The client's buffer is full."""
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        """The client reads again."""
        if self.attempt is not None:
            self.attempt.resume()

    def check(self, now: float) -> float:
        """Act on deadlines that have passed; when to come back."""
        attempt = self.attempt
        if now >= self._total_due:
            if attempt is not None:
                attempt.give_up(OutcomeKind.DEADLINE, "the request's time is over", ErrorCode.DEADLINE_EXCEEDED)
            elif self._ticket is not None:
                self._leave_queue(self._ticket, ErrorCode.DEADLINE_EXCEEDED, Terminal.TIMEOUT)
            return now
        return min(self._total_due, attempt.check(now)) if attempt is not None else self._total_due

    def _leave_queue(self, ticket: Ticket, code: ErrorCode, terminal: Terminal) -> None:
        self._over = True  # whatever the scheduler still has to say comes too late
        self.server.dispatcher.cancel(ticket)
        answer = ErrorAnswer(code, self._message(code, ""), dialect=dialect_of(self.raw.path))
        self._refuse(answer, answer.status, terminal, code.value)

    # -- the one end ----------------------------------------------------------------------------------------------

    @property
    def _keep_alive(self) -> bool:
        return self.raw.keep_alive and self.connection.reusable

    def _own_fields(self) -> bytes:
        record, pool, rate_fields = self.record, self._pool, self.admitted.rate_fields
        if pool is None:
            lines = route_fields(record.pool, record.worker, record.class_name, record.revision, record.why)
        else:
            route = pool.routes.of(record.pool, record.worker, record.class_name, record.revision, record.why)
            if len(rate_fields) == 0 and at_once(record.queue_s, record.attempts):
                return route.at_once
            lines = route.lines
        return b"%b%b%b" % (lines, timing_fields(record.queue_s, record.attempts), rate_fields)

    def _refuse(self, answer: ErrorAnswer, status: int, outcome: Terminal, reason: str) -> None:
        if self.record.continued:  # its beginning went out: this is not the place for a status any more
            self._write_error(answer)
            self._end(outcome if outcome is Terminal.TIMEOUT else Terminal.UPSTREAM_ERROR, reason)
            self.connection.break_off(flush=True)
            return
        body = answer.body()
        self.answer(status, field_lines(answer.head_fields()), body, len(body))
        self._end(outcome, reason)
        self.connection.answered(self._keep_alive)

    def _settle(self, outcome: Outcome, detail: str, *, retry: bool = False) -> None:
        """The lease's one end."""
        lease, self._lease = self._lease, None
        assert lease is not None
        # Only these details come from a closed set, as a label must.
        result = detail if outcome.kind is OutcomeKind.CONNECT_FAILED and detail else outcome.kind
        try:
            calls.attempted(self.server.telemetry, lease.pool, lease.worker, result)
        except Exception as error:
            self.server.on_error(error)
        calls.settle(self.server.dispatcher, lease, outcome, retry)

    def _finish(self, kind: OutcomeKind, detail: str, terminal: Terminal, reason: str) -> None:
        attempt, self.attempt = self.attempt, None
        record = self.record
        if attempt is None:
            outcome = Outcome(kind, record.status or None)
        else:
            record.bytes_out += attempt.sent_bytes
            usage = attempt.usage
            before = 0
            if record.continued and isinstance(self.edited, Continuation):
                before = self.edited.tokens
                usage = usage and self.edited.sum_up(usage)
            if usage is not None:
                record.prompt_tokens = usage.prompt_tokens
                record.output_tokens = usage.output_tokens
            elif attempt.events:
                record.output_tokens = before + attempt.tokens
            outcome = Outcome(kind, attempt.status or None, None, record.prompt_tokens, record.output_tokens)
        self._settle(outcome, detail)
        self._end(terminal, reason)

    def _end(self, terminal: Terminal, reason: str) -> None:
        """The request's one end."""
        self._over = True
        self._ticket = None  # its owner is this object: the circle would wait for the collector
        record = self.record
        record.outcome = terminal
        record.reason = reason or ("continued" if record.continued else "")
        if not record.status:  # the client was told nothing
            record.status = 499 if terminal is Terminal.CANCELLED else 500
        self._ended = self.server.clock()
        record.duration_s = self._ended - self._started
        self.server.turn.ended(self)

    def tell(self) -> None:
        """Log and count it."""
        calls.finished(self.server.telemetry, self.record, self.admitted.request, self._ended)
