"""Who goes next and where to: classes, floors, tenants, pools."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from sched_support import Bench, leases, names, policy, spec, worker

from gateway.scheduling.lanes import Roster
from gateway.scheduling.matcher import EXPLAINED, choice_of
from gateway.scheduling.model import Lease, OutcomeKind, Signal


def drained(bench: Bench, lease: Lease, rounds: int) -> list[str]:
    """Settle and see who follows, so many times: one place, one order."""
    order = []
    for _ in range(rounds):
        bench.now += 0.01
        (lease,) = leases(bench.settle(lease, prompt_tokens=100, output_tokens=50))
        order.append(lease.ticket.request.id)
    return order


def full(rules: object = None, **kwargs: object) -> tuple[Bench, Lease]:
    bench = Bench(rules, spec(max_num_seqs=1, **kwargs))  # type: ignore[arg-type]
    return bench, bench.lease("first")


def test_higher_classes_go_first_in_order_of_arrival() -> None:
    bench, lease = full()
    for name, klass in (("l1", 2), ("m1", 1), ("h1", 0), ("m2", 1), ("h2", 0)):
        bench.submit(name, klass=klass)
    assert drained(bench, lease, 5) == ["h1", "h2", "m1", "m2", "l1"]


def test_a_floor_is_kept_under_a_flood_of_higher_requests() -> None:
    classes = [{"name": "high"}, {"name": "mid"}, {"name": "low", "floor": 0.1}]
    bench, lease = full(policy(classes=classes))
    for n in range(200):
        bench.submit(f"h{n}", klass=0, queue_timeout_s=999)
        bench.submit(f"l{n}", klass=2, queue_timeout_s=999)
    order = drained(bench, lease, 100)
    assert Counter(name[0] for name in order)["l"] in (9, 10, 11)
    assert order[:3] == ["h0", "l0", "h1"] or order[:2] == ["h0", "h1"]


def test_a_floor_that_cannot_be_placed_holds_up_nobody() -> None:
    classes = [{"name": "high"}, {"name": "mid"}, {"name": "low", "floor": 0.5}]
    bench = Bench(policy(classes=classes), spec(max_num_seqs=2, kv_tokens=2000))
    running = bench.lease("long", prompt_tokens=1000)
    lease = bench.lease("first")
    bench.submit("large", klass=2, prompt_tokens=1500)
    for n in range(4):
        bench.submit(f"h{n}", klass=0)
    assert drained(bench, lease, 4) == ["h0", "h1", "h2", "h3"]
    bench.settle(running)


def test_tenants_of_one_class_share_by_weight() -> None:
    bench, lease = full(policy(tenants={"default": {}, "heavy": {"weight": 3}}))
    for n in range(100):
        bench.submit(f"a{n}", tenant="plain", queue_timeout_s=999)
        bench.submit(f"b{n}", tenant="heavy", queue_timeout_s=999)
    served = Counter(name[0] for name in drained(bench, lease, 80))
    assert 18 <= served["a"] <= 22


def test_a_tenant_of_long_prompts_gets_as_many_tokens_as_one_of_short_ones() -> None:
    bench, lease = full()
    for n in range(400):
        bench.submit(f"a{n}", tenant="long", prompt_tokens=5000, max_output_tokens=1, queue_timeout_s=999)
        bench.submit(f"b{n}", tenant="short", prompt_tokens=200, max_output_tokens=1, queue_timeout_s=999)
    served = Counter()
    for _ in range(150):
        (lease,) = leases(bench.settle(lease, output_tokens=1))
        served[lease.ticket.request.tenant] += lease.ticket.request.prompt_tokens
        assert abs(served["long"] - served["short"]) <= 2 * 5002


def test_a_full_tenant_waits_and_others_pass() -> None:
    rules = policy(tenants={"default": {}, "one": {"max_in_flight": 1}})
    bench = Bench(rules, spec(max_num_seqs=4))
    first = bench.lease("x1", tenant="one")
    second = bench.submit("x2", tenant="one")
    assert second.lease is None
    assert bench.submit("y", tenant="other").lease is not None
    assert names(bench.settle(first)) == ["x2"]


def test_two_lanes_that_share_a_worker_are_one_order() -> None:
    bench = Bench(policy(), spec("b1", "b", max_num_seqs=1))
    lease = bench.lease("first", pools=("b",))
    bench.submit("low", klass=2, pools=("b",))
    bench.submit("mid", klass=1, pools=("a", "b"))
    bench.submit("later", klass=1, pools=("b",), tenant="u")
    bench.submit("high", klass=0, pools=("b", "a"))
    bench.submit("last", klass=1, pools=("b", "a"), tenant="v")
    bench.scheduler._tenants.get("u").flow(1).charge(1e6)
    bench.scheduler._tenants.get("v").flow(1).charge(2e6)
    assert drained(bench, lease, 5) == ["high", "mid", "later", "last", "low"]


def test_an_idle_pool_is_borrowed_and_home_is_preferred() -> None:
    bench = Bench(policy(), spec("a1", "a", max_num_seqs=2), spec("b1", "b", max_num_seqs=2))
    assert bench.lease("first").worker == "a1"
    assert sorted(bench.lease(f"r{n}").worker for n in range(3)) == ["a1", "b1", "b1"]


def test_home_gets_what_comes_while_one_of_its_workers_has_nothing_to_do() -> None:
    slow, fast = "llama3-8b/l4", "llama3-8b/h100"
    bench = Bench(policy(), spec("a1", "a", preset=slow), spec("a2", "a", preset=slow), spec("b1", "b", preset=fast))
    assert {bench.lease("r1", expected_output=500).worker, bench.lease("r2").worker} == {"a1", "a2"}
    assert bench.lease("r3", expected_output=500).worker == "b1"  # home is busy, and slower


def test_an_idle_worker_that_failed_does_not_keep_work_at_home() -> None:
    bench = Bench(policy(), spec("a1", "a"), spec("b1", "b"))
    bench.settle(bench.lease("r1"), OutcomeKind.SERVER_ERROR)
    assert bench.lease("r2").worker == "b1"


def test_other_pools_stand_by_for_a_canary() -> None:
    tried = policy(models={"m": {"canary": [{"pool": "a", "weight": 0.5}]}})
    bench = Bench(tried, spec("a1", "a", max_num_seqs=3), spec("b1", "b", max_num_seqs=8))
    first = bench.lease("r1", expected_output=5000, max_output_tokens=5000)
    assert [bench.lease(f"r{n}").worker for n in (2, 3)] == ["a1", "a1"]  # busier than b1, and yet its share is its own
    assert [bench.lease(f"r{n}").worker for n in (4, 5)] == ["b1", "b1"]  # it is full
    bench.settle(first)
    assert bench.lease("r6", expected_output=5000, max_output_tokens=5000).worker == "a1"


SOFT = {"short": {"max_budget_tokens": 4096, "may_borrow": ["long"]}, "long": {"may_borrow": ["short"]}}


def test_a_longer_pools_prefill_takes_one_place_on_a_worker_for_shorter_ones() -> None:
    bench = Bench(policy(pools=SOFT), spec("s", "short", max_num_seqs=8), spec("l", "long", max_num_seqs=1))
    home = bench.lease("home", pools=("long", "short"))
    guest = bench.lease("guest", pools=("long", "short"))
    assert (home.worker, guest.worker, guest.guest) == ("l", "s", True)
    waiting = bench.submit("next", pools=("long", "short"))
    assert waiting.lease is None
    assert bench.lease("short", pools=("short", "long")).worker == "s"
    assert names(bench.take(bench.scheduler.first_token(guest, bench.now))) == ["next"]
    assert bench.scheduler.first_token(guest, bench.now) == []


def test_shorter_requests_are_nobodys_guests() -> None:
    bench = Bench(policy(pools=SOFT), spec("l", "long", max_num_seqs=8))
    assert [bench.lease(f"r{n}", pools=("short", "long")).guest for n in range(3)] == [False] * 3


def test_nothing_is_borrowed_while_home_keeps_its_promise() -> None:
    def chosen(promise: float | None) -> list[str]:
        rules = policy(pools={"a": {"may_borrow": ["b"], "ttft_slo_s": promise}, "b": {}})
        bench = Bench(rules, spec("home", max_num_seqs=9), spec("lent", pool="b", max_num_seqs=9))
        return [bench.lease(str(n), prompt_tokens=8000).worker for n in range(4)]

    each_s = worker().step.prefill_s(8000)
    assert chosen(None)[1] == "lent", "what waits at home costs more than the crossing"
    assert chosen(0.5 * each_s) == chosen(None), "nobody keeps that promise, so that the score decides"
    assert chosen(2.5 * each_s)[:3] == ["home", "home", "lent"]


def test_without_a_home_nobody_is_a_guest() -> None:
    bench = Bench(policy(pools=SOFT), spec("s", "short", max_num_seqs=8))
    assert [bench.lease(f"r{n}", pools=("long", "short")).guest for n in range(3)] == [False] * 3
    bench.observe(spec("l", "long", max_num_seqs=1))
    assert bench.lease("home", pools=("long", "short")).worker == "l"
    assert bench.lease("guest", pools=("long", "short")).guest


def test_guests_follow_the_policy() -> None:
    bench = Bench(policy(pools=SOFT), spec("s", "short", max_num_seqs=8), spec("l", "long", max_num_seqs=1))
    assert [bench.lease(name, pools=("long", "short")).worker for name in ("home", "guest")] == ["l", "s"]
    waiting = bench.submit("two", pools=("long", "short"))
    assert waiting.lease is None
    equal = {"short": {"may_borrow": ["long"]}, "long": {"may_borrow": ["short"]}}
    assert names(bench.take(bench.scheduler.adopt(policy(pools=equal), bench.now))) == ["two"]


def test_a_blocked_large_request_does_not_hold_up_small_ones() -> None:
    bench = Bench(policy(), spec(max_num_seqs=8, kv_tokens=1000))
    running = bench.lease("first", prompt_tokens=500)
    large = bench.submit("large", prompt_tokens=800)
    assert large.lease is None
    assert bench.submit("small", prompt_tokens=50).lease is not None
    bench.submit("again", prompt_tokens=600)
    assert names(bench.settle(running)) == ["again"]
    assert large.lease is None


def test_equal_idle_workers_share_sequential_requests() -> None:
    """A counter that drifts or a tie that always picks the first starves workers (BR-06-01)."""
    bench = Bench(policy(), *(spec(f"w{n}") for n in range(3)))
    seen: Counter[str] = Counter()
    for n in range(60):
        lease = bench.lease(str(n))
        seen[lease.worker] += 1
        bench.settle(lease)
    assert all(10 <= seen[f"w{n}"] <= 30 for n in range(3))
    assert all(bench.shown(f"w{n}").in_flight == 0 for n in range(3))


def test_the_algorithm_is_the_policys() -> None:
    bench = Bench(policy(balancing={"algorithm": "round_robin"}), *(spec(f"w{n}", max_num_seqs=9) for n in range(3)))
    assert [bench.lease(str(n)).worker for n in range(6)] == ["w0", "w1", "w2"] * 2


def test_explanation_starts_with_the_choice_and_is_bounded() -> None:
    workers = [worker(name=f"w{n}") for n in range(20)]

    def told(scores: list[float], chosen: int) -> list[tuple[str, float, float | None]]:
        return choice_of(Roster(workers[: len(scores)], [1.0] * len(scores)), scores, chosen).told()

    best = [("w3", 17.0, None), *[(f"w{19 - n}", n + 1.0, None) for n in range(EXPLAINED - 1)]]
    assert told([float(20 - n) for n in range(20)], 3) == best
    assert told([5.0], 0) == [("w0", 5.0, None)]
    assert told([5.0, 4.0, 3.0], 1) == [("w1", 4.0, None), ("w2", 3.0, None), ("w0", 5.0, None)]


def test_explanation_says_how_old_the_reports_were() -> None:
    bench = Bench(policy(), *(spec(f"w{n}", max_num_seqs=9) for n in range(2)))
    bench.to(7.0)
    bench.observe(spec("w1", max_num_seqs=9), Signal(7.0, 0, 0, 0))
    lease = bench.lease()
    assert lease.choice is not None
    assert {name: at for name, _, at in lease.choice.told()} == {"w0": None, "w1": 7.0}
    bench.to(8.0)
    bench.observe(spec("w0", max_num_seqs=9), Signal(8.0, 0, 0, 0))
    later = bench.lease()
    assert later.choice is not None
    assert {name: at for name, _, at in later.choice.told()} == {"w0": 8.0, "w1": 7.0}
    assert {name: at for name, _, at in lease.choice.told()} == {"w0": None, "w1": 7.0}


def test_several_prompts_in_one_body_all_count_as_prefill() -> None:
    bench = Bench(policy(), spec())
    one = bench.lease("one", prompt_tokens=100)
    bench.settle(one)
    many = bench.lease("many", prompt_tokens=100, prefill_tokens=1000)
    assert many.cost.prefill_s > 9 * one.cost.prefill_s
    assert many.cost.kv_tokens == one.cost.kv_tokens


def test_short_prompts_go_first_inside_a_flow_but_long_ones_do_not_wait_for_ever() -> None:
    bench, lease = full()
    bench.submit("long", prompt_tokens=40_000, queue_timeout_s=999)
    bench.submit("short", queue_timeout_s=999)
    bench.now = 60.0
    bench.submit("later")
    assert drained(bench, lease, 3) == ["short", "long", "later"]


def test_the_pool_at_home_may_promise_another_time_per_token() -> None:
    classes = [{"name": "mid", "tpot_slo_s": 0.1}]
    pools = {"a": {"tpot_slo_s": 0.05}, "b": {}}
    rules = policy(classes=classes, default_class="mid", pools=pools)
    bench = Bench(rules, spec("a1", "a", max_num_seqs=1), spec("b1", "b", max_num_seqs=8))
    promises = [
        bench.lease(name, klass=0, pools=homes).tpot_slo_s for name, homes in (("r", ("a", "b")), ("s", ("b",)))
    ]
    assert promises == [0.05, 0.1]
    assert bench.lease("t", klass=0, pools=("a", "b")).tpot_slo_s == 0.05  # on the borrowed worker too


@given(st.lists(st.booleans(), max_size=30))
def test_a_roster_without_some_places_has_the_others_in_their_order(out: list[bool]) -> None:
    workers = [worker(name=f"w{n}") for n in range(len(out))]
    factors = [1.0 + n % 3 for n in range(len(out))]
    left = Roster(workers, factors).without([at for at, gone in enumerate(out) if gone])
    kept = [at for at, gone in enumerate(out) if not gone]
    assert left.workers == [workers[at] for at in kept]
    assert left.factors == [factors[at] for at in kept]
