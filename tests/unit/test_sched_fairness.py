"""Virtual token counters."""

from __future__ import annotations

import pytest
from sched_support import policy

from gateway.scheduling import fairness
from gateway.scheduling.fairness import Tenants, service

RULES = policy(tenants={"default": {}, "heavy": {"weight": 4, "max_in_flight": 2, "max_queued": 3}})


def test_output_counts_twice() -> None:
    assert service(100, 10) == 120.0


def test_weight_divides_what_is_charged() -> None:
    tenants = Tenants(RULES.tenant)
    plain, heavy = tenants.get("x").flow(0), tenants.get("heavy").flow(0)
    plain.charge(400.0)
    heavy.charge(400.0)
    assert (plain.counter, heavy.counter) == (400.0, 100.0)
    assert tenants.get("x").flow(0) is plain
    assert tenants.get("x").flow(1) is not plain


def test_orders_hear_of_a_counter_that_shrinks() -> None:
    class Spy:
        told = 0

        def resubmit(self) -> None:
            self.told += 1

    flow, spy = Tenants(RULES.tenant).get("x").flow(0), Spy()
    flow.lines[spy] = None  # type: ignore[index]
    flow.charge(10.0)
    assert spy.told == 0
    flow.charge(-10.0)
    assert spy.told == 1


def test_time_away_earns_no_credit() -> None:
    flow = Tenants(RULES.tenant).get("x").flow(0)
    flow.lift(300.0)
    assert flow.counter == 300.0
    flow.lift(200.0)
    assert flow.counter == 300.0
    flow.waiting = 1
    flow.lift(900.0)
    assert flow.counter == 300.0


def test_limits_follow_the_policy() -> None:
    tenants = Tenants(RULES.tenant)
    tenant = tenants.get("heavy")
    assert not tenant.full
    tenant.in_flight = 2
    assert tenant.full
    tenants.adopt(policy().tenant)
    assert not tenant.full
    assert (tenant.weight, tenant.max_queued) == (1.0, None)


def test_idle_tenants_are_forgotten_when_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MAX_IDLE_TENANTS", 10)
    tenants = Tenants(RULES.tenant)
    busy, waiting = tenants.get("busy"), tenants.get("waiting")
    busy.in_flight, waiting.queued = 1, 1
    for n in range(100):
        tenants.get(f"t{n}")
    assert len(tenants) <= 10
    assert tenants.get("busy") is busy
    assert tenants.get("waiting") is waiting
