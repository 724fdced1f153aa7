"""Which limit a request reached, for what it is told. Looked up once it is refused: nothing else pays for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.scheduling.model import Reached
from gateway.scheduling.queue import home_of

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Tenant
    from gateway.scheduling.model import Ticket
    from gateway.scheduling.queue import Queue
    from policies.document import Policy


def pool_bound(policy: Policy, queue: Queue, home: str) -> Reached | None:
    """The bound of its own that a pool's waiting requests are over."""
    pool = policy.pools.get(home)
    held = queue.of_pool.get(home)
    if pool is None or held is None:
        return None
    return _over(f"pools.{home}", held[0], held[1], pool.max_queued, pool.max_queued_bytes)


def queue_bound(policy: Policy, queue: Queue) -> Reached | None:
    """The bound of all waiting requests that they are over."""
    most = policy.admission
    return _over("admission", queue.count, queue.bytes, most.max_queued, most.max_queued_bytes)


def shed_bound(policy: Policy, queue: Queue, newcomer: Ticket, victim: Ticket) -> Reached | None:
    """The bound for which a waiting request has to go; the newcomer is counted."""
    home = home_of(newcomer)
    own = pool_bound(policy, queue, home) if home_of(victim) == home else None
    return own or queue_bound(policy, queue)


def tenant_waiting(policy: Policy, tenant: Tenant) -> Reached | None:
    """The bound that a tenant's waiting requests are over."""
    place = f"tenants.{policy.tenant_entry(tenant.name)}"
    return _over(place, tenant.queued, tenant.queued_bytes, tenant.max_queued, tenant.max_queued_bytes)


def tenant_running(policy: Policy, tenant: Tenant) -> Reached | None:
    """The bound that a tenant's running requests have come to: the policy's, or what this gateway has of it."""
    most, leased = tenant.max_in_flight, tenant.leased
    if most is None:
        return None
    place, limit = f"tenants.{policy.tenant_entry(tenant.name)}.max_in_flight", most
    if leased is not None and leased < most:
        place, limit = f"this gateway's share of {place} ({most})", leased
    return Reached(place, limit, tenant.in_flight + 1)


def _over(place: str, count: int, size: int, most: int | None, most_bytes: int | None) -> Reached | None:
    if most is not None and count > most:
        return Reached(f"{place}.max_queued", most, count)
    if most_bytes is not None and size > most_bytes:
        return Reached(f"{place}.max_queued_bytes", most_bytes, size)
    return None
