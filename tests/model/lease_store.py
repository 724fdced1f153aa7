"""What `gateway/leasing/lease.lua` means, in Python: the reference that the script is compared with."""

import copy
from typing import Any

EXPIRE, REPORT, RECENT, FORGET, JOINING = 28000, 12000, 2000, 600000, 1000
WINDOW, WINDOW_YOUNG, WINDOW_FIRST, MAX_STEP, MAX_GATEWAYS = 10000, 1500, 1000, 2000, 256

Doc = dict[str, list[int]]


class Store:
    """The five keys of a fleet. `wall` is the server's clock (ms), `run` its process, `uptime_s` how long it runs."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.run = "a" * 40
        self.uptime_s = 1000
        self.epoch: dict[str, Any] | None = None
        self.records: dict[str, dict[str, Any]] = {}
        self.slots: dict[str, Doc] = {}
        self.ledgers: dict[str, tuple[int, str]] = {}
        self.inbox: dict[str, list[str]] = {}
        self.spare: dict[str, tuple[int, int]] = {}
        self.hints = 0
        self.damages = 0  # how often less was found written than was held

    def state(self) -> tuple[Any, ...]:
        """A copy of what is stored, to go back to."""
        return copy.deepcopy((self.epoch, self.records, self.slots, self.ledgers, self.inbox, self.spare))

    def restore(self, state: tuple[Any, ...]) -> None:
        """Lose what was written since."""
        self.epoch, self.records, self.slots, self.ledgers, self.inbox, self.spare = copy.deepcopy(state)

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """One call of the script."""
        answer = self._step(step)
        assert self.epoch is not None
        self.epoch.update(self.counts())
        return answer

    def counts(self) -> dict[str, int]:
        """How many entries the two hashes have that must not be lost alone."""
        return {"gateways": len(self.records), "slots": len(self.slots) + len(self.spare)}

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        me = step["id"]
        lost = self.epoch is not None and any(self.epoch.get(key) != n for key, n in self.counts().items())
        clock = 0
        if self.epoch is not None:
            clock = self.epoch["clock"] + max(0, min(self.wall - self.epoch["wall"], MAX_STEP))
        for name in [name for name, record in self.records.items() if clock - record["at"] >= FORGET]:
            self._drop(name)
        if self.epoch is None and step["epoch"] == 0 and not self.records:
            young = WINDOW_YOUNG if self.uptime_s < 10 else WINDOW_FIRST
            self._new_epoch(step, clock, 0 if step["fresh"] else young)
        elif self.epoch is None or self.epoch["run"] != self.run or step["epoch"] > self.epoch["n"] or lost:
            self._new_epoch(step, clock, WINDOW)
        epoch = self.epoch
        assert epoch is not None
        epoch["clock"], epoch["wall"] = clock, self.wall
        for name, who in step["dead"]:
            if name in self.records and self.records[name]["who"] == who and name != me:
                self._drop(name)
        for name in step["alive"]:
            if name in self.records:
                self.records[name]["w"] = clock
        mine = self.records.get(me)
        if mine is not None and step["seq"] <= mine["s"]:
            return {"stale": 1, "epoch": epoch["n"]}
        if step["leave"]:
            self._drop(me)
            self.hints += 1
            return {"left": 1, "epoch": epoch["n"]}
        announces = mine is None or mine["e"] != epoch["n"]
        if announces and not step["full"]:
            return {"announce": 1, "epoch": epoch["n"]}
        if mine is None:
            if len(self.records) >= MAX_GATEWAYS:
                return {"crowded": 1, "epoch": epoch["n"]}
            mine = self.records[me] = {"s": 0, "e": 0, "at": clock, "who": step["who"], "j": clock}
        if announces and not epoch.get("open"):
            for name, who in step["peers"]:
                if name not in self.records and len(self.records) < MAX_GATEWAYS:
                    self.records[name] = {"s": 0, "e": 0, "at": clock, "who": who}
        renews = not announces and not step["full"] and clock - mine["at"] <= EXPIRE
        mine.update(s=step["seq"], e=epoch["n"], at=clock, who=step["who"])
        if (
            not epoch.get("open")
            and clock - epoch["since"] >= epoch["window"]
            and all(record["e"] == epoch["n"] for record in self.records.values())
        ):
            epoch["open"] = 1
        call = _Call(self, me, clock, bool(epoch.get("open")), announces)
        for claim in step["claims"]:
            share = self.slots.get(claim[0], {}).get(me, [0])
            if renews and claim[1] > share[0]:
                self.damages += 1
                self.slots.clear()
                self.spare.clear()
                self._new_epoch(step, clock, WINDOW)
                self.epoch.update(clock=clock, wall=self.wall)
                return {"announce": 1, "epoch": self.epoch["n"]}
            call.claim(claim)
        if announces:
            named = {claim[0] for claim in step["claims"]}
            for name in [name for name in self.slots if name not in named]:
                doc = self.slots[name]
                call.clean(doc)
                doc.pop(me, None)
                if not doc:
                    del self.slots[name]
            for name in [name for name in self.spare if not call.spare(name) or call.open]:
                del self.spare[name]
        for name in self.inbox.pop(me, []):
            if name not in call.shown:
                doc = dict(self.slots.get(name, {}))
                call.clean(doc)
                call.shown[name] = call.standing(doc)
        ledgers = {}
        if step["ledger"]:
            self.ledgers[me] = (clock, step["ledger"])
            for name, (at, text) in self.ledgers.items():
                if name != me and name in self.records:
                    ledgers[name] = [max(0, clock - at), text]
        self.hints += call.hint
        peers = {name: [record["who"], clock - record["at"]] for name, record in self.records.items() if name != me}
        return {
            "epoch": epoch["n"],
            "open": bool(epoch.get("open")),
            "live": call.live,
            "peers": peers,
            "slots": call.shown,
            "ledgers": ledgers,
        }

    def _new_epoch(self, step: dict[str, Any], clock: int, window: int) -> None:
        last = self.epoch["n"] if self.epoch else 0
        self.epoch = {"n": max(last, step["epoch"]) + 1, "run": self.run, "since": clock, "window": window}
        for record in self.records.values():
            record["at"] = clock

    def _drop(self, name: str) -> None:
        self.records.pop(name, None)
        self.ledgers.pop(name, None)
        self.inbox.pop(name, None)


class _Call:
    """The part of one call that is about slots."""

    def __init__(self, store: Store, me: str, clock: int, is_open: bool, announces: bool) -> None:
        self.store = store
        self.me = me
        self.clock = clock
        self.open = is_open
        self.announces = announces
        self.live = sum(clock - record["at"] <= EXPIRE for record in store.records.values())
        self.shown: dict[str, list[Any]] = {}
        self.hint = False

    def age(self, name: str) -> int:
        age: int = self.clock - self.store.records[name]["at"]
        return age

    def clean(self, doc: Doc) -> None:
        for name in [name for name in doc if name not in self.store.records]:
            del doc[name]

    def sums(self, doc: Doc) -> tuple[int, int, list[str]]:
        limits = [share[2] for name, share in doc.items() if self.age(name) <= EXPIRE]
        needs = sorted(name for name, share in doc.items() if share[3] > 0 and self.age(name) <= RECENT)
        return min(limits, default=0), sum(share[0] for share in doc.values()), needs

    def signature(self, doc: Doc) -> tuple[Any, ...]:
        limit, total, needs = self.sums(doc)
        return limit, total > limit, [(name, doc[name][3], doc[name][4]) for name in needs]

    def tell(self, other: str, name: str) -> None:
        if other != self.me and self.age(other) <= RECENT:
            self.store.inbox.setdefault(other, []).append(name)
            self.hint = True

    def claim(self, claim: list[Any]) -> None:
        name, held, keep, reserve, limit, need, klass, wish, low, running = claim
        doc = self.store.slots.setdefault(name, {})
        self.clean(doc)
        before = self.signature(doc)
        share = doc.get(self.me, [0, 0, 0, 0, 0, 0])
        if not self.announces:
            given = max(0, min(held - keep, share[0]))
            share[0] -= given
            if not self.open and given:
                self.set_spare(name, self.spare(name) + given)
        else:
            share[0] = keep if not self.open else min(share[0], keep)
        if limit < 0:
            doc.pop(self.me, None)
        else:
            share[1:] = [min(reserve, share[0]), limit, need, klass, low]
            doc[self.me] = share
            if running >= 0:
                self.expire(doc, running)
        self.grant(name, doc, 0 if limit < 0 else wish)
        if self.signature(doc) != before:
            for other, each in doc.items():
                if each[0] > 0:
                    self.tell(other, name)
        if not doc:
            del self.store.slots[name]
        self.shown[name] = self.standing(doc)

    def expire(self, doc: Doc, running: int) -> None:
        gone = [name for name in doc if self.age(name) > EXPIRE]
        if any(self.age(name) < EXPIRE + REPORT for name in gone):
            return
        least = sum(share[5] for name, share in doc.items() if self.age(name) <= RECENT)
        for name in gone:
            share = doc[name]
            witnessed = self.clock - self.store.records[name].get("w", -(10**9)) <= EXPIRE
            share[0] = min(share[0], max(share[1] if witnessed else 0, running - least))
            share[1] = min(share[1], share[0])

    def grant(self, name: str, doc: Doc, wish: int) -> None:
        limit, total, waiting = self.sums(doc)
        needs = [each for each in waiting if self.settled(each)]
        free = limit - total
        known = free if self.open else self.spare(name)
        free = before = min(free, known)
        touched = set()
        while free > 0 and needs:
            best = min(needs, key=lambda each: (doc[each][4], doc[each][0]))
            doc[best][0] += 1
            doc[best][3] -= 1
            free -= 1
            touched.add(best)
            if doc[best][3] == 0:
                needs.remove(best)
        if free > 0 and self.settled(self.me) and wish:
            wish = min(free, wish)
            doc[self.me][0] += wish
            free -= wish
        if not self.open and free < before:
            self.set_spare(name, known - (before - free))
        for other in touched:
            self.tell(other, name)

    def spare(self, name: str) -> int:
        """What announced gateways gave back in an epoch that is not open."""
        assert self.store.epoch is not None
        count, epoch = self.store.spare.get(name, (0, 0))
        return count if epoch == self.store.epoch["n"] else 0

    def set_spare(self, name: str, count: int) -> None:
        assert self.store.epoch is not None
        self.store.spare[name] = (count, self.store.epoch["n"])

    def settled(self, name: str) -> bool:
        joined = self.store.records[name].get("j")
        return self.live == 1 or joined is None or self.clock - joined >= JOINING

    def standing(self, doc: Doc) -> list[Any]:
        limit, total, _ = self.sums(doc)
        fair, poor, needs = limit // self.live, 0, {}
        for name, share in doc.items():
            if name != self.me and share[3] > 0 and self.age(name) <= RECENT:
                needs[str(share[4])] = needs.get(str(share[4]), 0) + share[3]
                poor += min(share[3], max(0, fair - share[0]))
        own = doc[self.me][0] if self.me in doc else 0
        return [own, limit, total - own, poor, needs]
