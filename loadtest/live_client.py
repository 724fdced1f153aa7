"""Sends recorded requests to a running server at their times, whatever becomes of those before, and times the answers.

Open-loop: a request that is due is sent. What is bounded is said in the request's outcome: so many in flight, so much
time for each. Everything that is decided or counted is elsewhere, as functions of what is measured here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from loadtest.answer_stream import Answer, StreamError
from loadtest.live_figures import Goal, Outcome, Record, Report, Spread, judge, report
from loadtest.live_target import ERROR_BYTES, Target, error_of, named, why
from loadtest.prompt_text import Book
from loadtest.traces import TraceRequest

LEAD_S: Final = 0.1  # from the start to the first request, so that it is not late
TICK_S: Final = 0.1
BYTES_IN_FLIGHT: Final = 512 << 20  # of prompts: few are as long as that


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a run is."""

    planned: int
    ended: int
    in_flight: int
    answered: int
    refused: int
    other: int  # failed, timed out, not sent


Watch = Callable[[Seen], None]
Ended = Callable[[Record], None]


class Player:
    """One run: sends, reads, keeps a record of each request."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        book: Book,
        salt: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: not the loop's, which may stand still while the loop works, and counts milliseconds."""
        self._session = session
        self._clock = clock
        self._target = target
        self._book = book
        self._salt = salt
        self._where = f"{target.url}/v1/chat/completions"
        self._headers = target.headers
        self._gaps, self._lag = Spread(), Spread()
        self._running: dict[asyncio.Task[None], tuple[Record, int]] = {}  # and the bytes of its prompt
        self._bytes = 0
        self._records: list[Record] = []
        self._idle = asyncio.Event()
        self._fault: BaseException | None = None  # of ours: a run with one tells nothing
        self._ended = 0
        self._peak = 0
        self._counts = dict.fromkeys(Outcome, 0)

    async def play(
        self,
        requests: Sequence[TraceRequest],
        goal: Goal,
        seconds: float,
        *,
        stop: asyncio.Event,
        ended: Ended = lambda _: None,
        watch: Watch = lambda _: None,
    ) -> Report:
        """Send them all, wait for all that comes, and tell. When `stop` is set, what is there so far."""
        clock = self._clock
        self._records = [
            Record(index, request.arrival_s, request.prompt_tokens, request.output_tokens)
            for index, request in enumerate(requests)
        ]
        began = clock() + LEAD_S
        ticking = asyncio.create_task(self._tick(watch))
        try:
            for record, request in zip(self._records, requests, strict=True):
                body, headers = self._question(record.index, request)
                if await _set_within(stop, began + record.at_s - clock()):
                    break
                if full := self._full(len(body)):
                    record.settle(Outcome.NOT_SENT, *full)
                    self._settled(record, ended)
                    continue
                task = asyncio.create_task(self._ask(record, body, headers, began))
                self._running[task] = record, len(body)
                self._bytes += len(body)
                self._idle.clear()
                self._peak = max(self._peak, len(self._running))
                task.add_done_callback(lambda done: self._done(done, ended))
            await self._rest(stop)
        finally:
            await self._cancel()
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
        if self._fault is not None:
            raise self._fault
        for record in self._records:
            if record.outcome is None:
                record.settle(Outcome.CANCELLED, "before_sending")
                self._settled(record, ended)
        watch(self._seen())
        return report(
            self._records,
            goal,
            seconds=seconds,
            took_s=max(0.0, clock() - began),
            gaps=self._gaps,
            lag=self._lag,
            peak_in_flight=self._peak,
            interrupted=stop.is_set(),
        )

    def _full(self, size: int) -> tuple[str, str] | None:
        """Code and message where a request of so many bytes cannot be sent now; None: it can."""
        most = self._target.max_in_flight
        if len(self._running) >= most:
            return "max_in_flight", f"{most} were in flight (--max-in-flight)"
        if self._running and self._bytes + size > BYTES_IN_FLIGHT:
            return "bytes_in_flight", f"prompts in flight had {BYTES_IN_FLIGHT >> 20} MiB"
        return None

    async def _rest(self, stop: asyncio.Event) -> None:
        """Wait for what runs; each has its own time. Or for `stop`."""
        if not self._running:
            return
        either = [asyncio.create_task(event.wait()) for event in (stop, self._idle)]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in either:
                task.cancel()
            await asyncio.gather(*either, return_exceptions=True)

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        while self._running:
            await self._idle.wait()

    def _done(self, task: asyncio.Task[None], ended: Ended) -> None:
        record, size = self._running.pop(task)
        self._bytes -= size
        if not self._running:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error
        if record.outcome is None:
            record.settle(Outcome.CANCELLED, "in_flight" if record.late_s is not None else "before_sending")
        self._settled(record, ended)

    def _settled(self, record: Record, ended: Ended) -> None:
        assert record.outcome is not None
        self._ended += 1
        self._counts[record.outcome] += 1
        ended(record)

    def _seen(self) -> Seen:
        counts = self._counts
        other = counts[Outcome.FAILED] + counts[Outcome.TIMED_OUT] + counts[Outcome.NOT_SENT]
        return Seen(
            len(self._records),
            self._ended,
            len(self._running),
            counts[Outcome.ANSWERED],
            counts[Outcome.REFUSED],
            other,
        )

    async def _tick(self, watch: Watch) -> None:
        """Show how far it is, and measure how late this loop comes to what is due."""
        while True:
            due = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lag.add(max(0.0, self._clock() - due))
            watch(self._seen())

    def _question(self, index: int, request: TraceRequest) -> tuple[bytes, dict[str, str]]:
        body: dict[str, Any] = {
            "model": self._target.model,
            "messages": [{"role": "user", "content": self._book.prompt(request, index, self._salt)}],
            "max_tokens": request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        headers = self._headers
        if request.session:
            headers = {**headers, "X-Session-Id": f"{self._salt}-{request.session}".encode("ascii", "replace").decode()}
        return orjson.dumps(body), headers

    async def _ask(self, record: Record, body: bytes, headers: dict[str, str], began: float) -> None:
        clock = self._clock
        sent = clock()
        record.late_s = max(0.0, sent - began - record.at_s)
        answer = Answer(self._gaps)
        outcome, code, message = Outcome.FAILED, "", ""
        try:
            async with asyncio.timeout(self._target.timeout_s):
                async with self._session.post(
                    self._where, data=body, headers=headers, allow_redirects=False
                ) as response:
                    _note(record, response)
                    if response.status != 200:
                        outcome, code, message = error_of(response.status, await response.content.read(ERROR_BYTES))
                    elif response.content_type != "text/event-stream":
                        code, message = "no_stream", f"an answer of type {response.content_type}"
                    else:
                        async for data in response.content.iter_any():
                            answer.feed(data, clock())
                        outcome, code, message = _verdict(answer)
        except TimeoutError:
            limit = f"not at its end {self._target.timeout_s:g} s after it was sent (--timeout)"
            outcome, code, message = Outcome.TIMED_OUT, "client_timeout", limit
        except aiohttp.ClientConnectorError as error:
            code, message = "connect", why(error)
        except aiohttp.ServerDisconnectedError:
            code, message = "disconnected", "the connection ended before an answer came"
        except aiohttp.ClientPayloadError:
            code, message = "broken_stream", "the connection ended before the stream did"
        except StreamError as error:
            code, message = str(error), "the stream is not one of events"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            code, message = ("broken_stream" if record.status else "reset"), why(error)
        finally:
            first = answer.first_s
            record.total_s = clock() - sent
            record.ttft_s = None if first is None else first - sent
            record.tpot_s = answer.tpot_s
            record.tokens_in, record.tokens_out = answer.tokens_in or 0, answer.made
        record.settle(outcome, code, message)


def _note(record: Record, response: aiohttp.ClientResponse) -> None:
    """What the head of an answer says; values of any length and number may come."""
    fields = response.headers
    record.status = response.status
    record.pool = fields.get("X-Headrace-Pool", "")[:64]
    record.class_name = fields.get("X-Headrace-Class", "")[:64]
    record.worker = fields.get("X-Headrace-Worker", "")[:64]
    record.request_id = fields.get("X-Request-Id", "")[:64]


def _verdict(answer: Answer) -> tuple[Outcome, str, str]:
    """What a stream that ended was."""
    if answer.error is not None:
        _, code, message = named(answer.error, "error_event")
        return judge(0, str(answer.error.get("type"))), code, message
    if not answer.done:
        return Outcome.FAILED, "broken_stream", "the stream ended without [DONE]"
    return Outcome.ANSWERED, "", ""


async def _set_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long; True at once when `stop` is set."""
    if seconds <= 0:
        await asyncio.sleep(0)  # one that is behind still reads what comes
        return stop.is_set()
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def new_book(seed: int) -> Book:
    """The text that prompts are cut from."""
    return Book(Random(seed))
