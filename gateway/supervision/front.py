"""The admin listener of several processes: one answer for all of them.

Who may do what is judged by the processes, which get the caller's own headers. `/metrics` and the views are put
together here; a request is looked for in all; a change goes to one, from where Redis carries it to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson
from aiohttp import hdrs, web
from multidict import CIMultiDict

from gateway.admin.access import problem
from gateway.admin.bodies import read_body
from gateway.admin.listener import serve_admin
from gateway.admin.server import MAX_BODY_BYTES, plain_errors
from gateway.metrics import FAMILIES
from gateway.start import background
from gateway.supervision.exposition import Exposition, add_totals, merge, parse
from gateway.supervision.joined import JOINED

if TYPE_CHECKING:
    from gateway.supervision.supervisor import Process, Supervisor

TIMEOUT_S = 5.0
ONE_TIMEOUT_S = 120.0
"""Of what a single process does: simulating an hour of traffic takes up to half a minute on an idle core."""

METRICS_TIMEOUT_S = 2.0
"""A process that does not tell its metrics in this time stands for what it told last."""

STOP_S = 1.0
LOOK_S = 2.0
ONE: Final = "/admin/v1/requests/"
EVENTS: Final = "/admin/v1/events"
OF_EACH: Final = (b"event: request\n",)
"""Events that every process has its own of; of the others one process's are enough."""

PLAIN: Final = {hdrs.ACCEPT: "text/plain"}
METRICS_TIMEOUT: Final = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)

_HOP = frozenset(
    {
        hdrs.CONNECTION,
        hdrs.TRANSFER_ENCODING,
        hdrs.CONTENT_LENGTH,
        hdrs.KEEP_ALIVE,
        hdrs.UPGRADE,
        hdrs.DATE,
        hdrs.SERVER,
    }
)
_ACROSS = {family.name: family.across for family in FAMILIES}

Part = tuple[int, CIMultiDict[str], bytes]


async def start_front(stack: AsyncExitStack, supervisor: Supervisor, sock: Any) -> None:
    """Serve the admin listener until the stack closes."""
    session = aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False, auto_decompress=False
    )
    stack.push_async_callback(session.close)
    app = web.Application(middlewares=[plain_errors], client_max_size=MAX_BODY_BYTES)
    front = Front(supervisor, session)
    app.router.add_route("*", "/{path:.*}", front.handle)
    await serve_admin(stack, app, sock, stop_s=STOP_S)
    background(stack, front.watch(), "metrics")


