"""The lease protocol under any order of events: what runs at a worker stays within its limit, whatever happens.

Gateways join, leave, are killed and cut off; steps and answers are lost or come late; the store loses writes,
everything, a single key or its identity; limits change; every clock has a rate of its own; the engine's count is old.

Invariants of the fault matrix: 4 (`start`: what runs at a worker), 5 (`execute`: what is leased; `beat`: epochs), 21
(`lose_writes`, `lose_key`, and garbage in tests/wire/test_lease_script.py), 22 (`start`: who is cut off goes on).
"""

import json
from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lease_store import Store

from gateway.leasing.holder import Holder
from gateway.leasing.words import LOW_S, Demand, Step, read_heard

WORKERS = ("w1", "w2")
REPORT_AGE_S = 9.0
BEAT_S = 0.5


class Gateway:
    """One gateway: its holder, what it runs and wants, and its view of the limits."""

    def __init__(self, name: str, rate: float, limits: dict[str, int], began: float) -> None:
        self.holder = Holder(name, f"who-{name}")
        self.rate = rate
        self.limits = dict(limits)
        self.used = dict.fromkeys(WORKERS, 0)
        self.need = dict.fromkeys(WORKERS, 0)
        self.klass = 1
        self.alive = True
        self.cut = False
        self.kept: dict[str, int] = {}  # places it had when it was cut off, while nothing has changed since
        self.history: deque[tuple[float, dict[str, int]]] = deque([(began, dict(self.used))])

    def now(self, true: float) -> float:
        return 1000.0 + true * self.rate

    def note(self, true: float) -> None:
        self.history.append((true, dict(self.used)))
        while len(self.history) > 1 and self.history[1][0] < true - 2 * LOW_S:
            self.history.popleft()

    def low(self, worker: str, true: float) -> int:
        """Least in flight over the last `LOW_S` of its own clock; 0 before it has lived that long."""
        since = true - LOW_S / self.rate
        if self.history[0][0] > since:
            return 0
        before = [used[worker] for at, used in self.history if at <= since][-1:]
        return min(before + [used[worker] for at, used in self.history if at > since])

    def used_at(self, worker: str, true: float) -> int:
        if not self.alive:
            return 0
        values = [used[worker] for at, used in self.history if at <= true]
        return values[-1] if values else 0


