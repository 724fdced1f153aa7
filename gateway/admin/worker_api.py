"""Workers and tenants on the admin plane: looked at, and told by hand what to do."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.admin.access import problem
from gateway.admin.bodies import read_object
from gateway.admin.policy_api import reply
from gateway.admin.views import View, pool_views, tenant_views, worker_views
from gateway.orders import MAX_CAP, OrdersError
from gateway.scheduling.model import Order

if TYPE_CHECKING:
    from gateway.control import Control
    from gateway.dispatcher import Dispatcher
    from gateway.fleet_sync import FleetSync


class WorkerApi:
    """The handlers."""

    def __init__(self, control: Control, dispatcher: Dispatcher, fleet: FleetSync) -> None:
        self._control = control
        self._dispatcher = dispatcher
        self._fleet = fleet

    async def pools(self, _: web.Request) -> web.Response:
        """Every pool in one line."""
        pools = self._control.policy.current().policy.pools
        return reply({"pools": pool_views(self._dispatcher.snapshot(), pools, self._control.budgets)})

    async def workers(self, _: web.Request) -> web.Response:
        """Every worker."""
        return reply({"workers": self._views()})

    async def worker(self, request: web.Request) -> web.Response:
        """One worker."""
        found = self._view(request.match_info["id"])
        return reply(found) if found is not None else _unknown(request)

    async def advice(self, _: web.Request) -> web.Response:
        """What the workers' last reports suggest to change."""
        return reply({"advice": [asdict(each) for each in self._fleet.advice()]})

    async def tenants(self, _: web.Request) -> web.Response:
        """Every tenant of the policy, and those seen beside them."""
        policy = self._control.policy.current().policy
        return reply({"tenants": tenant_views(self._dispatcher.tenants(), policy)})

    async def drain(self, request: web.Request) -> web.Response:
        """Nothing new for a worker."""
        return await self._order(request, "drain", drain=True)

    async def undrain(self, request: web.Request) -> web.Response:
        """Work for it again."""
        return await self._order(request, "undrain", drain=False)

    async def eject(self, request: web.Request) -> web.Response:
        """Out of rotation until let back in."""
        return await self._order(request, "eject", eject=True)

    async def readmit(self, request: web.Request) -> web.Response:
        """In rotation again, whatever put it out."""
        return await self._order(request, "readmit", readmit=True, eject=False)

    async def cap(self, request: web.Request) -> web.Response:
        """At most so many places."""
        said = await read_object(request, "max_in_flight", "cap")
        most = said.get("max_in_flight", said.get("cap"))
        if not {"max_in_flight", "cap"} & said.keys():
            return problem(400, "missing_parameter", 'send {"max_in_flight": N}, or null to take the cap off')
        if most is not None and (type(most) is not int or not 0 <= most <= MAX_CAP):
            return problem(400, "invalid_value", f"max_in_flight must be 0 to {MAX_CAP}, or null")
        return await self._order(request, "cap", cap=most)

    async def _order(
        self, request: web.Request, action: str, *, readmit: bool = False, **changes: bool | int | None
    ) -> web.Response:
        worker = request.match_info["id"]
        if self._view(worker) is None:
            return _unknown(request)
        order: Order = replace(self._control.orders.of(worker), **changes)  # type: ignore[arg-type]
        try:
            await self._control.orders.give(worker, order, readmit=readmit)
        except OrdersError as error:
            await self._control.note(request, f"worker.{action}", worker, "failed", {"why": str(error)})
            return problem(503, "policy_store_down", str(error))
        await self._control.note(request, f"worker.{action}", worker, "ok", dict(changes))
        return reply(self._view(worker) or {})

    def _views(self) -> list[View]:
        return worker_views(self._dispatcher.snapshot(), self._fleet.workers())

    def _view(self, worker: str) -> View | None:
        """The worker's present incarnation, or its last one."""
        found = [view for view in self._views() if view["id"] == worker]
        return found[0] if found else None


def _unknown(request: web.Request) -> web.Response:
    return problem(404, "not_found", f"no such worker: {request.match_info['id'][:128]}")
