"""What a gateway tells others of its work, and what theirs adds."""

import random

from gateway.scheduling.model import NOTHING, Lease, Others, Request, Signal, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.shares import NOBODY
from policies.document import policy_from_mapping

POLICY = policy_from_mapping(
    {"tenants": {"default": {}, "few": {"max_in_flight": 2}}, "limits": {"max_in_flight_per_worker": 4}}
)
SPEC = WorkerSpec("w1", "short-chat", frozenset({"tiny"}), 4096, 8, 100_000)


def request(name: str, tenant: str = "default", klass: int = 1) -> Request:
    return Request(name, tenant, klass, "tiny", ("short-chat",), 100, 16)


def scheduler(slots: int | None = None) -> Scheduler:
    one = Scheduler(POLICY, random.Random(1))
    one.observe(SPEC, Signal(0.0, 3, 1, 500), 0.0)
    one.set_slots("w1", slots, 0.0)
    return one


def submit(one: Scheduler, count: int, tenant: str = "default", klass: int = 1, now: float = 0.0) -> int:
    """How many of them could go."""
    gone = 0
    for number in range(count):
        _, effects = one.submit(request(f"{tenant}{klass}{number}", tenant, klass), None, now)
        gone += sum(isinstance(effect, Lease) for effect in effects)
    return gone


def test_a_load_says_what_all_gateways_may_use_and_what_this_one_lacks():
    one = scheduler(slots=2)
    assert submit(one, 5) == 2
    submit(one, 1, klass=0)
    (load,) = one.shares.loads(0.0)
    assert (load.id, load.places, load.used, load.slots, load.here) == ("w1", 4, 2, 2, True)
    assert (load.need, load.klass) == (4, 0)
    assert (load.running, load.reported) == (4, 0.0)
    assert load.kv_tokens > 0
    assert load.prefill_s > 0


def test_nothing_is_needed_where_slots_are_not_what_is_lacking():
    assert scheduler().shares.loads(0.0)[0].need == 0
    one = scheduler(slots=None)
    assert submit(one, 6) == 4
    assert (one.shares.loads(0.0)[0].need, one.shares.loads(0.0)[0].klass) == (0, NOBODY)


def test_what_runs_at_a_worker_that_has_gone_still_counts():
    one = scheduler(slots=4)
    submit(one, 3)
    one.forget("w1", 1.0)
    (load,) = one.shares.loads(1.0)
    assert (load.used, load.places, load.here) == (3, 3, False)
    one.observe(SPEC, None, 2.0)
    assert [(each.id, each.used, each.here) for each in one.shares.loads(2.0)] == [("w1", 3, True)]


def test_others_work_weighs_as_own_and_goes_when_they_say_nothing():
    one = scheduler()
    worker = one._fleet.workers["w1"]
    worker.refresh(0.0, 0.1, 0.95)
    alone = worker.load
    one.shares.others({"w1": Others(5.0, 1.0, 2.0, 900.0), "unknown": Others(1.0)})
    assert worker.dirty
    worker.refresh(0.0, 0.1, 0.95)
    assert worker.load == alone + 5.0
    worker.observe(Signal(1.0, 6, 0, 1000))
    assert worker.foreign_count == 1, "of six reported, five are known to be other gateways'"
    one.shares.others({})
    assert worker.others is NOTHING


def test_what_is_leased_before_a_worker_is_known_holds_when_it_comes_and_goes_with_it():
    one = Scheduler(POLICY, random.Random(1))
    one.shares.govern(on=True)
    assert one.shares.lease({"w1": 3, "w2": None}) == [], "nobody is here yet"
    one.observe(SPEC, None, 0.0)
    assert submit(one, 4) == 3
    one.forget("w1", 1.0)
    assert one.shares.slots_of("w1") == 0
    one.shares.govern(on=False)
    assert one.shares.slots_of("w1") is None


def test_the_same_work_of_others_changes_nothing_twice():
    one = scheduler()
    worker = one._fleet.workers["w1"]
    one.shares.others({"w1": Others(1.0)})
    worker.dirty = False
    one.shares.others({"w1": Others(1.0)})
    assert not worker.dirty


def test_a_tenant_runs_no_more_than_is_leased_here():
    one = scheduler()
    one.shares.govern(on=True)
    assert submit(one, 3, "few") == 0
    (load,) = one.shares.tenants()
    assert (load.id, load.places, load.used, load.need, load.klass, load.slots) == ("@few", 2, 0, 2, 1, 0)
    one.shares.lease({"@few": 1})
    assert sum(isinstance(effect, Lease) for effect in one.tick(0.1)) == 1
    assert one.shares.tenants()[0].need == 2
    one.shares.lease({"@few": 5})
    assert sum(isinstance(effect, Lease) for effect in one.tick(0.2)) == 1, "its own limit holds all the same"
    assert submit(one, 1, "default") == 1
    one.adopt(policy_from_mapping({"tenants": {"default": {}, "few": {}}}), 0.3)
    assert one.shares.tenants() == []
