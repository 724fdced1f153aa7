"""The data plane between a raw client and fault servers, with a first-come dispatcher that checks its own books."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from gateway.admission import Admitted
from gateway.dispatcher import Sink
from gateway.errors import ErrorAnswer, ErrorCode
from gateway.http.messages import HttpLimits, RawRequest
from gateway.http.server import DataServer
from gateway.http.upstream import UpstreamPool
from gateway.local_answers import LocalAnswer
from gateway.records import RequestRecord
from gateway.scheduling.model import Cost, Lease, Outcome, OutcomeKind, Reason, Refuse, Request, Ticket, TicketState
from policies.classify import Classified
from policies.document import Policy
from policies.endpoints import Endpoint
from policies.knobs import Timeouts

TIMEOUTS = Policy().timeouts


class FirstCome:
    """A dispatcher with one slot pool: the first worker that has not failed the request, in order."""

    def __init__(self, workers: list[str], slots: int = 1_000_000, max_attempts: int = 3) -> None:
        self.workers = workers
        self.slots = slots
        self.max_attempts = max_attempts
        self.queue: deque[Ticket] = deque()
        self.held: set[int] = set()
        self.outcomes: list[tuple[str, OutcomeKind]] = []
        self.full: list[Outcome] = []
        self.tokens = 0
        self.first_tokens = 0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def submit(self, request: Request, sink: Sink) -> Ticket:
        ticket = Ticket(request, sink, self.now(), self.now() + request.queue_timeout_s)
        self.queue.append(ticket)
        self._dispatch()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        assert ticket.state is TicketState.QUEUED
        self.queue.remove(ticket)
        ticket.state = TicketState.ENDED

    def first_token(self, lease: Lease) -> None:
        assert id(lease) in self.held
        assert lease.first_token_at is None
        lease.first_token_at = self.now()
        self.first_tokens += 1

    def progress(self, lease: Lease, tokens: int) -> None:
        assert id(lease) in self.held
        assert tokens > 0
        self.tokens += tokens

    def settle(self, lease: Lease, outcome: Outcome, *, retry: bool = False) -> None:
        assert id(lease) in self.held, "a lease is settled exactly once"
        self.held.remove(id(lease))
        lease.settled = True
        self.slots += 1
        self.outcomes.append((lease.worker, outcome.kind))
        self.full.append(outcome)
        ticket = lease.ticket
        if retry:
            ticket.excluded |= {lease.worker}
            left = [w for w in self.workers if w not in ticket.excluded]
            if ticket.attempts >= self.max_attempts or not left:
                ticket.state = TicketState.ENDED
                self.sink(ticket).on_refused(Refuse(ticket, Reason.ATTEMPTS_EXHAUSTED, 2.0, False))
            else:
                ticket.state = TicketState.QUEUED
                self.queue.append(ticket)
        self._dispatch()

    @staticmethod
    def sink(ticket: Ticket) -> Sink:
        owner: Sink = ticket.owner  # type: ignore[assignment]
        return owner

    def _dispatch(self) -> None:
        while self.queue and self.slots:
            ticket = self.queue.popleft()
            worker = next(w for w in self.workers if w not in ticket.excluded)
            ticket.state = TicketState.LEASED
            ticket.attempts += 1
            self.slots -= 1
            lease = Lease(ticket, worker, "pool-a", Cost(1, 0.1, 0.1, 10), self.now(), 0.001)
            self.held.add(id(lease))
            self.sink(ticket).on_lease(lease)


@dataclass
class OpenGate:
    """Lets every POST through; `/livez` is answered here, `/refused` is refused."""

    timeouts: Timeouts = TIMEOUTS
    deadline_s: float | None = None
    forward_authorization: bool = False
    hide_usage: bool = False
    continue_streams: bool = False
    seen: list[RawRequest] = field(default_factory=list)

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        self.seen.append(raw)
        if raw.path == "/livez":
            return LocalAnswer(200, "application/json", b'{"status":"ok"}')
        if raw.path == "/refused":
            return ErrorAnswer(ErrorCode.MODEL_NOT_FOUND, "There is no such model.", "model")
        if raw.path == "/broken":
            raise RuntimeError("the gate is broken")
        try:
            body = json.loads(raw.body or b"{}")
            stream = bool(body.get("stream"))
        except (ValueError, AttributeError):
            stream = False
        endpoint = Endpoint.MESSAGES if raw.path == "/v1/messages" else Endpoint.CHAT
        endpoint = Endpoint.RESPONSES if raw.path == "/v1/responses" else endpoint
        endpoint = Endpoint.COMPLETIONS if raw.path == "/v1/completions" else endpoint
        deadline = None if self.deadline_s is None else asyncio.get_running_loop().time() + self.deadline_s
        request = Request(
            id=request_id,
            tenant="default",
            klass=1,
            model="tiny",
            pools=("pool-a",),
            prompt_tokens=10,
            max_output_tokens=16,
            deadline=deadline,
        )
        classified = Classified(
            tenant="default",
            klass=1,
            class_name="standard",
            pool="pool-a",
            pools=("pool-a",),
            fallback_pools=(),
            served_model="tiny",
            prompt_tokens=10,
            output_tokens=16,
            queue_timeout_s=30.0,
            deadline_s=None,
            why="first pool that fits",
        )
        return Admitted(
            request,
            classified,
            7,
            endpoint,
            stream,
            "tiny",
            "default",
            None,
            self.forward_authorization,
            [raw.body] if raw.body else [],
            raw.path,
            raw.method,
            self.timeouts,
            10,
            10,
            usage_injected=self.hide_usage,
            continue_stream=self.continue_streams and stream,
        )


class Notes:
    """Telemetry that keeps everything."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.attempts: list[tuple[str, str, str]] = []
        self.first: list[float] = []
        self.gaps: list[float] = []
        self._changed = asyncio.Event()

    def attempt(self, pool: str, worker: str, result: str) -> None:
        self.attempts.append((pool, worker, result))

    def first_token(self, record: RequestRecord) -> None:
        assert record.ttft_s is not None
        self.first.append(record.ttft_s)

    def itl(self, pool: str, class_name: str, seconds: float) -> None:
        self.gaps.append(seconds)

    def finished(self, record: RequestRecord, request: Request | None = None, ended: float = 0.0) -> None:
        self.records.append(record)
        self._changed.set()

    async def until(self, count: int, timeout: float = 5.0) -> list[RequestRecord]:
        """Wait for so many finished requests."""
        async with asyncio.timeout(timeout):
            while len(self.records) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.records


