"""Live events on the admin plane, as server-sent events; and the audit log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
from aiohttp import hdrs, web

from gateway.admin.access import problem
from gateway.admin.policy_api import number_of, reply
from gateway.audit import tail
from gateway.events import KINDS, Listener, TooManyListenersError

if TYPE_CHECKING:
    from gateway.control import Control

KEEP_ALIVE_S = 15.0
GATHER_S = 0.1
"""Events of this long go out in one write."""

LISTED = 100
MAX_ENTRIES = 1000


class EventApi:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def events(self, request: web.Request) -> web.StreamResponse:
        """What happens from now on, until the reader leaves."""
        asked = request.query.get("types")
        kinds = KINDS if asked is None else frozenset(asked.split(","))
        if not kinds <= KINDS:
            return problem(400, "invalid_value", f"types must be of {', '.join(sorted(KINDS))}")
        try:
            listener = self._control.events.listen(kinds)
        except TooManyListenersError:
            return problem(503, "overloaded", "too many listen to the events already; try again later")
        answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"})
        try:
            await answer.prepare(request)
            await answer.write(b": listening\n\n")
            while not listener.closed:
                await self._pass_on(answer, listener)
        except ConnectionError:
            pass  # the reader left: that is how these end
        finally:
            self._control.events.leave(listener)
        return answer

    async def _pass_on(self, answer: web.StreamResponse, listener: Listener) -> None:
        if not await listener.wait(KEEP_ALIVE_S):
            await answer.write(b": keep-alive\n\n")
            return
        await asyncio.sleep(GATHER_S)
        found, lost = listener.take()
        parts = [b"event: dropped\ndata: %d\n\n" % lost] if lost else []
        parts += [b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(what)) for kind, what in found]
        await answer.write(b"".join(parts))

    async def audit(self, request: web.Request) -> web.Response:
        """The last changes, and whether the log is as it was written."""
        path, limit = self._control.audit.path, number_of(request, "limit", LISTED) or LISTED
        if path is None:
            return reply({"entries": [], "verified": None, "fault": None})
        entries = await asyncio.to_thread(tail, path, max(1, min(limit, MAX_ENTRIES)))
        verdict = await asyncio.to_thread(self._control.audit.verify)
        return reply({"entries": entries, "verified": verdict.whole, "fault": verdict.fault})
