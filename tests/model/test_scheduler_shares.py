"""Who gets how much while all of them want more: invariants 8, 9 and 10 of `facts/reliability.md` 3, with floors.

Every class and tenant always has requests waiting, places are taken before anybody waits, and answers end in any order.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.fairness import service
from gateway.scheduling.model import Effect, Lease, Outcome, OutcomeKind, Request, Ticket, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import policy_from_mapping

WAITING = 3  # of each tenant in each class, always


class Crowd:
    """Some tenants that always have more to ask in every class, at one worker."""

    def __init__(self, seed: int, places: int, sizes: dict[str, list[int]], floors: list[float]) -> None:
        classes = [{"name": f"c{number}", "floor": floor} for number, floor in enumerate(floors)]
        rules: dict[str, Any] = {"classes": classes, "default_class": "c0", "pools": {"p": {}}, "tenants": {}}
        rules |= {"models": {}, "rules": [], "admission": {"max_queued": 10_000, "reject_when_hopeless": False}}
        self.rng = Random(seed)
        self.scheduler = Scheduler(policy_from_mapping(rules), Random(seed))
        self.scheduler.observe(WorkerSpec("w", "p", frozenset({"m"}), max_num_seqs=places), None, 0.0)
        self.sizes = sizes
        self.now = 0.0
        self.number = 0
        self.running: list[Lease] = []
        self.waiting: dict[tuple[str, int], int] = {}
        self.sent: list[tuple[str, int, float]] = []  # tenant, class, work
        for _ in range(places):
            self.ask("neutral", 0, 10)
        for tenant in sizes:
            for klass in range(len(floors)):
                self.fill(tenant, klass)
        self.sent.clear()

    def ask(self, tenant: str, klass: int, prompt: int) -> Ticket:
        self.number += 1
        asked = Request(str(self.number), tenant, klass, "m", ("p",), prompt, 10, 10, 10, queue_timeout_s=1e6)
        ticket, effects = self.scheduler.submit(asked, None, self.now)
        self.waiting[tenant, klass] = self.waiting.get((tenant, klass), 0) + 1
        self.take(effects)
        return ticket

    def fill(self, tenant: str, klass: int) -> None:
        while self.waiting.get((tenant, klass), 0) < WAITING:
            self.ask(tenant, klass, self.rng.choice(self.sizes[tenant]))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Lease):
                request = effect.ticket.request
                self.running.append(effect)
                self.waiting[request.tenant, request.klass] -= 1
                work = service(request.prompt_tokens, request.expected_output)
                self.sent.append((request.tenant, request.klass, work))

    def step(self) -> None:
        """One answer ends, the next request goes, and another one comes to wait in its place."""
        self.now += 0.01
        lease = self.running.pop(self.rng.randrange(len(self.running)))
        request = lease.ticket.request
        outcome = Outcome(OutcomeKind.OK, 200, None, request.prompt_tokens, request.expected_output)
        self.take(self.scheduler.settle(lease, outcome, self.now))
        tenant, klass, _ = self.sent[-1]
        self.fill(tenant, klass)


sizes = st.lists(st.integers(1, 3000), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), places=st.integers(1, 6), one=sizes, other=sizes)
def test_two_tenants_of_one_weight_are_never_further_apart_than_two_requests(
    seed: int, places: int, one: list[int], other: list[int]
) -> None:
    crowd = Crowd(seed, places, {"one": one, "other": other}, [0.0])
    largest = service(max(*one, *other, 1), 10)
    served = {"one": 0.0, "other": 0.0}
    for _ in range(150):
        crowd.step()
        tenant, _, work = crowd.sent[-1]
        served[tenant] += work
        assert abs(served["one"] - served["other"]) <= 2 * largest


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    places=st.integers(1, 6),
    each=sizes,
    floors=st.sampled_from([[0.0, 0.1, 0.02], [0.0, 0.3, 0.3], [0.0, 0.0, 0.1], [0.0, 0.0]]),
)
def test_a_class_gets_its_floor_and_no_more_while_higher_ones_wait(
    seed: int, places: int, each: list[int], floors: list[float]
) -> None:
    crowd = Crowd(seed, places, {"one": each, "other": each}, floors)
    largest = service(max(each), 10)
    total, got = 0.0, [0.0] * len(floors)
    for _ in range(200):
        crowd.step()
        _, klass, work = crowd.sent[-1]
        total += work
        got[klass] += work
        for lower, floor in enumerate(floors[1:], 1):
            # Requests come whole: it is ahead by one at the most, and behind by one for each class with a floor.
            assert got[lower] <= 1.1 * floor * total + 2 * largest * (floor > 0.0)
            assert got[lower] >= floor * total - len(floors) * largest