class Front:
    """The handler of every path."""

    def __init__(self, supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        self._supervisor = supervisor
        self._session = session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer from what the processes answer."""
        urls = self._supervisor.living()
        if request.path == "/livez":
            return web.Response(text="ok\n")
        if not urls:
            return problem(503, "no_process", "no gateway process serves at the moment; the supervisor restarts them")
        if request.path == "/metrics" and request.method == hdrs.METH_GET:
            return await self._metrics()
        if request.path == EVENTS:
            return await self._events(request, urls)
        if request.method == hdrs.METH_GET:
            if request.path == "/readyz":
                return await self._readyz(request, urls)
            join = JOINED.get(request.path)
            if join is not None or request.path.startswith(ONE):
                parts = await self._ask_all(request, urls)
                good = [part for part in parts if part[0] == 200]
                if join is not None and good:
                    status, headers, _ = good[0]
                    return _answer((status, headers, orjson.dumps(join([orjson.loads(part[2]) for part in good]))))
                return _answer((good or parts)[0]) if parts else _gone()
        part = await self._ask(request, urls[0], await read_body(request), ONE_TIMEOUT_S)
        return _answer(part) if part is not None else _gone()

    async def _readyz(self, request: web.Request, urls: Sequence[str]) -> web.Response:
        """Ready is one of them; the text says how many."""
        parts = await self._ask_all(request, urls)
        ready = [part for part in parts if part[0] == 200]
        shown = (ready or parts)[0][2].decode() if parts else "no process answers\n"
        text = f"{len(ready)} of {len(self._supervisor.places)} processes ready; {shown}"
        return web.Response(text=text, status=200 if ready else 503)

    async def watch(self) -> None:
        """Look again and again, so that little of what a killed process had counted is lost; for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> tuple[list[Exposition], Exposition]:
        """What every process says of itself now; and of those that are not there to say anything, what they counted.

        Counters must not go back while a process is about to be found dead, does not answer, or drains.
        """
        began = asyncio.get_running_loop().time()

        async def one(process: Process) -> Exposition | None:
            try:
                call = self._session.get(f"{process.admin}/metrics", headers=PLAIN, timeout=METRICS_TIMEOUT)
                async with call as answer:
                    text = await answer.text()
            except (aiohttp.ClientError, TimeoutError):
                return None  # it has just ended, and the supervisor will know, or it stands still
            found = await asyncio.to_thread(parse, text)
            if began >= process.asked_at:
                process.seen, process.asked_at = found, began
            return found

        processes = self._supervisor.counting()
        answers = await asyncio.gather(*(one(process) for process in processes))
        said: list[Exposition] = []
        silent: Exposition = {}
        add_totals(silent, self._supervisor.ended)
        for process, answer in zip(processes, answers, strict=True):
            if process.ended:
                continue  # since it was asked; what it has counted is among the totals
            if answer is None:
                add_totals(silent, process.seen)
            else:
                said.append(answer)
        return said, silent

    async def _metrics(self) -> web.Response:
        said, silent = await self.look()
        # In a thread: a large fleet's text, several times, takes longer than the listener should wait.
        body = await asyncio.to_thread(merge, said, silent, _ACROSS)
        extra = (
            "# HELP headrace_processes Gateway processes that serve.\n# TYPE headrace_processes gauge\n"
            f"headrace_processes {len(self._supervisor.living())}\n"
            "# HELP headrace_process_restarts_total Processes that died and were started again.\n"
            "# TYPE headrace_process_restarts_total counter\n"
            f"headrace_process_restarts_total {self._supervisor.restarts}\n"
        )
        return web.Response(text=body + extra, headers={hdrs.CONTENT_TYPE: "text/plain; version=0.0.4; charset=utf-8"})

    async def _events(self, request: web.Request, urls: Sequence[str]) -> web.StreamResponse:
        """The first process's events and, of the others, what only they know. Ends when one of them ends."""
        answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"})
        forever = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S)
        async with AsyncExitStack() as stack:
            streams = []
            for url in urls:
                call = self._session.get(url + str(request.rel_url), headers=_forwarded(request), timeout=forever)
                stream = await stack.enter_async_context(call)
                if stream.status != 200:
                    return _answer((stream.status, stream.headers.copy(), await stream.read()))
                streams.append(stream)
            await answer.prepare(request)
            pumps = [asyncio.create_task(_pump(stream, answer, at == 0)) for at, stream in enumerate(streams)]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        return answer

    async def _ask_all(self, request: web.Request, urls: Sequence[str]) -> list[Part]:
        """What each process answers; one that ends meanwhile is left out."""
        parts = await asyncio.gather(*(self._ask(request, url, b"") for url in urls))
        return [part for part in parts if part is not None]

    async def _ask(self, request: web.Request, url: str, body: bytes, timeout_s: float = TIMEOUT_S) -> Part | None:
        headers = _forwarded(request)
        limit = aiohttp.ClientTimeout(total=timeout_s)
        where = url + str(request.rel_url)
        try:
            async with self._session.request(
                request.method, where, headers=headers, data=body or None, allow_redirects=False, timeout=limit
            ) as answer:
                return answer.status, answer.headers.copy(), await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return None  # it has just ended, and the supervisor knows


async def _pump(stream: aiohttp.ClientResponse, answer: web.StreamResponse, everything: bool) -> None:
    """Pass whole events on."""
    try:
        while True:
            event = await stream.content.readuntil(b"\n\n")
            if everything or event.startswith(OF_EACH):
                await answer.write(event)
    except (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError, ValueError):
        return  # the process or the reader has gone: that is how these end


def _forwarded(request: web.Request) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in request.headers.items() if name.title() not in _HOP)


def _answer(part: Part) -> web.Response:
    status, headers, body = part
    kept = CIMultiDict((name, value) for name, value in headers.items() if name.title() not in _HOP)
    return web.Response(status=status, headers=kept, body=body)


def _gone() -> web.Response:
    return problem(503, "no_process", "the gateway process that was asked has just ended; try again")
