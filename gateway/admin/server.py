"""The admin listener: health, metrics and read-only views of the running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web

from gateway.admin.access import guard, problem
from gateway.admin.views import (
    View,
    pool_views,
    queue_sums,
    queue_views,
    revision_view,
    story_view,
    worker_views,
)
from policies.document import json_schema

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.fleet_sync import FleetSync
    from gateway.metrics import Metrics
    from gateway.policy_store import PolicyStore
    from gateway.recent import Recent

MAX_BODY_BYTES = 1 << 20
KEEPALIVE_S = 30.0


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """What the admin plane reads. `ready` says whether the gateway is ready and why not; `facts` what else to show."""

    dispatcher: Dispatcher
    fleet: FleetSync
    policy: PolicyStore
    metrics: Metrics
    recent: Recent
    ready: Callable[[], tuple[bool, str]]
    facts: Callable[[], View]
    before_scrape: Callable[[], None]


def build_admin(ports: AdminPorts, token: str | None, *, loopback: bool) -> web.Application:
    """The admin application."""
    admin = _Admin(ports)
    app = web.Application(middlewares=[guard(token, loopback=loopback), _plain_errors], client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/livez", admin.livez)
    app.router.add_get("/readyz", admin.readyz)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/admin/v1/fleet", admin.fleet)
    app.router.add_get("/admin/v1/policy", admin.policy)
    app.router.add_get("/admin/v1/policy/schema", admin.schema)
    app.router.add_get("/admin/v1/pools", admin.pools)
    app.router.add_get("/admin/v1/workers", admin.workers)
    app.router.add_get("/admin/v1/workers/{id}", admin.worker)
    app.router.add_get("/admin/v1/requests/{id}", admin.explain)
    app.on_response_prepare.append(_harden)
    return app


class _Admin:
    """The handlers."""

    def __init__(self, ports: AdminPorts) -> None:
        self._ports = ports

    async def livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        ready, why = self._ports.ready()
        return web.Response(text=why + "\n", status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        self._ports.before_scrape()
        # In a thread: a large fleet's text takes longer than streams should wait for the loop.
        body, content_type = await asyncio.to_thread(
            self._ports.metrics.expose, request.headers.get(hdrs.ACCEPT, "text/plain")
        )
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def fleet(self, _: web.Request) -> web.Response:
        ports, current = self._ports, self._ports.policy.current()
        snapshot = ports.dispatcher.snapshot()
        policy = current.policy
        classes = [each.name for each in policy.classes]
        ready, why = ports.ready()
        return _json(
            {
                **ports.facts(),
                "ready": ready,
                "why": why,
                "revision": revision_view(current),
                "pools": pool_views(snapshot, list(policy.pools)),
                "workers": worker_views(snapshot, ports.fleet.workers()),
                "queues": queue_views(snapshot, classes),
                "queue": queue_sums(snapshot, classes),
                "in_flight": snapshot.in_flight,
            }
        )

    async def policy(self, request: web.Request) -> web.Response:
        current = self._ports.policy.current()
        tag = f"{current.revision.number}-{current.revision.digest}"
        if any(each.value == tag for each in request.if_none_match or ()):
            answer = web.Response(status=304)
        elif "yaml" in request.headers.get(hdrs.ACCEPT, ""):
            answer = web.Response(text=current.revision.text, content_type="application/yaml")
        else:
            document = current.policy.model_dump(mode="json", by_alias=True)
            answer = _json({"revision": revision_view(current), "policy": document})
        answer.etag = tag
        return answer

    async def schema(self, _: web.Request) -> web.Response:
        return _json(json_schema())

    async def pools(self, _: web.Request) -> web.Response:
        pools = list(self._ports.policy.current().policy.pools)
        return _json({"pools": pool_views(self._ports.dispatcher.snapshot(), pools)})

    async def workers(self, _: web.Request) -> web.Response:
        return _json({"workers": worker_views(self._ports.dispatcher.snapshot(), self._ports.fleet.workers())})

    async def worker(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        views = worker_views(self._ports.dispatcher.snapshot(), self._ports.fleet.workers())
        found = [view for view in views if view["id"] == wanted]
        return _json(found[0]) if found else problem(404, "not_found", "no such worker")

    async def explain(self, request: web.Request) -> web.Response:
        story = self._ports.recent.find(request.match_info["id"])
        if story is None:
            return problem(404, "not_found", "no such request among the recent ones of this gateway")
        return _json(story_view(request.match_info["id"], story))


def _json(value: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


@web.middleware
async def _plain_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors of the router in our shape."""
    try:
        answer: web.StreamResponse = await handler(request)
    except web.HTTPMethodNotAllowed as error:
        answer = problem(405, "method_not_allowed", f"{request.method} is not possible here")
        answer.headers[hdrs.ALLOW] = ", ".join(sorted(error.allowed_methods))
    except web.HTTPException as error:
        answer = problem(error.status, "not_found" if error.status == 404 else "invalid_request", error.reason)
    return answer


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    """No banner, no caching, no guessing of types."""
    response.headers.pop(hdrs.SERVER, None)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
