"""The admin listener: health, metrics, and everything that operators read and change, by the table of calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from gateway.admin.access import VISITOR, Need, Tokens, guard, problem
from gateway.admin.bodies import BadBodyError
from gateway.admin.event_api import EventApi
from gateway.admin.key_api import KeyApi
from gateway.admin.openapi import openapi
from gateway.admin.page import Page
from gateway.admin.policy_api import PolicyApi, reply
from gateway.admin.table import CALLS
from gateway.admin.trial_api import TrialApi
from gateway.admin.views import View, pool_views, queue_sums, queue_views, revision_view, worker_views
from gateway.admin.worker_api import WorkerApi

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.control import Control
    from gateway.dispatcher import Dispatcher
    from gateway.fleet_sync import FleetSync
    from gateway.keys import KeyStore
    from gateway.keys_shared import SharedKeys
    from gateway.metrics import Metrics
    from gateway.recent import Recent

MAX_BODY_BYTES = 1 << 20
MAX_SHOWN_ID = 128  # characters of an id that an answer repeats


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """What the admin plane reads and changes. `ready` says whether the gateway is ready and why not; `facts` what else
    to show; `keys_file` is None where no keys are kept. `probe` is `ready` for whoever sends traffic by it."""

    dispatcher: Dispatcher
    fleet: FleetSync
    control: Control
    metrics: Metrics
    recent: Recent
    keys: KeyStore
    keys_file: Path | None
    shared_keys: SharedKeys | None
    ready: Callable[[], tuple[bool, str]]
    facts: Callable[[], View]
    before_scrape: Callable[[], None]
    probe: Callable[[], tuple[bool, str]]


def build_admin(ports: AdminPorts, tokens: Tokens, *, loopback: bool) -> web.Application:
    """The admin application."""
    policy = PolicyApi(ports.control)
    groups: dict[str, object] = {
        "health": _Views(ports),
        "page": Page(),
        "policy": policy,
        "trials": TrialApi(ports.control, policy),
        "workers": WorkerApi(ports.control, ports.dispatcher, ports.fleet),
        "keys": KeyApi(ports.control, ports.keys, ports.keys_file, ports.shared_keys),
        "events": EventApi(ports.control),
    }
    needs: dict[tuple[str, str], Need] = {}

    def need_of(request: web.Request) -> Need:
        resource = request.match_info.route.resource
        return needs.get((request.method, resource.canonical if resource is not None else ""), Need.READ)

    async def denied(request: web.Request) -> None:
        await ports.control.note(request, "denied", f"{request.method} {request.path[:200]}", "permission_denied", {})

    access = guard(tokens, need_of, loopback=loopback, on_denied=denied)
    app = web.Application(middlewares=[plain_errors, access], client_max_size=MAX_BODY_BYTES)
    for call in CALLS:
        group, _, name = call.handler.partition(".")
        methods = ("GET", "HEAD") if call.method == "GET" else (call.method,)
        for method in methods:
            route = app.router.add_route(method, call.path, getattr(groups[group], name))
            if route.resource is not None:
                needs[method, route.resource.canonical] = call.need

    # No calls of the API: what people type who look for the dashboard.
    for path, target in (("/", "dashboard"), ("/dashboard/", "../dashboard")):
        for method in ("GET", "HEAD"):
            app.router.add_route(method, path, Page.elsewhere(target))
            needs[method, path] = Need.NOTHING

    async def end_streams(_: web.Application) -> None:
        ports.control.events.close()

    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(_harden)
    return app


class _Views:
    """The handlers that only look."""

    def __init__(self, ports: AdminPorts) -> None:
        self._ports = ports

    async def livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        ready, why = self._ports.probe()
        return web.Response(text=why + "\n", status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        self._ports.before_scrape()
        # In a thread: a large fleet's text takes longer than streams should wait for the loop.
        body, content_type = await asyncio.to_thread(
            self._ports.metrics.expose, request.headers.get(hdrs.ACCEPT, "text/plain")
        )
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def openapi(self, _: web.Request) -> web.Response:
        return reply(openapi(version("headrace")))

    async def whoami(self, request: web.Request) -> web.Response:
        role = request[VISITOR].role
        return reply({"role": str(role) if role is not None else None})

    async def fleet(self, _: web.Request) -> web.Response:
        ports, current = self._ports, self._ports.control.policy.current()
        snapshot = ports.dispatcher.snapshot()
        policy = current.policy
        classes = [each.name for each in policy.classes]
        ready, why = ports.ready()
        return reply(
            {
                **ports.facts(),
                "ready": ready,
                "why": why,
                "revision": revision_view(current.revision),
                "pools": pool_views(snapshot, policy.pools, ports.control.budgets),
                "workers": worker_views(snapshot, ports.fleet.workers()),
                "queues": queue_views(snapshot, classes),
                "queue": queue_sums(snapshot, classes),
                "in_flight": snapshot.in_flight,
                "latency": ports.control.history.lately(time.monotonic()),
            }
        )

    async def history(self, _: web.Request) -> web.Response:
        return reply(self._ports.control.history.view(time.monotonic()))

    async def explain(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        story = await self._ports.control.story(wanted)
        if story is None:
            return problem(404, "not_found", f"no request {wanted[:MAX_SHOWN_ID]!r} among the recent ones")
        return reply(story)


@web.middleware
async def plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of the router, and of bodies, in our shape."""
    try:
        answer: web.StreamResponse = await handler(request)
    except BadBodyError as error:
        answer = error.answer
    except web.HTTPMethodNotAllowed as error:
        answer = problem(405, "method_not_allowed", f"{request.method} is not possible here")
        answer.headers[hdrs.ALLOW] = ", ".join(sorted(error.allowed_methods))
    except web.HTTPRequestEntityTooLarge:
        answer = problem(413, "request_too_large", f"a body may have {MAX_BODY_BYTES} bytes here")
    except web.HTTPNotFound:
        answer = problem(404, "not_found", "there is no such path here; /admin/openapi.json names all there are")
    except web.HTTPException as error:
        answer = problem(error.status, "invalid_request", error.reason)
    except ConnectionError:
        raise  # the caller left
    except Exception as error:
        # Told as every fault of ours is; its own words stay here, they may hold what was sent.
        context = {"message": "an admin call failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        answer = problem(500, "internal", "this is a fault of the gateway; its log says where it was")
    return answer


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    """No banner, no caching, no guessing of types."""
    response.headers.pop(hdrs.SERVER, None)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
