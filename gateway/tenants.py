"""From a caller to the tenant that a request is accounted to, and a brake on those who try keys."""

from __future__ import annotations

from collections import OrderedDict

from gateway.errors import ErrorAnswer, ErrorCode, shown
from gateway.keys import Caller, valid_tenant

FAILURES_PER_S = 10.0
"""Failed keys that one address may send; more are answered 429. Good keys from there still work."""

FAILURES_BURST = 20.0
MAX_ADDRESSES = 4096


def tenant_of(caller: Caller, asked: str | None) -> str | ErrorAnswer:
    """The tenant to account to. `asked` is `X-Headrace-Tenant`: it counts from trusted keys, others cannot choose."""
    if asked is None or not caller.trusted:
        return caller.tenant
    if not valid_tenant(asked):
        message = f"X-Headrace-Tenant is {shown(asked)}; a tenant has letters, digits and _ . - only, 64 at most."
        return ErrorAnswer(ErrorCode.INVALID_VALUE, message, "X-Headrace-Tenant")
    return asked


class FailureThrottle:
    """Failed keys by address, as token buckets; the addresses that failed longest ago are forgotten first."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def observe_failure(self, address: str, now: float) -> bool:
        """Note a failure; whether `address` has had too many. `now`: seconds, monotonic."""
        left, since = self._buckets.pop(address, (FAILURES_BURST, now))
        left = min(FAILURES_BURST, left + (now - since) * FAILURES_PER_S)
        over = left < 1
        self._buckets[address] = (left if over else left - 1, now)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return over
