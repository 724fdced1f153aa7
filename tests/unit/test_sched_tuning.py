"""What tuning of pools' budgets learns of leases and of the fleet, and how a gateway carries its decisions."""

from __future__ import annotations

import asyncio

from sched_support import Bench, policy, spec

from gateway.policy_store import Current
from gateway.recent import Recent
from gateway.scheduling.model import Outcome, OutcomeKind
from gateway.scheduling.tuning import learn, staff_of
from gateway.tuning import Tuning, change_view
from policies.classify import Classifier
from policies.document import Policy
from policies.revisions import first_revision
from policies.tuning import BudgetChange, BudgetTuner, Staff

BOUNDS = {"max_budget_tokens": 4096, "tune_budget_from": 1024, "tune_budget_to": 32_768}


def tuned() -> Policy:
    return policy(pools={"a": BOUNDS, "b": {}}, models={}, rules=[])


def current(rules: Policy) -> Current:
    return Current(first_revision(rules, "", 500.0, "test"), Classifier(rules))


def test_the_work_of_what_went_well_counts_for_its_home() -> None:
    bench = Bench(tuned(), spec("w", "b", max_num_seqs=9))
    tuner = BudgetTuner(tuned())
    pair = tuner._pairs["a"]
    lease = bench.lease(pools=("b",), prompt_tokens=5000, budget_tokens=5100)
    for kind in (OutcomeKind.CLIENT_GONE, OutcomeKind.SERVER_ERROR):
        learn(tuner, lease, Outcome(kind))
    assert not any(pair.works)
    learn(tuner, lease, Outcome(OutcomeKind.OK, 200, None, 5200, 100))
    worker = lease.booked_on
    assert worker is not None
    assert sum(pair.works) == worker.step.occupancy_s(5200, 100)
    lease.tokens = 7
    learn(tuner, lease, Outcome(OutcomeKind.OK))
    assert sum(pair.works) == worker.step.occupancy_s(5200, 100) + worker.step.occupancy_s(5000, 7)
    ruled = bench.lease("ruled", pools=("b",))
    learn(tuner, ruled, Outcome(OutcomeKind.OK))
    assert pair.fixed["b"] > 0.0


def test_who_takes_requests_works() -> None:
    bench = Bench(tuned(), spec("w1", "a", max_model_len=9000), spec("w2", "a", max_model_len=4000), spec("w3", "b"))
    bench.take(bench.scheduler.drain("w3", 0.0))
    assert staff_of(bench.scheduler.snapshot(0.0)) == {"a": Staff(2, 4000)}
    bench.take(bench.scheduler.drain("w3", 0.0, False))
    bench.observe(spec("w4", "a"))
    assert staff_of(bench.scheduler.snapshot(0.0)) == {"a": Staff(3, 4000), "b": Staff(1)}


def test_a_gateway_goes_by_what_it_served_and_tells_every_change() -> None:
    recent, now = Recent(), current(tuned())
    told: list[BudgetChange] = []
    tuning = Tuning(now, recent, told.append)
    assert now.classifier.budgets == tuning.budgets == {"a": 4096}
    bench = Bench(tuned(), spec("w", "a", max_num_seqs=9), spec("v", "b", max_num_seqs=9))
    for number in range(80):
        lease = bench.lease(str(number), pools=("b",), prompt_tokens=5000, budget_tokens=(5000, 9000)[number % 2])
        tuning.dispatched(lease)
        tuning.settled(lease, Outcome(OutcomeKind.OK))
        bench.settle(lease)
        story = recent.find(str(number))
        assert story is not None
        assert [attempt.outcome for attempt in story.attempts] == ["ok"]
    (change,) = tuning.decide(bench.scheduler.snapshot(0.0))
    assert told == [change]
    assert change_view(change) == {"pool": "a", "before": 4096, "after": 6144, "why": change.why}
    assert now.classifier.budgets == {"a": 6144}
    later = current(tuned())
    tuning.adopt(later)
    assert later.classifier.budgets == {"a": 6144}
    off = current(policy())
    tuning.adopt(off)
    tuning.settled(lease, Outcome(OutcomeKind.OK))
    assert off.classifier.budgets == {}


def test_it_decides_again_and_again() -> None:
    asked: list[int] = []

    async def some_minutes(rules: Policy) -> None:
        bench = Bench(tuned())
        enough = asyncio.Event()

        def fleet() -> object:
            asked.append(1)
            if len(asked) == 3:
                enough.set()
            return bench.scheduler.snapshot(0.0)

        running = asyncio.ensure_future(Tuning(current(rules), Recent(), print).run(fleet, 0.0))  # type: ignore[arg-type]
        if rules.pools["a"].tune_budget_to is None:
            for _ in range(5):
                await asyncio.sleep(0)
        else:
            await enough.wait()
        running.cancel()

    asyncio.run(some_minutes(policy()))
    assert asked == [], "nothing to tune"
    asyncio.run(some_minutes(tuned()))
    assert len(asked) >= 3
