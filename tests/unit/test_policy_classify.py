"""Classifying: pool by endpoint and budget, class by wish and ceiling, rules, deadlines; total over all facts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.classify import Classified, Classifier, Endpoint, Refusal, RequestFacts
from policies.document import Policy, parse_policy
from policies.endpoints import GENERATING

POLICY = parse_policy(
    """
classes: [{name: High, queue_timeout_s: 5}, {name: mid, queue_timeout_s: 10}, {name: low, queue_timeout_s: 20}]
default_class: mid
tenants:
  default: {max_class: mid}
  vip: {}
  bulk: {max_class: low}
pools:
  small: {max_budget_tokens: 1000, may_borrow: [large, spare]}
  large: {min_budget_tokens: 500, max_budget_tokens: 8000}
  spare: {max_budget_tokens: 8000}
  vectors: {endpoints: [embeddings, rerank]}
models:
  public: {served_as: engine/name, pools: [small, large]}
  same: {pools: [spare]}
rules:
  - {when: {tenant: bulk, budget_tokens_over: 700, budget_tokens_up_to: 900}, pool: large}
  - {when: {endpoint: completions}, pool: small, class: High, deadline_s: 40}
  - {when: {model: slow}, class: low}
  - {when: {stream: true, header: {X-Route: summarise, X-Also: "1"}}, deadline_s: 900}
