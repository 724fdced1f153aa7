"""What this gateway has to tell others of its work on the workers, and what others' work adds to its view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.scheduling.holds import needed_kv
from gateway.scheduling.limits import whole_limit
from gateway.scheduling.model import NOTHING, Others

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Tenants
    from gateway.scheduling.fleet import Fleet
    from gateway.scheduling.queue import Queue
    from gateway.scheduling.worker import Worker

HEAVY_S: Final = 1.0
"""A prefill this long is told to other gateways at once: until they know, theirs go where it went (simulated with eight
gateways that talk every 200 ms: 1.0 points of goodput are lost without, 0.4 with)."""

TENANT: Final = "@"
"""Begins the names of tenants among resources; no worker's id has it."""

NOBODY: Final = 1000
"""A class below all others: nothing waits."""


class Load(NamedTuple):
    """One worker as this gateway's ledger has it.

    `places`: what policy and engine allow all gateways together. `used`: taken by this one, old incarnations included.
    `need`: places that waiting tickets could use and leases keep from them; `klass`: their highest class.
    `slots`: leased to this gateway, as the scheduler has it; `here`: not only running out.
    `running`, `reported`: what the worker's last report counts, and when it came.
    """

    id: str
    places: int
    used: int
    prefill_s: float
    decode_s: float
    kv_tokens: int
    need: int
    klass: int
    slots: int | None
    here: bool
    running: int | None
    reported: float


class Shares:
    """The fleet as several gateways share it."""

    __slots__ = ("_fleet", "_queue", "_slots", "_tenants", "_unleased")

    def __init__(self, fleet: Fleet, queue: Queue, tenants: Tenants) -> None:
        self._fleet = fleet
        self._queue = queue
        self._tenants = tenants
        self._slots: dict[str, int] = {}
        self._unleased: int | None = None  # slots of a worker that no lease was said of; None: leases don't govern

    def loads(self, now: float) -> list[Load]:
        """Every worker that is here, in no order."""
        needs = self._needs()
        ended: dict[str, int] = {}
        for worker in self._fleet.retired:
            ended[worker.spec.id] = ended.get(worker.spec.id, 0) + worker.in_flight
        found = []
        for worker_id, worker in self._fleet.workers.items():
            need, klass = needs.get(worker, (0, NOBODY))
            signal, hold = worker.signal, worker.hold
            # Others must leave the room that is held here, too.
            kept = needed_kv(worker, hold.place.bucket) if hold is not None else 0
            found.append(
                Load(
                    worker_id,
                    whole_limit(worker, self._fleet.policy),
                    worker.in_flight + ended.pop(worker_id, 0),
                    worker.prefill_s,
                    worker.decode_s,
                    worker.kv_tokens + kept,
                    need,
                    klass,
                    worker.slots,
                    True,
                    signal.running + signal.waiting if signal is not None else None,
                    signal.at if signal is not None else 0.0,
                )
            )
        # Gone, but what runs there counts until it has ended.
        found += [
            Load(worker_id, used, used, 0.0, 0.0, 0, 0, NOBODY, None, False, None, 0.0)
            for worker_id, used in ended.items()
        ]
        return found

    def tenants(self) -> list[Load]:
        """Every tenant whose requests at once are limited, as a worker named `@tenant`."""
        found = []
        for tenant in self._tenants:
            limit = tenant.max_in_flight
            if limit is None:
                tenant.leased = None
                continue
            short = tenant.queued and tenant.leased is not None and tenant.in_flight >= tenant.leased
            waiting = [klass for klass, flow in tenant.flows.items() if flow.waiting] if short else []
            need = min(tenant.queued, limit) if short else 0
            klass = min(waiting, default=NOBODY)
            name, used = TENANT + tenant.name, tenant.in_flight
            found.append(Load(name, limit, used, 0.0, 0.0, 0, need, klass, tenant.leased, True, None, 0.0))
        return found

    def lease(self, slots: Mapping[str, int | None]) -> list[Worker]:
        """So many places of workers, and of tenants as `@tenant`, are leased to us; None: leases don't govern it.

        Returns the workers that have more or fewer now.
        """
        changed = []
        for name, n in slots.items():
            if name.startswith(TENANT):
                self._tenants.get(name.removeprefix(TENANT)).leased = n
                continue
            if n is None:
                self._slots.pop(name, None)
            else:
                self._slots[name] = n
            worker = self._fleet.workers.get(name)
            if worker is not None and worker.slots != n:
                worker.slots = n
                changed.append(worker)
        return changed

    def govern(self, *, on: bool) -> None:
        """Whether leases govern: then a worker or a tenant that no lease was said of has nothing here."""
        self._unleased = self._tenants.unleased = 0 if on else None
        for tenant in self._tenants:
            tenant.leased = self._unleased

    def slots_of(self, worker_id: str) -> int | None:
        """What a worker that is new has here."""
        return self._slots.get(worker_id, self._unleased)

    def forget(self, worker_id: str) -> None:
        """The worker is no longer registered: what was leased of it is not either."""
        self._slots.pop(worker_id, None)

    def others(self, work: Mapping[str, Others]) -> None:
        """Other gateways have this on the workers, and nothing on those that are not named."""
        for worker_id, worker in self._fleet.workers.items():
            new = work.get(worker_id, NOTHING)
            if new != worker.others:
                worker.others = new
                worker.dirty = True

    def _needs(self) -> dict[Worker, tuple[int, int]]:
        """Places that waiting tickets could use, were they leased to us, and the tickets' highest class."""
        found: dict[Worker, tuple[int, int]] = {}
        for lane in self._queue.lanes:
            full = [
                worker
                for worker in lane.workers
                if worker.slots is not None and worker.ready and worker.in_flight >= worker.slots
            ]
            if not full:
                continue
            top = next((klass for klass in self._queue.classes() if (band := lane.band_of(klass)) and band.lines), None)
            each = -(-lane.waiting // len(full))
            for worker in full:
                need, klass = found.get(worker, (0, NOBODY))
                found[worker] = (need + each, min(klass, NOBODY if top is None else top))
        return found
