"""Keeps this gateway's leases: carries steps to Redis in the background and tells the scheduler how many places it has.

Nothing here is on a request's path. A request that finds no leased place waits in the scheduler's queue, and that it
waits wakes the keeper; while what is held suffices, nothing but the beat of `PERIOD_S` goes to Redis, and a word to the
others when a long prompt was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING

from gateway.leasing.evidence import identity, lives
from gateway.leasing.gossip import merge, write_ledger
from gateway.leasing.holder import Holder
from gateway.leasing.script import hint_channel, send
from gateway.leasing.words import BadAnswer, Demand, Heard, Step, read_heard
from gateway.redis_link import pass_on_cancellation
from gateway.scheduling.shares import TENANT

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.leasing.lows import Lows
    from gateway.log import Log
    from gateway.redis_link import RedisLink
    from gateway.scheduling.shares import Load

PERIOD_S = 0.16  # with all else that a gateway asks, less than 20 operations a second
EXTRA_PER_S = 6.0  # steps beside the beat, when somebody waits or others need something
EXTRA_BURST = 6.0
SUSPECT_S = 2.0  # of a gateway silent for so long the engines' counts are told
MISSED_S = 0.6  # one silent for so long is looked for
GRAVE_S = 0.5  # seen dead for so long, its connections are closed and the engines know
REPORT_FRESH_S = 2.0
START_S = 3.0  # without any answer for so long after the start, the policy's `redis_loss` decides
AFTER_LOST_S = 1.0
AWAKE_S = 2.0  # who has not even tried to renew for so long stood still: what others have got by now it does not know
NEW_TENANT_S = 1.0
MAX_WATCHED = 256


class Keeper:
    """One gateway's leases on all workers, and its part in the gossip.

    `loss` is the policy's word on what holds without Redis; `expected`, how many gateways there are as far as the
    settings know; `fresh`: we started this Redis, nobody can have used it before.
    """

    def __init__(
        self,
        fleet: str,
        *,
        link: RedisLink,
        dispatcher: Dispatcher,
        lows: Lows,
        clock: Callable[[], float],
        loss: Callable[[], str],
        log: Log,
        expected: int = 1,
        fresh: bool = False,
    ) -> None:
        self.holder = Holder(token_hex(8), identity(), fresh=fresh)
        self._fleet = fleet
        self._link = link
        self._dispatcher = dispatcher
        self._lows = lows
        self._clock = clock
        self._loss = loss
        self._log = log
        self._expected = expected
        self._began = clock()
        self._wake = asyncio.Event()
        self._extra = EXTRA_BURST
        self._extra_at = clock()
        self._slots: dict[str, int | None] = {}  # as the scheduler has them, of the workers that are here
        self._demands: dict[str, Demand] = {}
        self._dead: dict[tuple[str, str], float] = {}
        self._ended = False
        self._said = ""
        self._tried_at = clock()
        dispatcher.govern(on=True)
        dispatcher.on_overdue = self._overdue
        dispatcher.on_waiting = self._wake.set
        dispatcher.on_heavy = self._tell
        self._telling = False  # others are to hear of this step at once

    # -- what others read ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may have changed: take a step soon."""
        self._wake.set()

    def expect(self, gateways: int) -> None:
        """There were so many gateways: each one's share, should Redis not be reached at all."""
        self._expected = max(self._expected, gateways)

    def forgot(self, worker_id: str) -> None:
        """The scheduler does not know a worker any more: nothing is to be said of it there."""
        self._slots.pop(worker_id, None)
        self._wake.set()

    @property
    def silent_s(self) -> float:
        """Seconds since the leases were renewed, or since the start."""
        return self._clock() - (self._began if self.holder.renewed is None else self.holder.renewed)

    def warning(self) -> str:
        """What is not as it should be with the leases; empty: nothing."""
        holder = self.holder
        if not holder.took_part and (holder.renewed is None or self.silent_s >= START_S):
            return (
                "no slots are leased yet" if self._clock() - self._began < START_S else self._without("never answered")
            )
        if holder.lapsed:
            return self._without(f"no renewal for {self.silent_s:.0f} s")
        if not holder.open:
            return "Redis is new or has lost writes: gateways tell what they hold, nobody gets more"
        return ""

    def blocked(self) -> str:
        """Why no worker can get anything yet; empty: they can."""
        holder = self.holder
        if not holder.took_part and self.silent_s >= START_S:
            return ""
        if holder.open or holder.lapsed or any(share.held for share in holder.shares.values()):
            return ""
        return self.warning()

    def _without(self, why: str) -> str:
        what = {
            "local_share": "this gateway's share holds",
            "open": "limits are not shared",
            "closed": "nothing starts",
        }
        return f"slots are not leased ({why}): {what[self._loss()]} (redis_loss: {self._loss()})"

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the first steps, until slots are granted; that Redis does not answer is no reason not to start."""
        await self._beat()
        while self.blocked() and self._clock() - self._began < START_S:
            await asyncio.sleep(PERIOD_S)
            await self._beat()

    async def run(self) -> None:
        """Take steps, for ever."""
        due = self._clock() + PERIOD_S
        while True:
            await self._wait(due)
            self._wake.clear()
            due = self._clock() + PERIOD_S
            telling, self._telling = self._telling, False
            await self._beat()
            pass_on_cancellation()
            if telling:
                await self._hint()

    async def leave(self) -> None:
        """Give everything back; for the very end, when nothing runs any more."""
        self._ended = True
        step = self.holder.farewell(self._clock())
        await self._link.run(lambda redis: send(redis, self._fleet, step))

    async def listen(self) -> None:
        """Wake on hints, for ever. They only save time: the beat alone finds everything."""
        while True:
            await self._link.listen(hint_channel(self._fleet), self._hinted)
            pass_on_cancellation()
            await asyncio.sleep(AFTER_LOST_S)

    def _tell(self) -> None:
        """Something long was sent: others must not send theirs to the same place until the next beat."""
        self._telling = True
        self._wake.set()

    async def _hint(self) -> None:
        """Wake the others: what this gateway has on the workers has just been written."""
        me = self.holder.me
        await self._link.run(lambda redis: redis.publish(hint_channel(self._fleet), me))

    def _hinted(self, sender: bytes) -> None:
        if sender != self.holder.me.encode():
            self._wake.set()

    async def _wait(self, due: float) -> None:
        """Until the beat is due, or somebody woke us and there may be a step beside the beat."""
        now = self._clock()
        if self._take_extra(now, 0.0):
            try:
                async with asyncio.timeout(max(due - now, 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                return
            self._take_extra(self._clock(), 1.0)
            return
        await asyncio.sleep(max(due - now, 0.0))

    def _take_extra(self, now: float, count: float) -> bool:
        self._extra = min(self._extra + (now - self._extra_at) * EXTRA_PER_S, EXTRA_BURST)
        self._extra_at = now
        if self._extra < 1.0:
            return False
        self._extra -= count
        return True

    # -- one step --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        if self._ended:
            return
        for _ in range(2):  # a second one when everything has to be announced
            now = self._clock()
            loads = self._dispatcher.loads()
            self._look_at(loads, now)
            self.holder.strict = self._loss() == "closed"
            dead, alive = self._witness(now)
            step = self.holder.plan(self._demands, now, dead=dead, alive=alive, ledger=write_ledger(loads))
            self._apply(now)  # what the step gives back must not be used from here on
            heard = await self._send(step)
            self._tried_at = self._clock()
            if heard is None:
                break
            self.holder.answered(step, heard)
            if not heard.refused:
                self._dispatcher.others(merge(heard.ledgers))
            if heard.refused != "announce":
                break
        self._apply(self._clock())

    async def _send(self, step: Step) -> Heard | None:
        value = await self._link.run(lambda redis: send(redis, self._fleet, step))
        if value is None:
            return None
        try:
            heard = read_heard(value)
        except BadAnswer as error:
            if str(error) != self._said:
                self._said = str(error)
                self._log.event("lease_answer_invalid", why=self._said)
            return None
        self._said = ""
        return heard

    def _look_at(self, loads: list[Load], now: float) -> None:
        # An engine's count matters only where a silent gateway's slots are in question; told always, it would make
        # every step say something new.
        questions = any(age > SUSPECT_S for _, age in self.holder.peers.values())
        self._slots = {load.id: load.slots for load in loads if load.here}
        self._demands = {
            load.id: Demand(
                load.places,
                load.used,
                load.need,
                load.klass,
                load.running if questions and now - load.reported < REPORT_FRESH_S else None,
                self._lows.low(load.id, now) if questions else 0,
            )
            for load in loads
        }

    def _witness(self, now: float) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Silent gateways whose process has certainly gone, and those whose process is certainly there."""
        alive: list[str] = []
        dead: dict[tuple[str, str], float] = {}
        for name, (who, age) in self.holder.peers.items():
            if age < MISSED_S:
                continue
            state = lives(who)
            if state:
                alive.append(name)
            elif state is False and len(dead) < MAX_WATCHED:
                dead[name, who] = self._dead.get((name, who), now)
        self._dead = dead
        return tuple(key for key, since in dead.items() if now - since >= GRAVE_S), tuple(alive)

    def _apply(self, now: float) -> None:
        """Tell the scheduler how many places it has on each worker."""
        self._dispatcher.lease_until = self.holder.until if self.holder.renewed is not None else inf
        if self.holder.lapsed:
            self._dispatcher.lease_until = inf
        changed = {}
        for name, before in self._slots.items():
            count = self._places(name, self._demands[name], now)
            if before != count:
                changed[name] = count
        if changed:
            self._slots.update(changed)
            self._dispatcher.lease(changed)

    def _places(self, name: str, demand: Demand, now: float) -> int | None:
        holder = self.holder
        if not holder.took_part:
            if self.silent_s < START_S:
                return 0
            return self._share(demand.limit, max(self._expected, holder.live))
        count = holder.places(name, demand, now)
        if not holder.lapsed:
            share = holder.shares.get(name)
            if name.startswith(TENANT) and (share is None or share.told is None) and self.silent_s >= NEW_TENANT_S:
                # It came while Redis does not answer. Its limit is no engine's: a place more does less harm than none.
                return self._tenants_share(demand.limit)
            return count
        if now - self._tried_at > AWAKE_S:
            return 0  # until the step that comes next is answered, or is not
        share = holder.shares.get(name)
        if self._loss() == "local_share" and share is not None and share.told is not None:
            return count
        return self._share(demand.limit, holder.live)

    def _share(self, limit: int, gateways: int) -> int | None:
        """What holds of a worker that Redis said nothing about."""
        loss = self._loss()
        return None if loss == "open" else 0 if loss == "closed" else limit // max(gateways, 1)

    def _tenants_share(self, limit: int) -> int | None:
        share = self._share(limit, self.holder.live)
        return max(share, 1) if share is not None and self._loss() == "local_share" else share

    def _overdue(self) -> None:
        self._apply(self._clock())
