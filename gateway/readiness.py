"""Whether the gateway is ready for traffic, and in one line why or why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from gateway.scheduling.model import WorkerState

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.policy_store import PolicyStore
    from gateway.redis_link import RedisLink

WATCHED_S = 30.0  # longer than platforms wait between two probes
FRESH_S = 0.05  # a probe storm costs one look at the fleet per this time
USABLE = (WorkerState.READY, WorkerState.PROBING)


class Readiness:
    """Ready means: a policy is loaded (there is none of this object before), a worker is usable, nobody stops us."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        link: RedisLink | None,
        clock: Callable[[], float],
        policies: PolicyStore,
        warning: Callable[[], str] = lambda: "",
        blocked: Callable[[], str] = lambda: "",
    ) -> None:
        self._dispatcher = dispatcher
        self._link = link
        self._warning = warning  # what is wrong and yet no reason not to serve
        self._blocked = blocked  # why workers that are there get nothing
        self._policies = policies  # a worker of a pool that the policy lacks gets nothing
        self._clock = clock
        self._seen: tuple[float, tuple[bool, str]] | None = None
        self._probed_at = -inf
        self.draining = False

    def __call__(self) -> tuple[bool, str]:
        """(ready, why)."""
        if self.draining:
            return False, "shutting down"
        now = self._clock()
        if self._seen is None or now - self._seen[0] > FRESH_S:
            self._seen = now, self._look()
        return self._seen[1]

    def probe(self) -> tuple[bool, str]:
        """As a call; somebody decides by it where traffic goes."""
        self._probed_at = self._clock()
        return self()

    @property
    def watched(self) -> bool:
        """Whether somebody has asked lately, who will want to see that we stop before we do."""
        return self._clock() - self._probed_at < WATCHED_S

    def usable(self) -> bool:
        """Whether a worker may get requests."""
        pools = self._policies.current().policy.pools
        return any(one.state in USABLE and one.pool in pools for one in self._dispatcher.snapshot().workers)

    def _look(self) -> tuple[bool, str]:
        workers = self._dispatcher.snapshot().workers
        pools = self._policies.current().policy.pools
        states = Counter(worker.state for worker in workers if worker.pool in pools)
        usable = sum(states[state] for state in USABLE)
        if usable and (blocked := self._blocked()):
            return False, blocked
        degraded = ""
        if self._link is not None and self._link.up is False:
            degraded = f"; degraded: Redis does not answer ({self._link.why}), known workers and limits stay"
        if warning := self._warning():
            degraded += f"; degraded: {warning}"
        if stray := next((one for one in workers if one.pool not in pools), None):
            degraded += (
                f"; degraded: worker {stray.id} gets nothing, because the policy has no pool {stray.pool!r}"
                f" (it has {', '.join(pools)}): add the pool, or start the worker with one of these"
            )
        if usable:
            return True, f"ready: {usable} of {sum(states.values())} workers usable{degraded}"
        if not workers:
            return False, f"no worker is known{degraded}"
        seen = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none of a known pool"
        return False, f"no worker is usable: {seen}{degraded}"
