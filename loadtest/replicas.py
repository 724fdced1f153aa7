"""Several gateways in front of one fleet, each with a scheduler of its own that sees only its own requests.

Clients spread over the gateways at random. What the others have on the workers a gateway hears by gossip: once in a
period, at times spread over the gateways, each says what its ledger holds and reads what the others said last, so that
what it knows of them is up to two periods old. Who sends a long prompt says so at once, and the others look soon.
Without gossip only the engines' reports tell that there are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final

from gateway.scheduling.model import Others
from loadtest.fleet import Job, Placement, WorkerPlan
from loadtest.routers import ProductionRouter
from workers.engines.timing import EngineCore

WORD_S: Final = 0.02  # from a word to the others until they have looked


@dataclass(slots=True)
class ReplicatedRouter:
    """Gateways that share a fleet. `gossip_s`: the period; None: they do not talk."""

    gateways: Sequence[ProductionRouter]
    gossip_s: float | None
    rng: Random
    _of: dict[Job, ProductionRouter] = field(init=False, default_factory=dict)
    _told: list[dict[str, Others]] = field(init=False)  # what each gateway said last
    _due: list[float] = field(init=False)  # when each speaks next

    def __post_init__(self) -> None:
        count = len(self.gateways)
        period = self.gossip_s
        self._told = [{} for _ in range(count)]
        self._due = [inf if period is None else period * (number + 1) / count for number in range(count)]

    def join(self, plan: WorkerPlan, now: float) -> list[Placement]:
        """A worker exists."""
        return [placement for gateway in self.gateways for placement in gateway.join(plan, now)]

    def submit(self, job: Job, now: float) -> list[Placement]:
        """A request has arrived at one of them."""
        gateway = self._of[job] = self.rng.choice(self.gateways)
        return self._told_of(gateway, gateway.submit(job, now), now)

    def first_token(self, job: Job, now: float) -> list[Placement]:
        """Its first token has come."""
        gateway = self._of[job]
        return self._told_of(gateway, gateway.first_token(job, now), now)

    def progress(self, job: Job, tokens: int, now: float) -> None:
        """So many more tokens have come."""
        self._of[job].progress(job, tokens, now)

    def finished(self, job: Job, now: float) -> list[Placement]:
        """All its tokens have come."""
        gateway = self._of.pop(job)
        return self._told_of(gateway, gateway.finished(job, now), now)

    def failed(self, job: Job, now: float) -> list[Placement]:
        """Its worker is gone."""
        gateway = self._of[job]
        return self._told_of(gateway, gateway.failed(job, now), now)

    def report(self, plan: WorkerPlan, core: EngineCore, now: float) -> list[Placement]:
        """What a worker says of itself, to all of them."""
        return [placement for gateway in self.gateways for placement in gateway.report(plan, core, now)]

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        times = [due for gateway in self.gateways if (due := gateway.next_deadline()) is not None]
        soonest = min([*times, *self._due])
        return None if soonest == inf else soonest

    def tick(self, now: float) -> list[Placement]:
        """Time has come for some of them."""
        placements: list[Placement] = []
        for number, gateway in enumerate(self.gateways):
            if self._due[number] <= now:
                self._gossip(number, now)
            due = gateway.next_deadline()
            if due is not None and due <= now:
                placements += self._told_of(gateway, gateway.tick(now), now)
        return placements

    def _told_of(self, gateway: ProductionRouter, placements: list[Placement], now: float) -> list[Placement]:
        """Placements of a gateway, after it has told the others of a long prompt among them."""
        if gateway.heavy:
            gateway.heavy = False
            if self.gossip_s is not None:
                number = self.gateways.index(gateway)
                self._gossip(number, now)
                for other in range(len(self._due)):
                    if other != number:
                        self._due[other] = min(self._due[other], now + WORD_S)
        return placements

    def _gossip(self, number: int, now: float) -> None:
        assert self.gossip_s is not None
        self._due[number] = now + self.gossip_s
        shares = self.gateways[number].scheduler.shares
        self._told[number] = {
            load.id: Others(load.used, load.prefill_s, load.decode_s, load.kv_tokens)
            for load in shares.loads(now)
            if load.used
        }
        heard: dict[str, Others] = {}
        for other, told in enumerate(self._told):
            if other == number:
                continue
            for worker_id, work in told.items():
                before = heard.get(worker_id)
                heard[worker_id] = work if before is None else _sum(before, work)
        shares.others(heard)


def _sum(one: Others, other: Others) -> Others:
    return Others(
        one.count + other.count,
        one.prefill_s + other.prefill_s,
        one.decode_s + other.decode_s,
        one.kv_tokens + other.kv_tokens,
    )