class Plane:
    """The whole arrangement; every counter must be back at zero when it closes."""

    def __init__(self, urls: dict[str, str], **options: object) -> None:
        rest_s = options.pop("rest_s", 0.0)
        assert isinstance(rest_s, float)
        self.pools = {name: UpstreamPool(name, url, connect_s=1.0, rest_s=rest_s) for name, url in urls.items()}
        self.errors: list[BaseException] = []
        slots = options.pop("slots", 1_000_000)
        assert isinstance(slots, int)
        self.dispatcher = FirstCome(list(urls), slots)
        self.gate = OpenGate()
        self.notes = Notes()
        timeouts = {k: v for k, v in options.items() if k in Timeouts.model_fields}
        limits = {k: v for k, v in options.items() if k in HttpLimits.__dataclass_fields__}
        assert set(options) == set(timeouts) | set(limits)
        self.gate.timeouts = TIMEOUTS.model_copy(update=timeouts)
        self.server = DataServer(
            gate=self.gate,
            dispatcher=self.dispatcher,
            upstreams=self.pools,
            telemetry=self.notes,
            limits=replace(HttpLimits(), **limits),  # type: ignore[arg-type]
            on_error=self.errors.append,
        )

    @property
    def outcomes(self) -> list[tuple[str, OutcomeKind]]:
        return self.dispatcher.outcomes

    def client(self) -> Client:
        return Client(self.port)

    async def start(self) -> None:
        self.host, self.port = await self.server.start("127.0.0.1", 0)

    async def close(self) -> None:
        await self.server.drain(0.0)
        for pool in self.pools.values():
            pool.close()
        await until(lambda: not any(pool.open_connections for pool in self.pools.values()))
        assert not self.dispatcher.held
        assert self.server.stats().connections == 0


@contextlib.asynccontextmanager
async def plane(*servers: object, **options: object) -> AsyncIterator[Plane]:
    """A plane in front of these servers (or URLs), workers `w0`, `w1`, ... in their order."""
    urls = {f"w{i}": one if isinstance(one, str) else one.url for i, one in enumerate(servers)}  # type: ignore[attr-defined]
    made = Plane(urls, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@dataclass
class Answer:
    """What a client read: `complete` as its framing says."""

    status: int
    fields: list[tuple[bytes, bytes]]
    body: bytes
    complete: bool

    def value(self, name: bytes) -> bytes | None:
        found = [value for key, value in self.fields if key == name]
        assert len(found) < 2, f"{name!r} more than once"
        return found[0] if found else None

    @property
    def error(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.body)["error"]
        return found


class Client:
    """A client that sees every byte."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, body: bytes = b"{}", path: str = "/v1/chat/completions", fields: bytes = b"") -> Answer:
        await self.send(request(body, path, fields))
        return await self.answer()

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        async with asyncio.timeout(10):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.split(b"\r\n")[:-2]
        fields = [(name.lower(), value.strip()) for name, value in (line.split(b":", 1) for line in lines[1:])]
        return int(lines[0].split(b" ")[1]), fields

    async def answer(self, *, bodyless: bool = False, timeout: float = 10.0) -> Answer:
        async with asyncio.timeout(timeout):
            status, fields = await self.head()
            found = Answer(status, fields, b"", True)
            length, coding = found.value(b"content-length"), found.value(b"transfer-encoding")
            assert length is None or coding is None
            if bodyless or status in (204, 304):
                return found
            try:
                if coding is not None:
                    async for piece in self.chunks():
                        found.body += piece
                elif length is not None:
                    found.body = await self.reader.readexactly(int(length))
                else:
                    found.body = await self.reader.read()
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                found.complete = False
                found.body += getattr(error, "partial", b"")
            return found

    async def chunks(self) -> AsyncIterator[bytes]:
        """The data of each chunk; raises when the connection ends before the last one."""
        while True:
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            if not size:
                return
            yield data

    async def closed(self, timeout: float = 5.0) -> bytes:
        """Whatever comes until the server closes."""
        async with asyncio.timeout(timeout):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


def request(
    body: bytes = b"{}", path: str = "/v1/chat/completions", fields: bytes = b"", method: str = "POST"
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n".encode()
    return head + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


STREAM = b'{"stream":true}'


async def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Poll what gives no signal of its own."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
