"""The fleet in virtual time: every request is accounted for, times add up, troubles strike."""

from __future__ import annotations

from random import Random

import pytest

from gateway.scheduling.model import Reason
from loadtest.baselines import RULES, BaselineRouter
from loadtest.figures import Figures, Slo, spread
from loadtest.fleet import Fleet, FleetResult, Job, Trouble, WorkerPlan
from loadtest.routers import OutputGuess, ProductionRouter
from loadtest.traces import TraceRequest
from policies.document import Policy
from policies.work import StepTime
from workers.engines.timing import EngineConfig

SECOND = StepTime(t0=1.0, c_seq=0.0, W=0.0, c_tok=0.0, c_kv=0.0, c_pair=0.0)  # every step takes a second
ENGINE = EngineConfig(SECOND, 4096, max_num_seqs=4, max_num_batched_tokens=512)


def plans(count: int, engine: EngineConfig = ENGINE) -> list[WorkerPlan]:
    return [WorkerPlan(f"w{number}", engine, "short-chat") for number in range(count)]


def requests(*times: float, prompt: int = 100, output: int = 5) -> list[TraceRequest]:
    return [TraceRequest(time, prompt, output) for time in times]


def production(seed: int = 1) -> ProductionRouter:
    return ProductionRouter(Policy(), Random(seed))


@pytest.mark.parametrize("router", [production(), BaselineRouter(RULES["least_requests"], Random(1))])
def test_one_request_on_an_idle_fleet(router: ProductionRouter | BaselineRouter) -> None:
    result = Fleet(plans(2), router).run(requests(0.25))
    (job,) = result.jobs
    assert (job.ttft_s, job.tpot_s, job.finished) == (1.0, 1.0, 5.25 + 1.0 - 1.0)
    assert sum(worker.generated_tokens for worker in result.workers) == 5


def test_an_arrival_in_the_middle_of_a_run_waits_for_the_end_of_a_step_only() -> None:
    result = Fleet(plans(1), production()).run([TraceRequest(0.0, 10, 100), TraceRequest(10.5, 10, 3)])
    late = result.jobs[1]
    assert (late.first_token, late.finished) == (12.0, 14.0)
    assert result.jobs[0].finished == 100.0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_serves_all_and_uses_all_workers(rule: str) -> None:
    result = Fleet(plans(3), BaselineRouter(RULES[rule], Random(3))).run(requests(*[i / 4 for i in range(60)]))
    assert all(job.finished is not None for job in result.jobs)
    assert all(worker.requests > 0 for worker in result.workers)


def test_the_same_seed_gives_the_same_run_and_nothing_is_left_on_the_ledger() -> None:
    traffic = [TraceRequest(i / 3, 50 + 37 * i % 400, 1 + 11 * i % 60) for i in range(120)]
    stories = []
    for _ in range(2):
        router = production(5)
        result = Fleet(plans(3), router).run(traffic)
        stories.append([(job.worker, job.first_token, job.finished) for job in result.jobs])
        snapshot = router.scheduler.snapshot(result.ended)
        assert (snapshot.in_flight, snapshot.queued) == (0, 0)
    assert stories[0] == stories[1]


def test_a_lost_worker_costs_only_what_had_streamed() -> None:
    trouble = Trouble(3.5, "w0", lost=True)
    traffic = [*requests(0.0, 0.0, 0.0, 0.0, output=50), *requests(3.2, 3.2, output=5), *requests(9, 9, output=5)]
    for router in (production(), BaselineRouter(RULES["least_requests"], Random(1))):
        result = Fleet(plans(2), router, [trouble]).run(traffic)
        broken = [job for job in result.jobs if job.refused is not None]
        assert broken
        assert all(job.worker == "w0" and job.first_token is not None and job.first_token < 3.5 for job in broken)
        retried = [job for job in result.jobs if job.attempts > 1]
        assert retried
        assert all(job.finished is not None and job.worker == "w1" for job in retried)


def test_with_no_worker_left_everything_is_refused_in_the_end() -> None:
    for router in (production(), BaselineRouter(RULES["round_robin"], Random(1))):
        result = Fleet(plans(1), router, [Trouble(0.5, "w0", lost=True)]).run(requests(0.0, 2.0))
        assert all(job.refused is not None for job in result.jobs)
    assert result.jobs[1].refused is Reason.NO_WORKER


def test_a_slow_worker_is_slower() -> None:
    result = Fleet(plans(1), production(), [Trouble(0.0, "w0", slowdown=3.0)]).run(requests(0.0))
    # The step that was under way when it slowed down is as fast as it was begun.
    assert result.jobs[0].finished == 1.0 + 4 * 3.0


def test_figures_count_refused_requests_as_not_good() -> None:
    good = Job(0, TraceRequest(0, 100, 11, "a"), 0.0, first_token=1.0, finished=2.0)
    late = Job(1, TraceRequest(0, 100, 11, "b"), 0.0, first_token=2.5, finished=3.0)
    slow = Job(2, TraceRequest(0, 100, 11, "b"), 0.0, first_token=1.0, finished=2.5)
    long = Job(3, TraceRequest(0, 10_000, 1, "b"), 0.0, first_token=4.4, finished=4.4, attempts=2)
    gone = Job(4, TraceRequest(0, 100, 11, "a"), 0.0, refused=Reason.QUEUE_FULL)
    assert [Slo().met(job) for job in (good, late, slow, long, gone)] == [True, False, False, True, False]
    figures = Figures.of(FleetResult([good, late, slow, long, gone], [], 5.0, 1))
    assert (figures.all.goodput, figures.short.goodput, figures.long.goodput) == (0.4, 0.25, 1.0)
    assert (figures.tenants["a"].goodput, figures.refused, figures.retried) == (0.5, {"queue_full": 1}, 1)
    assert figures.as_dict()["all"]["requests"] == 5
    assert Figures.of(FleetResult([], [], 0.0, 0)).all.goodput == 1.0


def test_spread() -> None:
    assert spread([]) == spread([2, 2]) == spread([0, 0]) == 0.0
    assert spread([1, 3]) == 0.5


def test_the_guess_follows_the_outputs() -> None:
    guess = OutputGuess()
    rng = Random(1)
    for _ in range(4000):
        guess.observe(rng.randint(1, 100))
    assert 40 < guess.mean < 60
    assert 75 < guess.high < 105
