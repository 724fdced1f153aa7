"""Canaries: exact shares, whole sessions, few moves, and nothing lost where the canary's pool cannot take a request."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.canaries import Canaries, place_of, way
from policies.classify import Classified, Classifier, RequestFacts
from policies.document import PolicyError, parse_policy
from policies.endpoints import Endpoint
from policies.sections import Canary

GRID = 100
KEYS = [f"acme\0session {number}" for number in range(4000)]


def canaries(**weights: float) -> Canaries:
    return Canaries(Canary(pool=pool, weight=weight) for pool, weight in weights.items())


def chosen(one: Canaries, key: str = "", **places: float) -> str | None:
    found = one.choose(key, (lambda pool, _: places[pool]) if places else place_of)
    return None if found is None else found.pool


def sides(one: Canaries) -> list[str | None]:
    return [chosen(one, key) for key in KEYS]


class TestShares:
    @pytest.mark.parametrize("weight", [0.01, 0.1, 0.25, 0.5, 0.99, 1.0])
    def test_one_canary_has_exactly_its_weight(self, weight: float) -> None:
        one = canaries(a=weight)
        counts = Counter(chosen(one, a=(place + 0.5) / GRID) for place in range(GRID))
        assert counts["a"] == round(weight * GRID)

    @pytest.mark.parametrize(("first", "second"), [(0.2, 0.2), (0.5, 0.25), (0.75, 0.25), (0.9, 0.05)])
    def test_two_canaries_have_exactly_their_weights(self, first: float, second: float) -> None:
        # Over all pairs of places, since each canary has a hash of its own.
        one = canaries(a=first, b=second)
        places = [(place + 0.5) / GRID for place in range(GRID)]
        counts = Counter(chosen(one, a=a, b=b) for a, b in product(places, places))
        assert counts["a"] == round(first * GRID**2)
        assert counts["b"] == round(second * GRID**2)

    def test_the_hash_deals_keys_out_evenly(self) -> None:
        counts = Counter(sides(canaries(a=0.1, b=0.3)))
        assert {pool: counts[pool] for pool in ("a", "b", None)} == {"a": 392, "b": 1193, None: 2415}

    def test_weights_that_sum_to_one_leave_nobody_out(self) -> None:
        tenths = {f"p{number}": 0.1 for number in range(10)}
        assert None not in sides(canaries(**tenths))
        assert chosen(canaries(a=1.0, b=1e-12), a=0.999, b=0.0) == "a"

    @given(st.text(max_size=12), st.text(max_size=12))
    def test_a_place_is_stable_and_below_one(self, salt: str, key: str) -> None:
        assert 0.0 <= place_of(salt, key) < 1.0
        assert place_of(salt, key) == place_of(salt, key)

    def test_a_place_is_the_same_in_every_version(self) -> None:
        assert place_of("canary", "acme\0s1") == pytest.approx(0.3301439772, abs=1e-9)


class TestMoves:
    def test_a_larger_weight_only_adds_sessions(self) -> None:
        before, after = sides(canaries(a=0.1)), sides(canaries(a=0.3))
        assert all(new == "a" for old, new in zip(before, after, strict=True) if old == "a")
        assert sum(old != new for old, new in zip(before, after, strict=True)) == pytest.approx(800, abs=80)

    def test_other_canaries_keep_most_of_theirs(self) -> None:
        before, after = sides(canaries(a=0.1, b=0.1)), sides(canaries(a=0.2, b=0.1))
        moved = sum(old != new for old, new in zip(before, after, strict=True))
        assert moved / len(KEYS) < 0.13  # a tenth has to
        lost = sum(old == "b" != new for old, new in zip(before, after, strict=True))
        assert lost / before.count("b") < 0.15

    def test_a_canary_that_ends_gives_back_its_own(self) -> None:
        before, after = sides(canaries(a=0.4)), sides(canaries())
        assert set(after) == {None}
        assert [old for old, new in zip(before, after, strict=True) if old != new].count("a") == before.count("a")


class TestWay:
    def test_the_usual_pools_stand_by(self) -> None:
        assert way("new", (), ("a", "b"), ("a", "b", "c")) == (("new", "a", "b"), ("c",))

    def test_what_it_may_borrow_is_its_own_choice(self) -> None:
        assert way("new", ("c", "elsewhere"), ("a",), ("a", "b", "c")) == (("new", "c"), ("a", "b"))

    def test_a_usual_pool_may_be_the_canary(self) -> None:
        assert way("b", (), ("a", "b"), ("a", "b")) == (("b", "a"), ())


POLICY = parse_policy(
    """
pools:
  small: {max_budget_tokens: 1000, may_borrow: [large]}
  large: {}
  fresh: {max_budget_tokens: 4000}
  vectors: {endpoints: [embeddings]}
models:
  chat: {served_as: engine, pools: [small, large], canary: [{pool: fresh, weight: 0.25}]}
  moved: {pools: [small], canary: [{pool: vectors, weight: 1}]}
rules:
  - {when: {header: {X-Try: new}}, pool: fresh}
  - {when: {tenant: bulk}, class: batch}
"""
)
CLASSIFIER = Classifier(POLICY)


def classified(key: str, **changes: object) -> Classified:
    usual = {
        "endpoint": Endpoint.CHAT,
        "model": "chat",
        "tenant": "acme",
        "prompt_tokens": 100,
        "max_output_tokens": 100,
    }
    asked = RequestFacts(**{**usual, "key": key, **changes})  # type: ignore[arg-type]
    found = CLASSIFIER.classify(asked)
    assert isinstance(found, Classified)
    return found


class TestClassified:
    TRIED = next(key for key in KEYS if place_of("fresh", key) < 0.25)
    REST = next(key for key in KEYS if place_of("fresh", key) >= 0.25)

    def test_its_share_goes_to_the_canary_and_says_so(self) -> None:
        found = classified(self.TRIED)
        assert (found.pool, found.pools, found.fallback_pools) == ("fresh", ("fresh", "small", "large"), ())
        assert found.why == "canary, weight 0.25; class by default"
        assert found.served_model == "engine"
        assert classified(self.REST).pool == "small"

    def test_the_share_is_the_weight(self) -> None:
        counts = Counter(classified(key).pool for key in KEYS)
        assert counts == {"fresh": sum(place_of("fresh", key) < 0.25 for key in KEYS), "small": counts["small"]}
        assert counts["fresh"] / len(KEYS) == pytest.approx(0.25, abs=0.02)

    def test_what_the_pool_does_not_take_goes_its_usual_way(self) -> None:
        assert classified(self.TRIED, max_output_tokens=1500).pools == ("fresh", "large")
        assert classified(self.TRIED, max_output_tokens=5000).pool == "large"
        assert classified(self.TRIED, model="moved").pool == "small"

    def test_no_key_no_canary(self) -> None:
        assert classified("").pool == "small"

    def test_other_models_have_none(self) -> None:
        assert classified(self.TRIED, model="other").pool == "small"

    def test_a_rule_with_a_pool_decides_for_all(self) -> None:
        assert classified(self.REST, headers={"x-try": "new"}).why.startswith("rules[0]")
        found = classified(self.TRIED, tenant="bulk")
        assert (found.pool, found.class_name) == ("fresh", "batch")


def test_a_pool_is_one_canary_of_a_model() -> None:
    with pytest.raises(PolicyError, match=r"models.m.canary\[1\].pool: same pool as canary\[0\]"):
        parse_policy("pools: {a: {}}\nmodels: {m: {canary: [{pool: a, weight: 0.1}, {pool: a, weight: 0.2}]}}")
