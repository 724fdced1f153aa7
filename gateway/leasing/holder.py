"""A gateway's side of the lease protocol, pure: time comes in as `now` (its own monotonic clock), steps go out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from gateway.leasing.words import CLEAR, HOLD_S, MAX_PLACES, Claim, Demand, Heard, Standing, Step

REFRESH_S = 1.5  # after so much silence the store has stopped collecting changes for us: say and ask everything
ASK_S = 1.0  # what was wished for and not there, and what others need, is asked again so often
NEW_S = 3.0  # a newcomer gets nothing in its first second: it asks on
KEEP_DIVISOR = 4  # of the fair share, this part is not given back though unused: something to go on with alone


@dataclass(slots=True)
class Share:
    """What this gateway holds of one resource. `reserve` is the least that it has named in a step not answered yet."""

    held: int = 0
    reserve: int = 0
    standing: Standing | None = None
    told: Claim | None = None  # as the store last heard it
    told_in: tuple[bool, int] = (False, 0)  # whether slots were granted then, and among how many
    told_at: float = 0.0


class Holder:
    """Plans steps, takes in the answers, and says how many places may be used. One step is under way at a time."""

    def __init__(self, me: str, who: str, *, fresh: bool = False) -> None:
        self.me = me
        self.who = who
        self.fresh = fresh
        self.strict = False  # name no reserve: without renewal nothing new starts
        self.epoch = 0
        self.live = 1
        self.open = False
        self.took_part = False
        """Whether slots were ever granted while it was heard: before that, holding nothing means nothing."""
        self.peers: dict[str, tuple[str, float]] = {}
        self.renewed: float | None = None
        """When the last answered step was sent; None: none was."""
        self.shares: dict[str, Share] = {}
        self._seq = 0
        self._announce = True
        self._lapsed = False
        self._new_until = 0.0
        self._kept: frozenset[str] = frozenset()
        self._kept_for = (0, 0)

    # -- steps -----------------------------------------------------------------------------------------------------

    def plan(
        self,
        demands: Mapping[str, Demand],
        now: float,
        *,
        dead: tuple[tuple[str, str], ...] = (),
        alive: tuple[str, ...] = (),
        ledger: str | None = None,
    ) -> Step:
        """The next step. What it gives back is not used from here on."""
        self._lapse(now)
        self._choose_kept(demands)
        full = self._announce
        everything = full or self.renewed is None or now - self.renewed > REFRESH_S or now < self._new_until
        claims = []
        for name, demand in demands.items():
            share = self.shares.get(name)
            if share is None:
                share = self.shares[name] = Share()
            claim = self._claim(name, share, demand, full)
            old = now - share.told_at >= ASK_S
            asks = claim.need > 0 or (claim.wish > 0 and (old or share.told_in != (self.open, self.live)))
            # Who needed something may have died, and the dead do not say that they need nothing any more.
            asks = asks or (old and share.standing is not None and share.standing.needs != ())
            if not everything and claim == share.told and not asks:
                continue
            claims.append(claim)
        for name in [name for name in self.shares if name not in demands]:
            share = self.shares[name]
            claims.append(Claim(name, share.held, 0, 0, -1, 0, CLEAR, 0, 0, -1))
        for claim in claims:
            share = self.shares[claim.name]
            share.reserve = min(share.reserve, claim.reserve)
            if claim.keep < share.held:
                share.held = claim.keep
                if share.standing is not None:  # what others need they get by this
                    share.standing = replace(share.standing, needs=(), poor=0)
        self._seq += 1
        peers = tuple((name, who) for name, (who, _) in self.peers.items()) if full else ()
        return Step(
            self.me, self._seq, self.epoch, self.who, now, full, self.fresh, False, tuple(claims), peers, dead, alive,
            ledger,
        )  # fmt: skip

    def farewell(self, now: float) -> Step:
        """The last step: everything goes back. Nothing may run any more."""
        self._seq += 1
        for share in self.shares.values():
            share.held = share.reserve = 0
        return Step(self.me, self._seq, self.epoch, self.who, now, leave=True)

    def answered(self, step: Step, heard: Heard) -> None:
        """The store has answered this step, the last one planned."""
        self.epoch = heard.epoch
        if heard.refused == "announce":
            self._announce = True
        if heard.refused:
            return
        if step.full:
            self._new_until = step.sent + NEW_S
        self._announce = self._lapsed = False
        self.fresh = False
        self.renewed = step.sent
        self.live, self.open, self.peers = heard.live, heard.open, heard.peers
        self.took_part = self.took_part or heard.open
        for claim in step.claims:
            if claim.limit < 0:
                del self.shares[claim.name]
                continue
            share = self.shares[claim.name]
            share.told, share.told_in, share.told_at = claim, (heard.open, heard.live), step.sent
            share.reserve = claim.reserve
        for name, standing in heard.slots.items():
            known = self.shares.get(name)
            if known is not None:
                known.standing = standing
                known.held = min(standing.held, MAX_PLACES)

    # -- use -------------------------------------------------------------------------------------------------------

    def places(self, name: str, demand: Demand, now: float) -> int:
        """How many places of a resource may be in use from now on; those in use above it may end in their time."""
        self._lapse(now)
        share = self.shares.get(name)
        return 0 if share is None else min(self._allowed(name, share, demand), demand.limit)

    @property
    def until(self) -> float:
        """Until when what `places` said holds without another step."""
        return 0.0 if self.renewed is None else self.renewed + HOLD_S

    @property
    def lapsed(self) -> bool:
        """Whether this gateway is down to its reserves."""
        return self._lapsed

    def _lapse(self, now: float) -> None:
        if self._lapsed or self.renewed is None or now - self.renewed < HOLD_S:
            return
        self._lapsed = True
        for share in self.shares.values():
            share.held = min(share.held, share.reserve)
            share.standing = None

    def _fair(self, limit: int) -> int:
        return limit // self.live

    def _least(self, name: str, limit: int) -> int:
        """What is not given back though unused: enough to go on with, should Redis be gone the next moment.

        A part of the fair share; where that is nothing, one place on some workers.
        """
        return self._fair(limit) // KEEP_DIVISOR or int(limit > 1 and name in self._kept)

    def _choose_kept(self, names: Collection[str]) -> None:
        """Of how many workers one place is kept: a `live`-th of them, at least one, other gateways' others."""
        if (self.live, len(names)) != self._kept_for or not self._kept <= set(names):
            self._kept_for = (self.live, len(names))
            order = sorted(names, key=lambda name: crc32(f"{self.me} {name}".encode()))
            self._kept = frozenset(order[: -(-len(names) // self.live)])

    def _allowed(self, name: str, share: Share, demand: Demand) -> int:
        """Of what is held, what may be used: less where the limit is exceeded or others have the better claim."""
        standing, cap = share.standing, min(share.held, demand.limit)
        if standing is None or self.live == 1:
            return cap
        limit = min(standing.limit, demand.limit)  # one that was lowered just now the store has not heard yet
        fair = self._fair(limit)
        if share.held + standing.others > limit:
            cap = min(cap, max(fair, limit - standing.others))
        urgent = sum(count for klass, count in standing.needs if klass < demand.klass)
        least = min(share.held, self._least(name, limit))
        cap = min(cap, max(least, share.held - urgent))
        if share.held > fair:
            cap = min(cap, max(fair, share.held - standing.poor))
        return cap

    def _claim(self, name: str, share: Share, demand: Demand, full: bool) -> Claim:
        limit = min(max(demand.limit, 0), MAX_PLACES)
        standing = share.standing
        wanted = sum(count for _, count in standing.needs) if standing is not None else 0
        keep = min(share.held, max(demand.used, self._allowed(name, share, demand)))
        open_wants = wanted - (share.held - keep)
        if open_wants > 0:
            least = self._least(name, limit)
            spare = keep - max(demand.used + demand.need, least)
            keep -= min(max(spare, 0), open_wants)
        if standing is not None:
            # Unused, and more than an equal share while others have less than theirs: theirs before they ask for it.
            lack = self._fair(limit) * (self.live - 1) - standing.others
            surplus = keep - max(demand.used + demand.need, self._fair(limit))
            keep -= max(min(lack, surplus), 0)
        if full:
            # What runs counts, even above what was left to us: the store must not give it to others.
            keep = max(keep, demand.used)
        room = max(limit - keep, 0)
        need = min(demand.need, room)
        target = limit if self.live == 1 else max(self._fair(limit), demand.used + 1)
        wish = 0 if wanted else max(0, min(target - keep - need, room - need))
        reserve = 0 if self.strict else min(keep, self._fair(limit))
        running = demand.running if demand.running is not None else -1
        return Claim(
            name, share.held, keep, reserve, limit, need, min(demand.klass, CLEAR), wish, demand.low, running
        )  # fmt: skip
