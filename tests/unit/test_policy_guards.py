"""Guard rails: which valid changes are refused until somebody says that they are meant."""

# ruff: noqa: E501 - policies on one line

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.classify import Classified, Classifier, Refusal, RequestFacts
from policies.document import Policy, parse_policy
from policies.guards import FleetFacts, WorkerFact, guards, places_of

TINY = frozenset({"tiny"})


def fleet(*workers: tuple[str, str, int], asked: tuple[str, ...] = (), kv: int | None = None) -> FleetFacts:
    facts = tuple(WorkerFact(name, pool, TINY, places, kv) for name, pool, places in workers)
    return FleetFacts(facts, frozenset(asked))


FLEET = fleet(("s1", "short-chat", 16), ("s2", "short-chat", 16), ("l1", "long-context", 16))


def rules(old: str, new: str, facts: FleetFacts = FLEET) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in guards(parse_policy(old), parse_policy(new), facts)]


def test_no_change_breaks_nothing():
    assert rules("{}", "{}") == []
    assert rules("{}", "{}", FleetFacts()) == []


def test_a_fleet_without_workers_has_nothing_to_lose():
    assert rules("{}", "pools: {other: {}}", FleetFacts()) == []


def test_a_pool_that_is_gone():
    old = "pools: {short-chat: {max_budget_tokens: 4096}, long-context: {}}"
    (found,) = guards(parse_policy(old), parse_policy("pools: {short-chat: {}}"), FLEET)
    assert (found.rule, found.subject) == ("empties_pool", "long-context")
    assert str(found) == "pool long-context has 1 worker and would get no requests: the policy has no such pool"
    assert rules(old, "pools: {long-context: {}}") == [
        ("empties_pool", "short-chat"),
        ("drops_capacity", "places"),
    ]


def test_a_pool_that_nothing_leads_to():
    old = "pools: {short-chat: {max_budget_tokens: 4096}, long-context: {}}"
    shadowed = "pools: {short-chat: {}, long-context: {}}"
    (found,) = guards(parse_policy(old), parse_policy(shadowed), FLEET)
    assert (found.rule, found.subject) == ("empties_pool", "long-context")
    assert "no model, endpoint or rule leads to it" in found.message
    assert rules(old, "pools: {short-chat: {may_borrow: [long-context]}, long-context: {}}") == []
    assert (
        rules(old, "{pools: {short-chat: {}, long-context: {}}, rules: [{when: {tenant: a}, pool: long-context}]}")
        == []
    )


def test_a_pool_without_workers_may_go():
    assert rules("pools: {a: {}, short-chat: {}}", "pools: {short-chat: {}}", fleet(("s", "short-chat", 4))) == []


def test_a_canary_pool_is_led_to():
    old = "{models: {tiny: {pools: [short-chat, long-context]}}, pools: {short-chat: {max_budget_tokens: 9}, long-context: {}}}"
    new = "{models: {tiny: {pools: [short-chat], canary: [{pool: long-context, weight: 0.1}]}}, pools: {short-chat: {}, long-context: {}}}"
    assert rules(old, new) == []


@pytest.mark.parametrize(
    ("asked", "expected"), [((), []), (("chat",), [("removes_model", "chat")]), (("tiny", "unknown"), [])]
)
def test_a_model_counts_when_somebody_asked_for_it(asked, expected):
    facts = fleet(("s1", "short-chat", 16), asked=asked)
    old = "{pools: {short-chat: {}}, models: {chat: {served_as: tiny}}}"
    assert rules(old, "{pools: {short-chat: {}}, models: {}}", facts) == expected
    assert rules(old, "{pools: {short-chat: {}}, models: {chat: {served_as: nobody-has-it}}}", facts) == expected


def test_the_fallback_counts_where_the_home_has_no_worker():
    policy = "{pools: {a: {max_budget_tokens: 10}, short-chat: {}}, models: {chat: {served_as: tiny, pools: [a, short-chat]}}}"
    facts = fleet(("s1", "short-chat", 16), asked=("chat",))
    assert (
        rules(
            policy, "{pools: {a: {}, short-chat: {}}, models: {chat: {served_as: tiny, pools: [a, short-chat]}}}", facts
        )
        == []
    )


@pytest.mark.parametrize(("limit", "expected"), [(16, []), (8, []), (7, [("drops_capacity", "places")])])
def test_half_of_the_places_may_go(limit, expected):
    assert rules("{}", f"limits: {{max_in_flight_per_worker: {limit}}}") == expected


def test_kv_counts_where_the_places_stay():
    facts = fleet(("s1", "short-chat", 16), kv=100_000)
    assert rules("{}", "admission: {kv_watermark: 0.4}", facts) == [("drops_capacity", "KV tokens")]
    assert rules("{}", "admission: {kv_watermark: 0.5}", facts) == []


def test_places_follow_the_pool_then_the_whole():
    worker = WorkerFact("w", "a", TINY, 10)
    base = "pools: {a: {max_in_flight_per_worker: 3}}"
    assert places_of(parse_policy(base), worker) == 3
    assert places_of(parse_policy("{pools: {a: {}}, limits: {max_in_flight_per_worker: 4}}"), worker) == 4
    assert places_of(parse_policy("{pools: {b: {}}, admission: {over_commit: 2}}"), worker) == 12


@given(
    st.lists(
        st.tuples(st.sampled_from(["short-chat", "long-context", "embeddings", "none"]), st.integers(1, 64)), max_size=6
    )
)
def test_the_same_policy_never_breaks_a_rail(workers):
    facts = fleet(
        *((f"w{place}", pool, places) for place, (pool, places) in enumerate(workers)), asked=("tiny", "chat")
    )
    assert guards(Policy(), Policy(), facts) == ()


def test_the_cost_grows_with_the_policy_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard rails are asked while a change holds the lock: 250 pools and 1,000 models must not take seconds."""
    asked = 0
    classify = Classifier.classify

    def counted(self: Classifier, facts: RequestFacts) -> Classified | Refusal:
        nonlocal asked
        asked += 1
        return classify(self, facts)

    monkeypatch.setattr(Classifier, "classify", counted)
    pools = {f"p{at}": {"max_budget_tokens": 100 + at} for at in range(250)}
    models = {f"m{at}": {"pools": [f"p{at % 250}"]} for at in range(1000)}
    policy = Policy.model_validate({"pools": pools, "models": models})
    workers = tuple(WorkerFact(f"w{at}", f"p{at % 250}", frozenset({f"m{at}"}), 8) for at in range(500))
    assert guards(policy, policy, FleetFacts(workers)) == ()
    assert asked < 2 * 40 * len(pools)
