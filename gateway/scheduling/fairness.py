"""Who is next inside a class: virtual token counters, one for each tenant in each class (a flow).

A flow's counter grows by the tokens it was served, input once and output twice, divided by the tenant's weight; the
flow with the least counter goes first. A flow that had nothing waiting is lifted to where the others are, so that
silence earns no credit. For two backlogged flows of one weight the counters, and with them the work served, differ
by at most twice the largest request (Sheng et al., "Fairness in Serving Large Language Models", 2024).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from gateway.scheduling.snapshot import TenantSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.scheduling.model import Lease, Outcome, Ticket
    from gateway.scheduling.queue import Line
    from policies.document import TenantPolicy

INPUT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
MAX_IDLE_TENANTS: Final = 4096


def service(input_tokens: int, output_tokens: int) -> float:
    """Tokens as fairness counts them."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens


def used(lease: Lease, outcome: Outcome, *, failed: bool) -> float:
    """Tokens that a tenant is charged for a lease: what it really used; nothing for an attempt that is repeated."""
    if failed:
        return 0.0
    request = lease.ticket.request
    expected = request.prefill_tokens if request.prefill_tokens is not None else request.prompt_tokens
    prompt = outcome.prompt_tokens if outcome.prompt_tokens is not None else expected
    output = outcome.output_tokens if outcome.output_tokens is not None else lease.tokens
    new = prompt - lease.held
    return service(new if new > 0 else 0, output)


class Tenant:
    """What one tenant has running and waiting."""

    __slots__ = (
        "_latest",
        "flows",
        "in_flight",
        "leased",
        "max_in_flight",
        "max_queued",
        "max_queued_bytes",
        "name",
        "queued",
        "queued_bytes",
        "weight",
    )

    def __init__(self, name: str, policy: TenantPolicy) -> None:
        self.name = name
        self.in_flight = 0
        self.leased: int | None = None  # of max_in_flight to this gateway; None: leases don't govern
        self.queued = 0
        self.queued_bytes = 0
        self.flows: dict[int, Flow] = {}
        self._latest: Flow | None = None  # of them, that was asked for last
        self.adopt(policy)

    def adopt(self, policy: TenantPolicy) -> None:
        """Take over the limits and the weight of a policy."""
        self.weight = policy.weight
        self.max_in_flight = policy.max_in_flight
        self.max_queued = policy.max_queued
        self.max_queued_bytes = policy.max_queued_bytes

    @property
    def full(self) -> bool:
        """Whether it may have no more requests running."""
        limit = self.max_in_flight
        if limit is None:
            return False
        return self.in_flight >= limit or (self.leased is not None and self.in_flight >= self.leased)

    @property
    def overfull(self) -> bool:
        """Whether it has more waiting than it may."""
        most, most_bytes = self.max_queued, self.max_queued_bytes
        return (most is not None and self.queued > most) or (most_bytes is not None and self.queued_bytes > most_bytes)

    def flow(self, klass: int) -> Flow:
        """Its flow in a class."""
        flow = self._latest
        if flow is None or flow.klass != klass:
            flow = self.flows.get(klass)
            if flow is None:
                flow = self.flows[klass] = Flow(self, klass)
            self._latest = flow
        return flow


class Flow:
    """One tenant within one class."""

    __slots__ = ("counter", "fresh", "fresh_bytes", "klass", "lines", "tenant", "waiting")

    def __init__(self, tenant: Tenant, klass: int) -> None:
        self.tenant = tenant
        self.klass = klass
        self.counter = 0.0
        self.waiting = 0
        self.fresh: OrderedDict[Ticket, None] = OrderedDict()  # of those that wait, without an attempt, as they came
        self.fresh_bytes = 0
        self.lines: dict[Line, None] = {}  # where its tickets wait; only lines that are not empty

    def charge(self, tokens: float) -> None:
        """Count service; a negative amount corrects what was charged too much."""
        self.counter += tokens / self.tenant.weight
        if tokens < 0.0:
            # Orders that expect counters to grow only have to hear of it.
            for line in self.lines:
                line.resubmit()

    def lift(self, least: float) -> None:
        """Had nothing waiting until now: no credit for the time away."""
        if not self.waiting and self.counter < least:
            self.counter = least


class Tenants:
    """The tenants seen, each once; those that are idle are forgotten when there are very many."""

    __slots__ = ("_by_name", "_latest", "_policy_of", "unleased")

    def __init__(self, policy_of: Callable[[str], TenantPolicy]) -> None:
        self._policy_of = policy_of
        self._by_name: dict[str, Tenant] = {}
        self.unleased: int | None = None  # of a tenant that no lease was said of
        self._latest: Tenant | None = None  # that was asked for last

    def get(self, name: str) -> Tenant:
        """The tenant of that name."""
        tenant = self._latest
        if tenant is not None and tenant.name is name:
            return tenant
        tenant = self._by_name.get(name)
        if tenant is None:
            if len(self._by_name) >= MAX_IDLE_TENANTS:
                self._forget_idle()
            tenant = self._by_name[name] = Tenant(name, self._policy_of(name))
            tenant.leased = self.unleased
        self._latest = tenant
        return tenant

    def adopt(self, policy_of: Callable[[str], TenantPolicy]) -> None:
        """Take over limits and weights for all of them."""
        self._policy_of = policy_of
        for tenant in self._by_name.values():
            tenant.adopt(policy_of(tenant.name))

    def snapshots(self) -> tuple[TenantSnapshot, ...]:
        """All of them as they are now, by name."""
        return tuple(
            TenantSnapshot(
                tenant.name,
                tenant.weight,
                tenant.in_flight,
                tenant.queued,
                tenant.max_in_flight,
                tenant.max_queued,
                {klass: flow.counter for klass, flow in sorted(tenant.flows.items())},
            )
            for _, tenant in sorted(self._by_name.items())
        )

    def _forget_idle(self) -> None:
        """Drop the older half of the idle: they come back lifted to where the others are."""
        idle = [tenant.name for tenant in self._by_name.values() if not tenant.in_flight and not tenant.queued]
        for name in idle[: max(len(idle) // 2, 1)]:
            del self._by_name[name]
        self._latest = None

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)
