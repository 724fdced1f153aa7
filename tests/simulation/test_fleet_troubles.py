"""Fleets in trouble: workers that are lost, come back or get slow, several gateways, pools of the wrong size."""

from __future__ import annotations

from dataclasses import replace

from gateway.scheduling.model import Reason
from loadtest.fleet import Fleet, Trouble
from loadtest.replicas import ReplicatedRouter
from loadtest.simulate import Scenario, mean_goodput

CALM = Scenario(seconds=100.0, window=4)


def test_a_lost_worker_costs_its_own_streams_and_little_else() -> None:
    figures = replace(CALM, troubles=(Trouble(30.0, "short-chat-3", lost=True),)).run()
    assert set(figures.refused) <= {str(Reason.ATTEMPTS_EXHAUSTED)}
    assert sum(figures.refused.values()) <= 40  # those that streamed there
    assert figures.all.goodput >= 0.95


def test_a_worker_that_comes_back_gets_work_again() -> None:
    lost = Trouble(20.0, "short-chat-3", lost=True)
    gone = replace(CALM, troubles=(lost,)).run()
    back = replace(CALM, troubles=(lost, Trouble(35.0, "short-chat-3", back=True))).run()
    assert back.all.goodput >= gone.all.goodput
    assert back.busy_cv < gone.busy_cv + 0.5
    assert set(back.refused) <= {str(Reason.ATTEMPTS_EXHAUSTED)}


def test_a_slow_worker_gets_less() -> None:
    slow = replace(CALM, troubles=(Trouble(0.0, "short-chat-3", slowdown=3.0),))
    own = slow.run()
    fair = replace(slow, router="round_robin").run()
    assert own.all.goodput >= 0.95
    assert own.all.goodput > fair.all.goodput + 0.05


def test_gateways_that_talk_do_nearly_as_well_as_one() -> None:
    alone = CALM.run().all.goodput
    talking = replace(CALM, gateways=4).run().all.goodput
    silent = replace(CALM, gateways=4, gossip_s=None).run().all.goodput
    assert talking >= alone - 0.015
    assert silent >= alone - 0.05


def test_several_gateways_give_everything_back() -> None:
    scenario = replace(CALM, seconds=20.0, gateways=3)
    router = scenario.build_router()
    assert isinstance(router, ReplicatedRouter)

    result = Fleet(scenario.plans(), router).run(scenario.trace())
    assert all(job.finished is not None for job in result.jobs)
    for gateway in router.gateways:
        snapshot = gateway.scheduler.snapshot(result.ended)
        assert (snapshot.in_flight, snapshot.queued) == (0, 0)
        assert all(worker.booked_kv_tokens == 0 for worker in snapshot.workers)


def test_wrong_pool_sizes_cost_a_little_instead_of_everything() -> None:
    for short, long_ in ((2, 6), (6, 2)):
        split = replace(CALM, pools=(("short-chat", short), ("long-context", long_)))
        everything, _, of_long = mean_goodput([split.run()])
        assert everything >= 0.97
        assert of_long >= 0.8
