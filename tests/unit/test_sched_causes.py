"""Why a request waits, told while it does and afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from sched_support import Bench, leases, policy, spec

from gateway.scheduling.causes import SHOWN, Wait, WaitCause
from gateway.scheduling.model import OutcomeKind, Signal


def waiting(made: Bench, name: str = "r") -> Wait:
    found = made.scheduler.waiting(name, made.now)
    assert found is not None
    return found


def cause(made: Bench, name: str = "r") -> WaitCause:
    return waiting(made, name).cause


def test_taken_places_are_told_and_remembered_on_the_lease() -> None:
    made = Bench(policy(), spec(max_num_seqs=1))
    first = made.lease("first")
    ticket = made.submit("r")
    made.to(2.0)
    told = waiting(made)
    assert (told.cause, told.klass, told.pools, told.workers) == ("places", 1, ("a", "b"), (("w", "places"),))
    assert (told.prompt_tokens, told.expected_output_tokens, told.p90_output_tokens) == (100, 50, 100)
    assert (told.waited_s, told.left_s, told.attempts, told.ahead) == (2.0, 28.0, 0, 0)
    made.submit("later")
    assert waiting(made, "later").ahead == 1
    assert leases(made.settle(first))[0].ticket is ticket
    assert ticket.cause == "places"
    assert made.scheduler.waiting("r", made.now) is None
    assert first.ticket.cause == ""


def test_a_tenants_limit() -> None:
    made = Bench(policy(tenants={"default": {}, "t": {"max_in_flight": 1}}), spec(max_num_seqs=4))
    made.lease("first")
    assert made.submit("r").cause == "tenant_limit"
    assert cause(made) is WaitCause.TENANT


def test_a_tenants_limit_beside_a_worker_with_nothing_to_do() -> None:
    made = Bench(policy(tenants={"default": {}, "t": {"max_in_flight": 1}}), spec("v"), spec("w"))
    busy = made.lease("first").worker
    made.submit("r")
    assert waiting(made).cause is WaitCause.TENANT
    assert dict(waiting(made).workers) == {"v": WaitCause.TURN, "w": WaitCause.TURN}
    assert busy in ("v", "w")


def test_no_worker_in_rotation() -> None:
    made = Bench(policy(), spec("w"))
    made.take(made.scheduler.drain("w", 0.0))
    assert made.submit("r").cause == "no_worker"
    assert cause(made) is WaitCause.NO_WORKER


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt_tokens": 700, "p90_output": 100}, WaitCause.KV),
        ({"sequences": 4, "prompt_tokens": 10, "p90_output": 1, "max_output_tokens": 1}, WaitCause.SEQUENCES),
        ({"klass": 2, "prompt_tokens": 500}, WaitCause.RESERVED),
    ],
)
def test_what_is_free_is_too_little_or_kept(changes: dict[str, Any], expected: WaitCause) -> None:
    made = Bench(policy(admission={"top_class_reserve": 0.25}), spec(max_num_seqs=4, kv_tokens=1000))
    made.lease("first", prompt_tokens=200, p90_output=50)
    assert made.submit("r", **changes).cause == expected
    assert cause(made) is expected


def test_room_that_is_held_for_another() -> None:
    made = Bench(policy(admission={"reject_when_hopeless": False}), spec(max_num_seqs=9, kv_tokens=1000))
    running = [made.lease(f"s{at}", prompt_tokens=100, p90_output=50) for at in range(5)]
    made.submit("large", prompt_tokens=700)
    made.to(8.0)
    passing = made.submit("one", prompt_tokens=100, p90_output=50)
    assert passing.lease is not None
    made.settle(running.pop())
    assert made.submit("r", prompt_tokens=100, p90_output=50).cause == "held"
    assert cause(made) is WaitCause.HELD


def test_a_place_for_one_guest() -> None:
    rules = policy(pools={"short": {"max_budget_tokens": 1000}, "long": {"may_borrow": ["short"]}})
    made = Bench(rules, spec("s", pool="short", max_num_seqs=9), spec("l", pool="long", max_num_seqs=1))
    made.lease("1", pools=("long", "short"), prompt_tokens=5000)
    made.lease("2", pools=("long", "short"), prompt_tokens=5000)
    made.submit("r", pools=("long", "short"), prompt_tokens=5000)
    assert dict(waiting(made).workers) == {"s": WaitCause.GUEST, "l": WaitCause.PLACES}


def test_another_attempt_waits_for_its_pause_or_for_another_worker() -> None:
    made = Bench(policy(), spec("v", max_num_seqs=1), spec("w", max_num_seqs=1))
    ticket = made.submit("r")
    other = made.lease("other")
    lease = ticket.lease
    assert lease is not None
    made.settle(lease, OutcomeKind.SERVER_ERROR, retry=True)
    assert cause(made) is WaitCause.PLACES
    assert dict(waiting(made).workers) == {lease.worker: WaitCause.FAILED, other.worker: WaitCause.PLACES}
    made.settle(other)
    assert ticket.lease is not None
    made.settle(ticket.lease, OutcomeKind.SERVER_ERROR, retry=True)
    assert cause(made) is WaitCause.BACKOFF
    assert waiting(made).workers == ()


def test_of_many_workers_some_are_told() -> None:
    made = Bench(policy(), *(spec(f"w{at}", max_num_seqs=1) for at in range(30)))
    for at in range(30):
        made.lease(str(at))
    made.submit("r")
    assert len(waiting(made).workers) == SHOWN


def test_one_that_could_go_waits_for_its_turn() -> None:
    """Only between two events: nobody waits beside room. A report that adds load fades without an event."""
    made = Bench(policy(), spec(max_num_seqs=9, kv_tokens=1000))
    made.lease("first", prompt_tokens=100, p90_output=50)
    made.observe(spec(max_num_seqs=9, kv_tokens=1000), Signal(0.0, 1, 0, 900))
    made.submit("r", prompt_tokens=100, p90_output=50)
    assert cause(made) is WaitCause.KV
    made.now = 2.9
    assert cause(made) is WaitCause.TURN
