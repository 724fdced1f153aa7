"""What makes this gateway one of several: its leases, its part in the gossip, and the mode it is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.leasing.keeper import Keeper
from gateway.leasing.lows import Lows
from gateway.modes import MEANING, Mode, Modes, Pressure, watch_mode
from gateway.quota import Quota
from gateway.quota_state import QuotaState
from gateway.quota_sync import QuotaSync
from gateway.redis_link import RedisLink
from gateway.scheduling.model import WorkerChange, WorkerState
from gateway.start import background
from gateway.upkeep import keep_doing
from policies.document import Policy

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.log import Log
    from gateway.metrics import Gauges
    from gateway.readiness import Readiness
    from gateway.scheduling.listeners import Watch
    from gateway.settings import Settings


class Replica:
    """Built before the dispatcher, which it watches, and joined to it by `join`.

    Leases have a connection and a breaker of their own: what another use of Redis runs into must not end them.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str | None,
        *,
        clock: Callable[[], float],
        log: Log,
        on_error: Callable[[str], None],
        then: Watch,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self.lows = Lows(then, clock)
        self.watch: Watch = then if redis_url is None else self.lows
        """Who is to hear of every lease: alone there is nobody to tell how many ran."""
        self.pressure = Pressure(clock)
        self.link = None
        if redis_url is not None:
            self.link = RedisLink(redis_url, clock=clock, on_change=lambda up, why: None, on_error=on_error)
        self.keeper: Keeper | None = None
        self._loss: Callable[[], str] = lambda: "local_share"
        self._quota_sync = QuotaSync(settings.fleet, self.link, clock, lambda: self._loss(), self.gateways)
        self.quota = Quota(Policy().tenant, self._quota_sync.share, Policy().tenant_entry)
        self._modes: Modes | None = None

    def join(self, dispatcher: Dispatcher, loss: Callable[[], str], *, fresh: bool) -> None:
        """Govern this dispatcher's workers. `fresh`: the Redis was started by us just now."""
        self._loss = loss
        if self.link is not None:
            self.keeper = Keeper(
                self._settings.fleet,
                link=self.link,
                dispatcher=dispatcher,
                lows=self.lows,
                clock=self._clock,
                loss=loss,
                log=self._log,
                expected=self._settings.processes,
                fresh=fresh,
            )

    async def start(self, stack: AsyncExitStack, link: RedisLink | None, ready: Readiness, known: int) -> None:
        """Take the first step and go on in the background; at the end everything leased is given back.

        `known`: how many gateways there were when this host last knew.
        """
        keeper = self.keeper
        if keeper is not None:
            keeper.expect(known)
        if self.link is not None and keeper is not None:
            stack.push_async_callback(self.link.close)
            stack.push_async_callback(keeper.leave)
            await keeper.start()
            background(stack, keep_doing(keeper.run, "leases"), "leases")
            background(stack, keep_doing(keeper.listen, "lease-hints"), "lease-hints")
        kept_in = None if self._settings.ephemeral else self._settings.state_dir
        kept = QuotaState(self.quota, kept_in, self._log, self._clock, time.time)
        await kept.load()
        stack.push_async_callback(kept.save)
        background(stack, keep_doing(kept.run, "save-quota"), "save-quota")
        stack.push_async_callback(self._quota_sync.exchange, self.quota)  # what was used last, for the others
        background(stack, keep_doing(lambda: self._quota_sync.run(self.quota), "quota"), "quota")
        self._modes = modes = Modes(link, keeper, ready.usable, self.pressure)
        background(stack, keep_doing(lambda: watch_mode(modes, self._log), "modes"), "modes")

    def adopt(self, policy: Policy) -> None:
        """Limits of this policy."""
        self.quota.adopt(policy.tenant, policy.tenant_entry)

    def gateways(self) -> int:
        """How many gateways share the fleet, as far as this one knows."""
        return max(self._settings.processes, self.keeper.holder.live if self.keeper is not None else 1)

    def worker_changed(self, change: WorkerChange) -> None:
        """A worker came or went."""
        if self.keeper is not None:
            if change.state is WorkerState.GONE:
                self.keeper.forgot(change.worker)
            self.keeper.wake()

    def warning(self) -> str:
        """The mode, where it is not R0, and what is not as it should be with the leases; empty: nothing."""
        said = self.keeper.warning() if self.keeper is not None else ""
        mode = self._modes.look() if self._modes is not None else Mode.NORMAL
        if mode is Mode.NORMAL:
            return said
        return f"{mode}: {MEANING[mode]}" + (f"; {said}" if said else "")

    def blocked(self) -> str:
        """Why no worker can get anything yet; empty: they can."""
        return self.keeper.blocked() if self.keeper is not None else ""

    def fill(self, gauges: Gauges) -> None:
        """The gauges that are about this."""
        if self._modes is not None:
            gauges.mode = self._modes.look()
        if self.link is not None and self.keeper is not None:
            gauges.gateways = self.keeper.holder.live
            gauges.lease_epoch = self.keeper.holder.epoch
            gauges.lease_silent_s = self.keeper.silent_s
