"""Hand-made requests, workers and schedulers for the scheduler's unit tests."""

from __future__ import annotations

from random import Random
from typing import Any

from gateway.scheduling.health import Health
from gateway.scheduling.model import (
    Effect,
    Lease,
    Outcome,
    OutcomeKind,
    Reason,
    Refuse,
    Request,
    Signal,
    Ticket,
    WorkerChange,
    WorkerSpec,
)
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.worker import Worker
from policies.document import Policy, policy_from_mapping

OK = Outcome(OutcomeKind.OK, 200)


def request(name: str = "r", **changes: Any) -> Request:
    usual: dict[str, Any] = {
        "id": name,
        "tenant": "t",
        "klass": 1,
        "model": "m",
        "pools": ("a", "b"),
        "prompt_tokens": 100,
        "max_output_tokens": 100,
        "expected_output": 50,
        "p90_output": 100,
    }
    return Request(**{**usual, **changes})


def spec(name: str = "w", pool: str = "a", **changes: Any) -> WorkerSpec:
    usual: dict[str, Any] = {"models": frozenset({"m"}), "max_num_seqs": 2}
    return WorkerSpec(name, pool, **{**usual, **changes})


def policy(**sections: Any) -> Policy:
    usual: dict[str, Any] = {
        "classes": [{"name": "high"}, {"name": "mid"}, {"name": "low"}],
        "default_class": "mid",
        "pools": {"a": {}, "b": {}},
        "tenants": {"default": {}},
    }
    return policy_from_mapping({**usual, **sections})


def worker(now: float = 0.0, **changes: Any) -> Worker:
    return Worker(spec(**changes), Health(now, ramp=False), now)


class Bench:
    """A scheduler with a clock that the test moves."""

    def __init__(self, rules: Policy | None = None, *specs: WorkerSpec, seed: int = 1) -> None:
        self.scheduler = Scheduler(rules or policy(), Random(seed))
        self.now = 0.0
        self.effects: list[Effect] = []
        for one in specs:
            self.observe(one)

    def take(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    def observe(self, one: WorkerSpec, signal: Signal | None = None) -> list[Effect]:
        return self.take(self.scheduler.observe(one, signal, self.now))

    def submit(self, name: str = "r", **changes: Any) -> Ticket:
        ticket, effects = self.scheduler.submit(request(name, **changes), name, self.now)
        self.take(effects)
        return ticket

    def lease(self, name: str = "r", **changes: Any) -> Lease:
        """Submit what is expected to run at once."""
        ticket = self.submit(name, **changes)
        assert ticket.lease is not None, "it did not get a worker"
        return ticket.lease

    def settle(
        self, lease: Lease, kind: OutcomeKind = OutcomeKind.OK, *, retry: bool = False, **outcome: Any
    ) -> list[Effect]:
        return self.take(self.scheduler.settle(lease, Outcome(kind, **outcome), self.now, retry=retry))

    def to(self, now: float) -> list[Effect]:
        """Move the clock, with every deadline on the way."""
        effects: list[Effect] = []
        while (due := self.scheduler.next_deadline()) is not None and due <= now:
            self.now = max(due, self.now)
            effects += self.scheduler.tick(self.now)
        self.now = now
        effects += self.scheduler.tick(now)
        return self.take(effects)

    def refusal(self, ticket: Ticket) -> Refuse:
        found = [effect for effect in self.effects if isinstance(effect, Refuse) and effect.ticket is ticket]
        assert len(found) == 1
        return found[0]

    def reason(self, ticket: Ticket) -> Reason:
        return self.refusal(ticket).reason

    def shown(self, worker_id: str = "w") -> Any:
        return next(one for one in self.scheduler.snapshot(self.now).workers if one.id == worker_id)


def leases(effects: list[Effect]) -> list[Lease]:
    return [effect for effect in effects if isinstance(effect, Lease)]


def names(effects: list[Effect]) -> list[str]:
    """Ids of the requests dispatched, in order."""
    return [lease.ticket.request.id for lease in leases(effects)]


def changes(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(effect.worker, str(effect.state)) for effect in effects if isinstance(effect, WorkerChange)]