class Leases(RuleBasedStateMachine):
    """Gateways, one store, and what is on the wire between them."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.true = 0.0
        self.wall = 0.0
        self.store_rate = 1.0
        self.limits = dict.fromkeys(WORKERS, 8)
        self.gateways: list[Gateway] = []
        self.late: list[dict[str, Any]] = []
        self.saved: list[tuple[Any, ...]] = []
        self.names = 0
        self.dead_since: dict[tuple[str, str], float] = {}

    @initialize(rate=st.sampled_from([0.9, 1.0, 1.1]), count=st.integers(1, 3), limit=st.integers(1, 9))
    def begin(self, rate: float, count: int, limit: int) -> None:
        self.store_rate = rate
        self.limits = dict.fromkeys(WORKERS, limit)
        self.saved.append(self.store.state())
        for _ in range(count):
            self.add(1.0)

    # -- steps and messages ----------------------------------------------------------------------------------------

    def add(self, rate: float) -> None:
        self.names += 1
        self.gateways.append(Gateway(f"g{self.names}", rate, self.limits, self.true))

    def connected(self) -> list[Gateway]:
        return [each for each in self.gateways if each.alive and not each.cut]

    def demands(self, gateway: Gateway, report_age: float) -> dict[str, Demand]:
        at = self.true - report_age
        return {
            worker: Demand(
                gateway.limits[worker],
                gateway.used[worker],
                gateway.need[worker],
                gateway.klass,
                sum(other.used_at(worker, at) for other in self.gateways),
                gateway.low(worker, self.true),
            )
            for worker in WORKERS
        }

    def plan(self, gateway: Gateway, report_age: float = 0.0) -> Step:
        dead = tuple(key for key, at in self.dead_since.items() if self.true - at > 1.0)
        alive = tuple(each.holder.me for each in self.gateways if each.alive)
        demands = self.demands(gateway, report_age)
        return gateway.holder.plan(demands, gateway.now(self.true), dead=dead, alive=alive)

    def execute(self, wire: dict[str, Any]) -> Any:
        self.store.wall = round(self.wall)
        before, epoch = self.leased(), self.store.epoch and dict(self.store.epoch)
        answer = json.loads(json.dumps(self.store.step(json.loads(json.dumps(wire)))))
        if epoch and self.store.epoch and self.store.epoch["n"] == epoch["n"] and epoch.get("open"):
            # Invariant 5. A limit that is lowered finds more leased; then nothing is granted.
            for worker, count in self.leased().items():
                limits = [share[2] for share in self.store.slots.get(worker, {}).values()]
                assert count <= max(before[worker], *limits, 0)
        assert not self.store.damages, "without a loss nobody ever holds more than is written down"
        return answer

    def leased(self) -> dict[str, int]:
        return {worker: sum(s[0] for s in self.store.slots.get(worker, {}).values()) for worker in WORKERS}

    def beat(self, gateway: Gateway, report_age: float = 0.0) -> None:
        step = self.plan(gateway, report_age)
        heard = read_heard(self.execute(step.wire()))
        assert heard.epoch >= gateway.holder.epoch, "epochs only grow, whatever the store has forgotten"
        gateway.holder.answered(step, heard)
        if heard.refused == "announce":
            self.beat(gateway, report_age)

    def pass_time(self, seconds: float) -> None:
        """Time goes by; who is connected renews."""
        while seconds > 0:
            piece = min(seconds, BEAT_S)
            seconds -= piece
            self.true += piece
            self.wall += piece * self.store_rate * 1000
            for gateway in self.connected():
                self.beat(gateway)

    # -- rules -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: len([each for each in self.gateways if each.alive]) < 4)
    @rule(rate=st.sampled_from([0.9, 1.0, 1.1]))
    def join(self, rate: float) -> None:
        self.add(rate)

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 5.0, 12.0, 24.0, 45.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(data=st.data(), fate=st.sampled_from(["good", "good", "lost", "answer lost", "late"]), age=st.floats(0, 9))
    def step(self, data: st.DataObject, fate: str, age: float) -> None:
        gateways = self.connected()
        if not gateways:
            return
        gateway = data.draw(st.sampled_from(gateways))
        gateway.kept = {}
        if fate == "good":
            self.beat(gateway, age)
            return
        step = self.plan(gateway, age)
        if fate == "answer lost":
            self.execute(step.wire())
        elif fate == "late":
            self.late.append(step.wire())

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 20))
    def deliver_late(self, at: int) -> None:
        self.execute(self.late.pop(at % len(self.late)))

    @rule(data=st.data(), worker=st.sampled_from(WORKERS), count=st.integers(1, 9))
    def start(self, data: st.DataObject, worker: str, count: int) -> None:
        """As many requests as may start."""
        gateways = [each for each in self.gateways if each.alive]
        if not gateways:
            return
        gateway = data.draw(st.sampled_from(gateways))
        demand = Demand(gateway.limits[worker], gateway.used[worker], count, gateway.klass)
        places = gateway.holder.places(worker, demand, gateway.now(self.true))
        if gateway.cut and not gateway.holder.lapsed:
            assert places >= min(gateway.kept.get(worker, 0), gateway.limits[worker]), "without the store it goes on"
        started = min(count, max(places - gateway.used[worker], 0))
        gateway.need[worker] = count - started
        if not started:
            return
        gateway.used[worker] += started
        gateway.note(self.true)
        running = sum(each.used[worker] for each in self.gateways)
        allowed = max(each.limits[worker] for each in self.gateways if each.alive)
        assert running <= allowed, f"{running} run at {worker}, {allowed} may"

    @rule(data=st.data(), worker=st.sampled_from(WORKERS), count=st.integers(1, 9))
    def finish(self, data: st.DataObject, worker: str, count: int) -> None:
        busy = [each for each in self.gateways if each.used[worker]]
        if busy:
            gateway = data.draw(st.sampled_from(busy))
            gateway.used[worker] = max(gateway.used[worker] - count, 0)
            gateway.note(self.true)

    @rule(data=st.data(), klass=st.integers(0, 2))
    def other_class(self, data: st.DataObject, klass: int) -> None:
        if self.gateways:
            gateway = data.draw(st.sampled_from(self.gateways))
            gateway.klass, gateway.kept = klass, {}

    @precondition(lambda self: any(each.alive for each in self.gateways))
    @rule(data=st.data(), polite=st.booleans())
    def end(self, data: st.DataObject, polite: bool) -> None:
        gateway = data.draw(st.sampled_from([each for each in self.gateways if each.alive]))
        gateway.used = dict.fromkeys(WORKERS, 0)
        gateway.alive = False
        self.dead_since[gateway.holder.me, gateway.holder.who] = self.true
        if polite and not gateway.cut:
            self.execute(gateway.holder.farewell(gateway.now(self.true)).wire())

    @rule(data=st.data())
    def cut_or_heal(self, data: st.DataObject) -> None:
        gateways = [each for each in self.gateways if each.alive]
        if gateways:
            gateway = data.draw(st.sampled_from(gateways))
            gateway.cut = not gateway.cut
            gateway.kept = {}
            if gateway.cut:
                now = gateway.now(self.true)
                for worker in WORKERS:
                    demand = Demand(gateway.limits[worker], gateway.used[worker], 0, gateway.klass)
                    gateway.kept[worker] = gateway.holder.places(worker, demand, now)

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(0, 12))
    def change_limit(self, worker: str, limit: int) -> None:
        """Some know at once, others with their next wait."""
        self.limits[worker] = limit
        for gateway in self.gateways[::2]:
            gateway.limits = dict(self.limits)

    @rule()
    def all_know_the_limits(self) -> None:
        for gateway in self.gateways:
            gateway.limits = dict(self.limits)

    @rule()
    def save(self) -> None:
        self.saved.append(self.store.state())
        del self.saved[:-4]

    @rule(at=st.integers(0, 3), same_server=st.booleans())
    def lose_writes(self, at: int, same_server: bool) -> None:
        """Failover to a server that lacks what was written since; or everything is deleted on the same one.

        Who is cut off must be known to somebody who is not: of that nobody has a trace nobody can know.
        """
        state = Store().state() if same_server else self.saved[at % len(self.saved)]
        if self.somebody_is_unknown(set() if same_server else set(state[1])):
            return
        self.store.restore(state)
        if not same_server:
            self.store.run = f"{int(self.store.run, 16) + 1:040x}"
        for gateway in self.connected():
            self.beat(gateway)

    def somebody_is_unknown(self, recorded: set[str]) -> bool:
        known = {name for each in self.connected() for name in each.holder.peers} | recorded
        return any(each.cut and each.alive and each.holder.me not in known for each in self.gateways)

    @precondition(lambda self: self.store.epoch is not None)
    @rule(data=st.data(), what=st.sampled_from(["slots", "a worker's slots", "gateways", "a gateway"]))
    def lose_key(self, data: st.DataObject, what: str) -> None:
        """A key alone is evicted or deleted, or a part of it, and nothing says so."""
        store = self.store
        if what == "slots":
            store.slots, store.spare = {}, {}
        elif what == "a worker's slots" and store.slots:
            del store.slots[data.draw(st.sampled_from(sorted(store.slots)))]
        elif what == "gateways" and not self.somebody_is_unknown(set()):
            store.records = {}
        elif what == "a gateway" and store.records:
            name = data.draw(st.sampled_from(sorted(store.records)))
            if not self.somebody_is_unknown(set(store.records) - {name}):
                del store.records[name]

    @rule(hours=st.sampled_from([-1, 1]))
    def set_the_servers_clock(self, hours: int) -> None:
        self.wall += hours * 3600_000

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def nothing_negative(self) -> None:
        for doc in self.store.slots.values():
            assert all(number >= 0 for share in doc.values() for number in share)
            assert all(share[1] <= share[0] for share in doc.values())

    def teardown(self) -> None:
        """When all is well again, everybody gets slots, no more than there are, and none is lost."""
        for gateway in self.gateways:
            gateway.limits = dict(self.limits)
            gateway.cut = False
            gateway.used = dict.fromkeys(WORKERS, 0)
            gateway.note(self.true)
            gateway.need = dict.fromkeys(WORKERS, 12)
            gateway.klass = 1
        self.pass_time(60.0)
        living = [each for each in self.gateways if each.alive]
        for worker in WORKERS:
            held = sorted(each.holder.shares[worker].held for each in living)
            assert sum(held) == (self.limits[worker] if living else 0)
            assert not living or held[0] >= self.limits[worker] // len(living)


TestLeases = Leases.TestCase
TestLeases.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
