"""Tenants' requests and tokens per minute, shared by all gateways. Pure: time comes in, refusals and changes go out.

A request is *taken* when it comes in, with the tokens it may need, and *settled* when it ends: what it did not use is
given back to the second in which it was taken, all of it when no worker ever got it. A refusal takes nothing.

A minute is this second and the 59 before it, so that who keeps exactly to a limit is never refused. Each gateway counts
its own at once and hears of the others' a quarter of a second later, from its own first request of that tenant on; what
comes in meanwhile several gateways may exceed a limit by. While the others are not heard, `local_share` leaves each its
part of the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.document import TenantPolicy

SPAN_S: Final = 60
MAX_TENANTS: Final = 4096
MAX_TAKEN: Final = 200_000
MAX_TELLINGS: Final = 2**52
Change = tuple[int, int, int]
"""Seconds ago, requests, tokens."""


class Usage:
    """Requests and tokens by second, of the last `SPAN_S` seconds."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: dict[int, list[int]] = {}

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count in a second; negative: give back."""
        entry = self.seconds.get(second)
        if entry is None:
            entry = self.seconds[second] = [0, 0]
        entry[0] += requests
        entry[1] += tokens

    def forget(self, now: float) -> None:
        """Drop what is out of the window."""
        oldest = floor(now) - SPAN_S
        for second in [second for second in self.seconds if second <= oldest]:
            del self.seconds[second]

    def total(self, which: int, now: float) -> int:
        """Requests (0) or tokens (1) inside the window."""
        oldest = floor(now) - SPAN_S
        return sum(entry[which] for second, entry in self.seconds.items() if second > oldest)

    def free_in(self, which: int, now: float, excess: float) -> float:
        """Seconds until `excess` of what is inside now has left the window; infinite if that much never does."""
        for second in sorted(second for second in self.seconds if second > floor(now) - SPAN_S):
            excess -= self.seconds[second][which]
            if excess <= 0.0:
                return max(second + SPAN_S - now, 0.0)
        return inf


@dataclass(slots=True)
class Account:
    """One tenant: what this gateway took, what of that it has not told yet, what all took as last heard, and what all
    had taken before this gateway began. `told`: the number of the last telling that had something of it."""

    own: Usage = field(default_factory=Usage)
    untold: Usage = field(default_factory=Usage)
    shared: Usage = field(default_factory=Usage)
    before: Usage = field(default_factory=Usage)
    told: int = 0
    used_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Telling:
    """A telling that was answered: its number, when and what was told of one tenant, and the number of the one before
    it that the store remembers."""

    number: int = 0
    last: int = MAX_TELLINGS
    sent: Sequence[Change] = ()
    at: float = 0.0


NO_TELLING: Final = Telling()


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit is reached: which one, and in how many seconds there is room for this request."""

    what: str  # "requests" or "tokens"
    limit: int
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a tenant's limits after a request was taken: (limit, left, seconds until all is free again)."""

    requests: tuple[int, int, float] | None
    tokens: tuple[int, int, float] | None


@dataclass(frozen=True, slots=True)
class _Taken:
    tenant: str
    second: int
    tokens: int


