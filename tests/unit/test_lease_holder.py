"""A gateway's side of the lease protocol: what it says, what it uses, and when it stops."""

import pytest

from gateway.leasing.holder import Holder
from gateway.leasing.words import CLEAR, HOLD_S, BadAnswer, Demand, Heard, Standing, read_heard

IDLE = {"w": Demand(8)}


def heard(held: int, *, live: int = 2, others: int = 0, poor: int = 0, needs=(), limit: int = 8, is_open=True) -> Heard:
    return Heard(1, "", is_open, live, {"b": ("who", 0.0)}, {"w": Standing(held, limit, others, poor, tuple(needs))})


def holding(held: int, **more) -> Holder:
    """A holder that was granted so many places of `w` at time 0."""
    holder = Holder("a", "who")
    step = holder.plan(IDLE, 0.0)
    assert step.full
    holder.answered(step, heard(held, **more))
    return holder


def claim_of(holder: Holder, demand: Demand, now: float = 10.0):
    claims = {claim.name: claim for claim in holder.plan({"w": demand}, now).claims}
    return claims["w"]


def test_alone_it_wants_everything_and_says_nothing_more_when_it_has_it():
    holder = Holder("a", "who", fresh=True)
    step = holder.plan(IDLE, 0.0)
    assert (step.fresh, step.claims[0].wish) == (True, 8)
    holder.answered(step, heard(8, live=1))
    for now in (0.1, 4.0, 4.1):
        step = holder.plan(IDLE, now)
        holder.answered(step, heard(8, live=1))
    assert holder.plan(IDLE, 4.2).claims == ()
    assert holder.plan(IDLE, 9.0).claims, "after a silence it says everything again"
    assert holder.places("w", Demand(8), 9.0) == 8


def test_what_is_given_back_is_not_used_whether_or_not_the_store_hears_it():
    holder = holding(6, others=2, needs=[(1, 3)])
    claim = claim_of(holder, Demand(8, 1))
    assert (claim.held, claim.keep) == (6, 3)
    assert holder.places("w", Demand(8, 1), 10.0) == 3


def test_who_needs_for_a_higher_class_gets_even_what_is_in_use_when_it_gets_free():
    holder = holding(6, others=2, needs=[(0, 4)])
    assert holder.places("w", Demand(8, 6, 5, 1), 1.0) == 2
    assert claim_of(holder, Demand(8, 6, 5, 1)).keep == 6, "but nothing that runs is interrupted"
    holder = holding(6, others=2, needs=[(1, 4)])
    assert holder.places("w", Demand(8, 6, 5, 0), 1.0) == 6


def test_above_the_fair_share_it_yields_to_who_has_less():
    holder = holding(6, others=2, poor=2, needs=[(1, 4)])
    assert holder.places("w", Demand(8, 6, 5, 1), 1.0) == 4


def test_a_lowered_limit_is_shared_out():
    holder = holding(6, others=2, limit=4)
    assert holder.places("w", Demand(8, 6), 1.0) == 2
    assert holding(6, others=0, limit=4).places("w", Demand(8, 6), 1.0) == 4
    assert holding(6, live=1).places("w", Demand(3, 6), 1.0) == 3
    assert holding(6, others=2).places("w", Demand(5, 6), 1.0) == 3, "also before the store has heard of it"


def test_without_renewal_only_the_reserve_is_left():
    holder = holding(6, live=2)
    holder.answered(holder.plan(IDLE, 1.0), heard(6))
    assert holder.until == 1.0 + HOLD_S
    assert holder.places("w", Demand(8), HOLD_S) == 6
    assert holder.places("w", Demand(8), 1.0 + HOLD_S) == 4
    assert holder.lapsed
    strict = holding(6)
    strict.strict = True
    strict.answered(strict.plan(IDLE, 1.0), heard(6))
    assert strict.places("w", Demand(8), 30.0) == 0


def test_the_reserve_is_the_least_that_was_ever_said_since_the_last_answer():
    holder = holding(8)
    holder.answered(holder.plan(IDLE, 1.0), heard(8))
    holder.plan({"w": Demand(2)}, 2.0)  # a lower limit, and nobody answered
    assert holder.places("w", Demand(8), 60.0) <= 1


def test_a_resource_that_is_gone_is_given_back():
    holder = holding(6)
    step = holder.plan({}, 1.0)
    assert (step.claims[0].limit, step.claims[0].keep) == (-1, 0)
    holder.answered(step, Heard(1, "", True, 2, {}, {}))
    assert holder.shares == {}
    assert holder.places("w", Demand(8), 1.0) == 0


def test_what_runs_counts_in_an_announcement():
    holder = holding(6)
    holder.places("w", Demand(8), 60.0)
    step = holder.plan({"w": Demand(8, 5)}, 61.0)
    holder.answered(step, Heard(2, "announce"))
    step = holder.plan({"w": Demand(8, 5)}, 61.1)
    assert step.full
    assert step.epoch == 2
    assert step.peers == (("b", "who"),)
    assert step.claims[0].keep == 5


def test_the_last_step_gives_everything_back():
    holder = holding(6)
    assert holder.farewell(2.0).leave
    assert holder.places("w", Demand(8), 2.0) == 0


def test_something_is_kept_though_others_need_it():
    holder = holding(64, limit=64, needs=[(0, 100)])
    assert claim_of(holder, Demand(64)).keep == 8


GOOD = {"epoch": 1, "open": True, "live": 2, "peers": [], "slots": {"w": [1, 8, 2, 0, {"1": 3}]}, "ledgers": {}}


def test_answers_are_read_strictly():
    found = read_heard({**GOOD, "peers": {"b": ["who", 1500]}, "ledgers": {"b": [250, "x"], "c": [1, 5]}})
    assert found.slots == {"w": Standing(1, 8, 2, 0, ((1, 3),))}
    assert found.peers == {"b": ("who", 1.5)}
    assert found.ledgers == {"b": (0.25, "x")}
    assert read_heard({"epoch": 3, "crowded": 1}) == Heard(3, "crowded")
    for bad in (
        [],
        {"epoch": -1},
        {**GOOD, "epoch": True},
        {**GOOD, "slots": {"w": [1, 2]}},
        {**GOOD, "slots": {"w": [1.5, 8, 0, 0, {}]}},
        {**GOOD, "slots": {"w": [1, 8, 0, 0, {"5000": 1}]}},
        {**GOOD, "slots": {"w": [1, 8, 0, 0, {"1e+06": 1}]}},
        {**GOOD, "slots": {"w": [1, 8, 0, 0, {"²": 1}]}},
        {**GOOD, "peers": "x"},
        {**GOOD, "live": None},
    ):
        with pytest.raises(BadAnswer):
            read_heard(bad)
    assert CLEAR == 1000