admission: {default_output_tokens: 100}
"""
)
CLASSIFIER = Classifier(POLICY)


def facts(**changes: Any) -> RequestFacts:
    given: dict[str, Any] = {
        "endpoint": Endpoint.CHAT,
        "model": "public",
        "tenant": "vip",
        "prompt_tokens": 50,
        "max_output_tokens": None,
    }
    return RequestFacts(**{**given, **changes})


def classified(policy: Policy = POLICY, **changes: Any) -> Classified:
    answer = (CLASSIFIER if policy is POLICY else Classifier(policy)).classify(facts(**changes))
    assert isinstance(answer, Classified)
    return answer


def parts(answer: Classified) -> tuple[object, ...]:
    """What was decided; compiled, it is no tuple."""
    return (
        answer.klass,
        answer.pools,
        answer.fallback_pools,
        answer.served_model,
        (answer.prompt_tokens, answer.output_tokens),
        answer.deadline_s,
        answer.why,
    )


class TestBudget:
    def test_output_is_the_clients_maximum_or_the_default_for_each_answer(self) -> None:
        assert parts(classified())[4] == (50, 100)
        assert parts(classified(max_output_tokens=7, sequences=3))[4] == (50, 21)
        assert classified(max_output_tokens=7).budget_tokens == 57

    @pytest.mark.parametrize("endpoint", sorted(set(Endpoint) - GENERATING))
    def test_what_generates_nothing_has_no_output(self, endpoint: Endpoint) -> None:
        assert classified(endpoint=endpoint, max_output_tokens=9).output_tokens == 0

    def test_nonsense_counts_as_nothing(self) -> None:
        assert parts(classified(max_output_tokens=-5, sequences=0))[4] == (50, 0)


class TestPool:
    @pytest.mark.parametrize(
        ("prompt", "pool"), [(1, "small"), (900, "small"), (901, "large"), (7900, "large"), (7901, "large")]
    )
    def test_the_first_whose_range_holds_the_budget_is_home(self, prompt: int, pool: str) -> None:
        assert classified(prompt_tokens=prompt).pool == pool

    def test_where_no_range_holds_it_the_widest_is_home(self) -> None:
        policy = parse_policy(
            "pools: {a: {max_budget_tokens: 10}, b: {max_budget_tokens: 20}, c: {min_budget_tokens: 99}}"
        )
        assert classified(policy, prompt_tokens=50, max_output_tokens=0).pool == "c"
        policy = parse_policy(
            "pools: {a: {max_budget_tokens: 10}, b: {max_budget_tokens: 20}, c: {max_budget_tokens: 5}}"
        )
        assert classified(policy, prompt_tokens=50).pool == "b"

    def test_soft_pools_follow_home_within_the_models_pools_and_the_rest_falls_back(self) -> None:
        one = classified()
        assert (one.pools, one.fallback_pools) == (("small", "large"), ())
        other = classified(prompt_tokens=5000)
        assert (other.pools, other.fallback_pools) == (("large",), ("small",))

    def test_a_model_without_an_entry_may_go_anywhere_under_its_own_name(self) -> None:
        one = classified(model="unlisted")
        assert one.served_model == "unlisted"
        assert (one.pools, one.fallback_pools) == (("small", "large", "spare"), ("vectors",))

    def test_names_at_the_engine(self) -> None:
        assert classified().served_model == "engine/name"
        assert classified(model="same").served_model == "same"
        assert classified(model="same").pools == ("spare",)

    @pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.RERANK])
    def test_listed_endpoints_have_their_own_pool_and_others_to_fall_back_on(self, endpoint: Endpoint) -> None:
        one = classified(model="unlisted", endpoint=endpoint)
        assert one.pools == ("vectors",)
        assert one.fallback_pools == ("small", "large", "spare")

    def test_an_endpoint_that_no_pool_lists_goes_to_the_models_first(self) -> None:
        assert classified(endpoint=Endpoint.SCORE).pools == ("small", "large")
        assert classified(endpoint=Endpoint.EMBEDDINGS).pools == ("small", "large")

    @pytest.mark.parametrize("endpoint", [Endpoint.TOKENIZE, Endpoint.DETOKENIZE])
    def test_tokenizers_are_everywhere(self, endpoint: Endpoint) -> None:
        assert classified(endpoint=endpoint).pool == "small"
        assert classified(parse_policy("pools: {v: {endpoints: [embeddings]}}"), endpoint=endpoint).pool == "v"

    @pytest.mark.parametrize("endpoint", Endpoint)
    def test_a_fleet_of_one_pool_takes_everything(self, endpoint: Endpoint) -> None:
        one = classified(parse_policy("pools: {only: {max_budget_tokens: 5}}"), endpoint=endpoint)
        assert one.pools == ("only",)


class TestClass:
    @pytest.mark.parametrize("asked", ["high", "HIGH", " High\t"])
    def test_the_header_names_it_in_any_case(self, asked: str) -> None:
        one = classified(asked_class=asked)
        assert (one.klass, one.class_name, one.queue_timeout_s) == (0, "High", 5)

    @pytest.mark.parametrize(
        "asked", ["", "0", "-1", "99999", "abc", "low, high", "High,High", "x" * 5000, "a\r\nb", "é"]
    )
    def test_any_other_value_is_refused_with_what_there_is(self, asked: str) -> None:
        refusal = CLASSIFIER.classify(facts(asked_class=asked))
        assert isinstance(refusal, Refusal)
        assert refusal.code == "invalid_priority"
        assert refusal.param == "X-Headrace-Priority"
        assert "High, mid, low" in refusal.message
        assert refusal.message.isascii()
        assert refusal.message.isprintable()
        assert len(refusal.message) < 250

    @pytest.mark.parametrize(
        ("tier", "klass"),
        [("priority", 0), ("default", 1), ("auto", 1), (None, 1), ("flex", 2), ("batch", 2), ("scale", 1), ("", 1)],
    )
    def test_openais_tiers_map_to_classes_and_unknown_ones_ask_for_nothing(self, tier: str | None, klass: int) -> None:
        assert classified(service_tier=tier).klass == klass

    def test_header_before_tier_before_rule_before_default(self) -> None:
        everything = {"asked_class": "mid", "service_tier": "flex", "endpoint": Endpoint.COMPLETIONS}
        assert classified(**everything).why == "rules[1]; class by header"
        assert classified(**{**everything, "asked_class": None}).klass == 2
        ruled = classified(endpoint=Endpoint.COMPLETIONS)
        assert (ruled.klass, ruled.why) == (0, "rules[1]; class by rule")
        assert classified().why == "endpoint chat, budget; class by default"

    @pytest.mark.parametrize(("tenant", "klass"), [("vip", 0), ("default", 1), ("stranger", 1), ("bulk", 2)])
    def test_nobody_gets_more_than_their_ceiling(self, tenant: str, klass: int) -> None:
        one = classified(tenant=tenant, asked_class="high")
        assert one.klass == klass
        assert one.why.endswith("header" if tenant == "vip" else "tenant ceiling")
        assert classified(tenant=tenant, service_tier="priority").klass == klass
        assert classified(tenant=tenant, endpoint=Endpoint.COMPLETIONS).klass == klass

    def test_ceilings_do_not_lift(self) -> None:
        assert classified(tenant="default", asked_class="low").klass == 2


class TestRules:
    @pytest.mark.parametrize(("total", "pool"), [(700, "small"), (701, "large"), (900, "large"), (901, "small")])
    def test_budget_borders(self, total: int, pool: str) -> None:
        assert classified(tenant="bulk", prompt_tokens=total, max_output_tokens=0).pool == pool

    def test_a_tenants_rule_is_for_that_tenant(self) -> None:
        assert classified(tenant="vip", prompt_tokens=800, max_output_tokens=0).pool == "small"

    def test_the_first_that_matches_decides_even_what_it_leaves_open(self) -> None:
        one = classified(tenant="bulk", endpoint=Endpoint.COMPLETIONS, prompt_tokens=750, max_output_tokens=0)
        assert (one.pool, one.deadline_s) == ("large", None)

    def test_the_chosen_pool_keeps_its_soft_pools(self) -> None:
        assert classified(endpoint=Endpoint.COMPLETIONS, prompt_tokens=7000).pools == ("small", "large")

    def test_a_pool_that_the_model_does_not_list_has_the_models_own_behind_it(self) -> None:
        one = classified(model="same", endpoint=Endpoint.COMPLETIONS)
        assert (one.pools, one.fallback_pools) == (("small", "spare"), ())
        again = classified(model="same", endpoint=Endpoint.COMPLETIONS, prompt_tokens=3)
        assert again.pools == one.pools

    def test_model(self) -> None:
        assert classified(model="slow").klass == 2
        assert classified(model="slow").pool == "small"

    @pytest.mark.parametrize(
        ("headers", "stream", "matches"),
        [
            ({"x-route": "summarise", "x-also": "1"}, True, True),
            ({"X-ROUTE": " summarise ", "X-Also": "1", "other": "2"}, True, True),
            ({"x-route": "summarise", "x-also": "1"}, False, False),
            ({"x-route": "Summarise", "x-also": "1"}, True, False),
            ({"x-route": "summarise"}, True, False),
            ({}, True, False),
        ],
    )
    def test_headers_and_streaming(self, headers: dict[str, str], stream: bool, matches: bool) -> None:
        assert (classified(headers=headers, stream=stream).deadline_s is not None) == matches


class TestDeadline:
    @pytest.mark.parametrize(
        ("timeout_ms", "ruled", "deadline_s"),
        [
            (None, False, None),
            (None, True, 40),
            (2500, False, 2.5),
            (2500, True, 2.5),
            (90_000, True, 40),
            (10**12, False, 600),
            (0, False, 0.001),
            (-5, False, 0.001),
        ],
    )
    def test_the_shortest_of_client_rule_and_total(
        self, timeout_ms: int | None, ruled: bool, deadline_s: float | None
    ) -> None:
        endpoint = Endpoint.COMPLETIONS if ruled else Endpoint.CHAT
        assert classified(endpoint=endpoint, timeout_ms=timeout_ms).deadline_s == deadline_s

    def test_a_rule_can_not_go_beyond_the_total(self) -> None:
        headers = {"x-route": "summarise", "x-also": "1"}
        assert classified(stream=True, headers=headers).deadline_s == 600
        assert classified(stream=True, headers=headers, timeout_ms=700_000).deadline_s == 600


class TestTotal:
    @given(
        st.builds(
            RequestFacts,
            endpoint=st.sampled_from(Endpoint),
            model=st.sampled_from(["public", "same", "slow"]) | st.text(max_size=5),
            tenant=st.sampled_from(["vip", "bulk", "default"]) | st.text(max_size=5),
            prompt_tokens=st.integers(0, 10**6),
            max_output_tokens=st.none() | st.integers(-5, 10**9),
            sequences=st.integers(0, 200),
            stream=st.booleans(),
            asked_class=st.none() | st.sampled_from(["high", "MID", " low"]) | st.text(max_size=5),
            service_tier=st.none() | st.sampled_from(["flex", "priority"]) | st.text(max_size=5),
            timeout_ms=st.none() | st.integers(-5, 10**9),
            headers=st.dictionaries(st.sampled_from(["X-Route", "x-also"]), st.sampled_from(["1", "summarise"])),
        )
    )
    def test_every_request_has_exactly_one_answer(self, asked: RequestFacts) -> None:
        answer = CLASSIFIER.classify(asked)
        if isinstance(answer, Refusal):
            assert asked.asked_class is not None
            return
        assert answer.pools[0] == answer.pool
        together = [*answer.pools, *answer.fallback_pools]
        assert len(together) == len(set(together))
        assert set(together) <= set(POLICY.pools)
        assert POLICY.classes[answer.klass].name == answer.class_name
        ceiling = POLICY.class_index(POLICY.tenant(asked.tenant).max_class or "High")
        assert ceiling is not None
        assert answer.klass >= ceiling
        assert answer.deadline_s is None or 0 < answer.deadline_s <= POLICY.timeouts.total_s
        assert answer.budget_tokens >= asked.prompt_tokens
        again = CLASSIFIER.classify(asked)
        assert isinstance(again, Classified)
        assert parts(answer) == parts(again)

    @given(st.integers(1, 2000), st.integers(0, 2000))
    def test_a_larger_budget_never_moves_to_a_smaller_pool(self, prompt: int, more: int) -> None:
        order = list(Policy().pools)
        shipped = Classifier(Policy())
        answers = [shipped.classify(facts(model="chat", prompt_tokens=size)) for size in (prompt, prompt + more)]
        places = [order.index(one.pool) for one in answers if isinstance(one, Classified)]
        assert places == sorted(places)