class Quota:
    """The accounts of all tenants that have a limit.

    `policy_of`: a tenant's limits, `entry_of`: the name of the entry that sets them. `share`: the part of a limit that
    is this gateway's own, when the others are not heard: 1 / gateways, 1 for all of it, 0 for nothing; None while they
    are heard.
    """

    def __init__(
        self,
        policy_of: Callable[[str], TenantPolicy],
        share: Callable[[], float | None],
        entry_of: Callable[[str], str] = str,
    ) -> None:
        self._policy_of = policy_of
        self._entry_of = entry_of
        self._limited: dict[str, bool] = {}  # tenants that were asked about
        self._share = share
        self._accounts: dict[str, Account] = {}
        self._taken: dict[str, _Taken] = {}

    @property
    def owed(self) -> bool:
        """Whether anything was taken that is not settled yet."""
        return bool(self._taken)

    def adopt(self, policy_of: Callable[[str], TenantPolicy], entry_of: Callable[[str], str] = str) -> None:
        """Limits of another policy; what was used stays used."""
        self._policy_of = policy_of
        self._entry_of = entry_of
        self._limited.clear()

    def entry(self, tenant: str) -> str:
        """The name of the policy's entry that sets the limits of this tenant."""
        return self._entry_of(tenant)

    def limits(self, tenant: str) -> bool:
        """Whether this tenant has any such limit: if not, there is no need to take anything."""
        found = self._limited.get(tenant)
        if found is None:
            policy = self._policy_of(tenant)
            found = policy.requests_per_min is not None or policy.tokens_per_min is not None
            if len(self._limited) >= MAX_TENANTS:
                self._limited.clear()
            self._limited[tenant] = found
        return found

    def take(self, request_id: str, tenant: str, tokens: int, now: float) -> Refused | Room | None:
        """Count a request in, or say why not. None: this tenant has no such limit."""
        policy = self._policy_of(tenant)
        limits = (policy.requests_per_min, policy.tokens_per_min)
        if limits == (None, None):
            return None
        account = self._account(tenant, now)
        wants = (1, tokens)
        for which, name in enumerate(("requests", "tokens")):
            limit = limits[which]
            if limit is None:
                continue
            used, usage, most = self._used(account, which, limit, now)
            # A request larger than a minute's tokens would never come in: it may, when nothing else is used.
            excess = used + wants[which] - max(most, wants[which] if most else 0)
            if excess > 1e-9:
                return Refused(name, limit, min(usage.free_in(which, now, excess), float(SPAN_S)))
        self._count(account, floor(now), 1, tokens)
        if len(self._taken) < MAX_TAKEN:
            self._taken[request_id] = _Taken(tenant, floor(now), tokens)
        rooms = [self._room(account, which, limit, now) for which, limit in enumerate(limits)]
        return Room(rooms[0], rooms[1])

    def settle(self, request_id: str, tokens: int | None, now: float) -> None:
        """A request ended and used so many tokens; None: nobody worked for it, it is as if it had not come."""
        taken = self._taken.pop(request_id, None)
        if taken is None or taken.second < floor(now) - SPAN_S:
            return
        account = self._account(taken.tenant, now)
        if tokens is None:
            self._count(account, taken.second, -1, -taken.tokens)
        elif tokens != taken.tokens:
            self._count(account, taken.second, 0, tokens - taken.tokens)

    # -- with other gateways ---------------------------------------------------------------------------------------

    def untold(self, now: float) -> dict[str, list[Change]]:
        """What to tell: of every account in use, the changes since the last time, possibly none. They count as told."""
        found: dict[str, list[Change]] = {}
        for tenant, account in list(self._accounts.items()):
            if now - account.used_at > SPAN_S + 1:
                del self._accounts[tenant]
                continue
            told, account.untold = account.untold, Usage()
            ago = floor(now)
            found[tenant] = [
                (ago - second, requests, tokens)
                for second, (requests, tokens) in told.seconds.items()
                if (requests or tokens) and ago - second <= SPAN_S
            ]
        return found

    def not_told(self, changes: dict[str, list[Change]], now: float) -> None:
        """They did not arrive: keep them for the next time."""
        for tenant, each in changes.items():
            account = self._accounts.get(tenant)
            if account is not None:
                for ago, requests, tokens in each:
                    account.untold.add(floor(now) - ago, requests, tokens)

    def heard(self, tenant: str, changes: Sequence[Change], now: float, telling: Telling = NO_TELLING) -> None:
        """What all gateways together used, this one's told part included."""
        account = self._accounts.get(tenant)
        if account is None:
            return
        account.shared = Usage()
        for ago, requests, tokens in changes:
            account.shared.add(floor(now) - ago, requests, tokens)
        if telling.last < account.told:
            # The store has forgotten what we told it: all of it once more, but for what has just arrived.
            account.untold = Usage()
            for second, (requests, tokens) in account.own.seconds.items():
                account.untold.add(second, requests, tokens)
            for ago, requests, tokens in telling.sent:
                account.untold.add(floor(telling.at) - ago, -requests, -tokens)
        if telling.sent:
            account.told = telling.number

    # -- over a restart --------------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> dict[str, list[Change]]:
        """What all have used of every limit lately, as far as this gateway knows."""
        found = {}
        for tenant, account in self._accounts.items():
            account.own.forget(now)
            shared = _sum(account.shared, account.untold)
            own = _sum(account.own, account.before)
            usage = shared if shared.total(0, now) >= own.total(0, now) else own
            ago = floor(now)
            changes = [(ago - second, *entry) for second, entry in usage.seconds.items() if ago - second < SPAN_S]
            if changes:
                found[tenant] = [(at, requests, tokens) for at, requests, tokens in changes]
        return found

    def restore(self, tenant: str, changes: Sequence[Change], now: float) -> None:
        """What all had used before this gateway began. Others may say the same: it is not told to them."""
        account = self._account(tenant, now)
        for ago, requests, tokens in changes:
            account.before.add(floor(now) - ago, requests, tokens)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _account(self, tenant: str, now: float) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= MAX_TENANTS:
                # Who was quiet longest; a tenant beyond so many starts its minute anew.
                del self._accounts[min(self._accounts, key=lambda name: self._accounts[name].used_at)]
            account = self._accounts[tenant] = Account()
        account.used_at = now
        return account

    def _count(self, account: Account, second: int, requests: int, tokens: int) -> None:
        account.own.add(second, requests, tokens)
        account.untold.add(second, requests, tokens)

    def _used(self, account: Account, which: int, limit: int, now: float) -> tuple[int, Usage, float]:
        """(used, by which seconds, of how much)."""
        account.own.forget(now)
        usage = account.own
        if account.before.seconds:
            account.before.forget(now)
            usage = _sum(account.own, account.before)
        own = usage.total(which, now)
        share = self._share()
        if share is not None:
            return own, usage, limit * share
        shared = account.shared.total(which, now) + account.untold.total(which, now)
        # Redis may have lost what was told; what we took ourselves we know.
        return (shared, account.shared, limit) if shared >= own else (own, usage, limit)

    def _room(self, account: Account, which: int, limit: int | None, now: float) -> tuple[int, int, float] | None:
        if limit is None:
            return None
        used, usage, most = self._used(account, which, limit, now)
        last = max(usage.seconds, default=floor(now))
        return limit, max(floor(most - used), 0), max(last + SPAN_S - now, 0.0) if used else 0.0


def _sum(one: Usage, other: Usage) -> Usage:
    """Both together."""
    found = Usage()
    for usage in (one, other):
        for second, (requests, tokens) in usage.seconds.items():
            found.add(second, requests, tokens)
    return found
