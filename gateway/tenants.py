"""From a caller to the tenant that a request is accounted to, and a brake on those who try keys."""

from __future__ import annotations

from collections import OrderedDict

from gateway.errors import ErrorAnswer, ErrorCode, shown
from gateway.keys import Caller, valid_tenant

FAILURES_PER_S = 10.0
"""Failed keys that one address may send; more are answered 429. Good keys from there still work."""

FAILURES_BURST = 20.0
MAX_ADDRESSES = 4096

TOO_MANY_FAILED_KEYS = (
    f"More than {FAILURES_PER_S:g} failed keys a second, or {FAILURES_BURST:g} at once, came from this address "
    "(a fixed limit). Check the key, and wait."
)


def tenant_of(caller: Caller, asked: str | None) -> str | ErrorAnswer:
    """The tenant to account to. `asked` is `X-Headrace-Tenant`: it counts from trusted keys, others cannot choose."""
    if asked is None or not caller.trusted:
        return caller.tenant
    if not valid_tenant(asked):
        message = f"X-Headrace-Tenant is {shown(asked)}; a tenant has letters, digits and _ . - only, 64 at most."
        return ErrorAnswer(ErrorCode.INVALID_VALUE, message, "X-Headrace-Tenant")
    return asked


class Throttle:
    """Calls by address, as token buckets; the addresses that called longest ago are forgotten first."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def observe(self, address: str, now: float) -> bool:
        """Note a call; whether `address` has had too many. `now`: seconds, monotonic."""
        left, since = self._buckets.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        over = left < 1
        self._buckets[address] = (left if over else left - 1, now)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return over


class FailureThrottle(Throttle):
    """The brake on those who try keys or tokens."""

    def __init__(self) -> None:
        super().__init__(FAILURES_PER_S, FAILURES_BURST)

    def observe_failure(self, address: str, now: float) -> bool:
        """Note a failure; whether `address` has had too many. `now`: seconds, monotonic."""
        return self.observe(address, now)
