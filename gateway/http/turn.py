"""What one turn of the loop does for many requests: step by step, not request by request.

A small request runs once through some 280 KB of code. Done for one request after the other, each finds the processor's
caches full of the end of the one before. Done step by step for all that came in one turn, all but the first find code
and branches where the one before has left them: a fifth of a small request's processor time under load
(docs/benchmarks.md). Where requests come one by one nothing changes.

Only two things wait for the turn: a request that has been read, and a worker's whole answer. Bytes of streams go on as
they come. All else that is collected here is collected while a turn runs, and done before it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.scheduling.model import OutcomeKind

if TYPE_CHECKING:
    from .attempt import Attempt
    from .connection import ClientConnection
    from .relay import Exchange


class Turn:
    """The work of the current turn. A connection has at most `PIPELINE_MAX` entries in a list, and mostly one: the next
    of its early requests comes in when the one before has been answered.

    What goes wrong in one entry is told to `on_error` and ends that connection; the others go on.
    """

    __slots__ = (
        "_answers", "_asks", "_due", "_ends", "_loop", "_on_error", "_records", "_requests", "_running", "_waits",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, on_error: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._on_error = on_error
        self._due = self._running = False
        self._answers: list[Attempt] = []
        self._ends: list[Exchange] = []
        self._requests: list[ClientConnection] = []
        self._waits: list[Exchange] = []
        self._asks: list[Exchange] = []
        self._records: list[Exchange] = []

    # -- what waits for the turn ----------------------------------------------------------------------------------

    def read(self, connection: ClientConnection) -> None:
        """A request has been read: it will be judged."""
        self._requests.append(connection)
        self._call()

    def whole(self, attempt: Attempt) -> None:
        """A worker's whole answer is there: it will be delivered."""
        self._answers.append(attempt)
        self._call()

    def _call(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self.run)

    # -- what is collected while it runs --------------------------------------------------------------------------

    def leased(self, exchange: Exchange) -> None:
        """There is a place for it at a worker: ask, after all others have been placed."""
        if self._running:
            self._asks.append(exchange)
        else:
            exchange.ask()

    def ended(self, exchange: Exchange) -> None:
        """It has come to its end: tell, after all else that clients and workers wait for."""
        if self._running:
            self._records.append(exchange)
            return
        try:
            exchange.tell()
        except Exception as error:  # the exchange goes on: its connection has to hear of the end as well
            self._on_error(error)

    # -- the steps ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do all of it. Answers first: each makes room for a request that waits."""
        self._due = False
        self._running = True
        try:
            self._deliver()
            self._finish()
            self._judge()
            self._begin()
            self._ask()
            self._tell()
        finally:
            self._running = False

    # The steps are written out: which method is called is then known when the core is compiled. What a step adds to its
    # own list is done with it: the next of a client's early requests, the second try of one that failed at once.

    def _deliver(self) -> None:
        answers, ends = self._answers, self._ends
        at = 0
        while at < len(answers):
            attempt = answers[at]
            at += 1
            exchange = attempt.exchange
            try:
                if attempt.deliver():
                    ends.append(exchange)
            except Exception as error:
                self._broke(exchange.connection, error)
        answers.clear()

    def _finish(self) -> None:
        ends = self._ends
        at = 0
        while at < len(ends):
            exchange = ends[at]
            at += 1
            try:
                exchange.attempt_done(OutcomeKind.OK)
            except Exception as error:
                self._broke(exchange.connection, error)
        ends.clear()

    def _judge(self) -> None:
        requests, waits = self._requests, self._waits
        at = 0
        while at < len(requests):
            connection = requests[at]
            at += 1
            try:
                exchange = connection.judge()
                if exchange is not None:
                    waits.append(exchange)
            except Exception as error:
                self._broke(connection, error)
        requests.clear()

    def _begin(self) -> None:
        waits = self._waits
        at = 0
        while at < len(waits):
            exchange = waits[at]
            at += 1
            try:
                exchange.begin()
            except Exception as error:
                self._broke(exchange.connection, error)
        waits.clear()

    def _ask(self) -> None:
        asks = self._asks
        at = 0
        while at < len(asks):
            exchange = asks[at]
            at += 1
            try:
                exchange.ask()
            except Exception as error:
                self._broke(exchange.connection, error)
        asks.clear()

    def _tell(self) -> None:
        records = self._records
        at = 0
        while at < len(records):
            exchange = records[at]
            at += 1
            try:
                exchange.tell()
            except Exception as error:
                self._on_error(error)
        records.clear()

    def _broke(self, connection: ClientConnection, error: Exception) -> None:
        self._on_error(error)
        try:
            connection.broken()
        except Exception as another:
            self._on_error(another)
