"""The document: its defaults, what must fit together, and what is published about it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies import reference
from policies.checks import faults_of
from policies.document import Policy, PolicyError, Problem, json_schema, parse_policy, policy_from_mapping
from policies.endpoints import GENERATING, TEXT_ONLY, Endpoint
from policies.sections import Rule, TenantPolicy

POLICIES = Path(reference.__file__).parent
EXAMPLES = sorted((POLICIES / "examples").glob("*.yaml"))


def problems(text: str) -> dict[str, Problem]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    return {one.path: one for one in caught.value.problems}


class TestDefaults:
    def test_nothing_is_a_valid_policy_and_the_shipped_one(self) -> None:
        assert parse_policy("{}") == Policy() == policy_from_mapping({})

    def test_the_shipped_file_says_the_same(self) -> None:
        text = (POLICIES / "default.yaml").read_text()
        assert parse_policy(text) == Policy()
        assert list(parse_policy(text).pools) == list(Policy().pools)

    def test_the_shipped_file_spells_every_section_and_number_out(self) -> None:
        written = yaml.safe_load((POLICIES / "default.yaml").read_text())
        shipped = Policy().model_dump(mode="json", by_alias=True)
        assert set(written) == set(shipped)
        for section in ("balancing", "admission", "limits", "retries", "health", "timeouts"):
            assert written[section] == shipped[section]

    def test_the_shape_of_the_design_is_the_default(self) -> None:
        policy = Policy()
        assert [one.name for one in policy.classes] == ["interactive", "standard", "batch"]
        assert policy.default_class == "standard"
        assert list(policy.pools) == ["short-chat", "long-context", "embeddings"]
        assert policy.pools["short-chat"].max_budget_tokens == 4096
        assert policy.models["chat"].served_as == "tiny"
        assert policy.rules[0].when.budget_tokens_over == 8000

    def test_own_pools_drop_shipped_models_and_rules_that_name_the_old_ones(self) -> None:
        policy = parse_policy("pools: {only: {}}")
        assert policy.models == {}
        assert policy.rules == ()
        assert "acme" in policy.tenants

    def test_own_classes_drop_shipped_tenants(self) -> None:
        policy = parse_policy("{classes: [{name: one}], default_class: one}")
        assert policy.tenants == {"default": TenantPolicy()}

    def test_own_sections_are_kept_as_they_are(self) -> None:
        policy = parse_policy("{pools: {a: {}}, models: {m: {pools: [a]}}, rules: [{pool: a}]}")
        assert policy.models["m"].pools == ("a",)
        assert policy.rules == (Rule(pool="a"),)

    def test_data_that_is_no_mapping_is_refused_by_the_model_too(self) -> None:
        with pytest.raises(ValidationError):
            Policy.model_validate([])

    def test_a_document_survives_its_own_dump(self) -> None:
        dumped = Policy().model_dump(mode="json", by_alias=True)
        assert parse_policy(json.dumps(dumped)) == Policy() == policy_from_mapping(dumped)

    @pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
    def test_examples_load(self, example: Path) -> None:
        parse_policy(example.read_bytes())

    def test_documents_do_not_change(self) -> None:
        with pytest.raises(ValidationError):
            Policy().balancing.beta = 2.0  # type: ignore[misc]


class TestLookups:
    def test_tenants_without_an_entry_get_default(self) -> None:
        policy = parse_policy("tenants: {default: {weight: 3}, a: {weight: 9}}")
        assert policy.tenant("a").weight == 9
        assert policy.tenant("nobody").weight == 3

    def test_without_a_default_entry_nothing_is_limited(self) -> None:
        assert parse_policy("tenants: {}").tenant("nobody") == TenantPolicy()

    def test_class_index(self) -> None:
        assert Policy().class_index("batch") == 2
        assert Policy().class_index("Batch") is None

    @pytest.mark.parametrize("endpoint", Endpoint)
    def test_pools_serve_what_they_list_or_what_generates_and_any_text_only_request(self, endpoint: Endpoint) -> None:
        policy = Policy()
        listed = {"embeddings", "classify", "score", "rerank", "pooling"}
        assert policy.serves("embeddings", endpoint) == (endpoint in listed or endpoint in TEXT_ONLY)
        assert policy.serves("short-chat", endpoint) == (endpoint in GENERATING or endpoint in TEXT_ONLY)


SEMANTIC = [
    ("default_class: fast", "default_class", "no class is called 'fast'", None),
    ("default_class: Standard", "default_class", "no class is called", "standard"),
    ("tenants: {a: {max_class: interactve}}", "tenants.a.max_class", "no class is called", "interactive"),
    ("models: {m: {pools: [short-chat, lng]}}", "models.m.pools[1]", "no pool is called", None),
    ("models: {m: {pools: [short-chat, short-chat]}}", "models.m.pools[1]", "listed twice", None),
    ("models: {m: {canary: [{pool: x, weight: 0.1}]}}", "models.m.canary[0].pool", "no pool is called", None),
    (
        "models: {m: {canary: [{pool: embeddings, weight: 0.6}, {pool: long-context, weight: 0.6}]}}",
        "models.m.canary",
        "not sum to more than 1, got 1.2",
        None,
    ),
    ("pools: {a: {may_borrow: [bb]}}", "pools.a.may_borrow[0]", "no pool is called 'bb'; there are a", None),
    ("pools: {a: {may_borrow: [a]}}", "pools.a.may_borrow[0]", "can't borrow from itself", None),
    ("pools: {a: {may_borrow: [b, b]}, b: {}}", "pools.a.may_borrow[1]", "listed twice", None),
    (
        "pools: {a: {min_budget_tokens: 9, max_budget_tokens: 5}}",
        "pools.a.min_budget_tokens",
        "must not be above max_budget_tokens (5), got 9",
        None,
    ),
    ("pools: {a: {endpoints: []}}", "pools.a.endpoints", "at least one endpoint", None),
    ("rules: [{pool: short-cat}]", "rules[0].pool", "no pool is called", "short-chat"),
    ("rules: [{class: btch}]", "rules[0].class", "no class is called", "batch"),
    ("rules: [{when: {tenant: a}}]", "rules[0]", "sets nothing", None),
    (
        "rules: [{class: batch, when: {budget_tokens_over: 8, budget_tokens_up_to: 8}}]",
        "rules[0].when.budget_tokens_over",
        "no budget is over 8 and up to 8",
        None,
    ),
    ("retries: {backoff_base_s: 3, backoff_cap_s: 2}", "retries.backoff_base_s", "must not be above", None),
    ("health: {ejection_s: 30, ejection_cap_s: 20}", "health.ejection_s", "must not be above", None),
    ("{classes: [{name: a}, {name: A}], default_class: a}", "classes[1].name", "same name as classes[0]", None),
    ("{classes: [{name: a, floor: 0.6}, {name: b, floor: 0.6}], default_class: a}", "classes", "got 1.2", None),
]


KEYS = [
    "classes",
    "name",
    "floor",
    "pools",
    "may_borrow",
    "endpoints",
    "rules",
    "when",
    "models",
    "pool",
    "canary",
    "weight",
    "tenants",
    "max_class",
    "retries",
    "backoff_base_s",
    "backoff_cap_s",
    "budget_tokens_over",
    "budget_tokens_up_to",
    "class",
]


class TestWhatMustFitTogether:
    @pytest.mark.parametrize(("text", "path", "told", "hint"), SEMANTIC, ids=[one[1] for one in SEMANTIC])
    def test_it_is_refused_at_its_place(self, text: str, path: str, told: str, hint: str | None) -> None:
        found = problems(text)
        assert set(found) == {path}
        assert told in found[path].message
        assert found[path].line == 1
        assert hint is None or found[path].suggestion == hint

    @pytest.mark.parametrize(
        "text",
        [
            "pools: {a: {min_budget_tokens: 5, max_budget_tokens: 5}}",
            "rules: [{deadline_s: 4, when: {budget_tokens_over: 7, budget_tokens_up_to: 8}}]",
            "models: {m: {canary: [{pool: embeddings, weight: 0.4}, {pool: long-context, weight: 0.6}]}}",
            "{classes: [{name: a, floor: 0.4}, {name: b, floor: 0.6}], default_class: a}",
            "retries: {backoff_base_s: 2, backoff_cap_s: 2}",
        ],
    )
    def test_the_borders_are_allowed(self, text: str) -> None:
        parse_policy(text)

    def test_objects_made_in_code_are_held_to_it_as_well(self) -> None:
        with pytest.raises(ValidationError, match="default_class: no class is called 'fast'"):
            Policy(default_class="fast")

    def test_names_that_can_not_be_told_are_not_said_to_be_missing(self) -> None:
        assert set(problems("{classes: [{nam: a}], default_class: a, tenants: {t: {max_class: b}}}")) == {
            "classes[0].name",
            "classes[0].nam",
        }
        assert set(problems("{pools: 7, rules: [{pool: x}], models: {m: {pools: [y]}}}")) == {"pools"}

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(KEYS),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=25,
        )
    )
    def test_any_data_can_be_checked(self, data: Any) -> None:
        if isinstance(data, dict):
            for fault in faults_of(data):
                assert fault.message


class TestWhatIsPublished:
    def test_the_schema_file_is_current(self) -> None:
        assert reference.SCHEMA.read_text() == reference.schema_text(), "run python -m policies.reference"

    def test_the_reference_is_current(self) -> None:
        assert reference.MARKDOWN.read_text() == reference.reference(), "run python -m policies.reference"

    def test_every_field_says_what_it_means(self) -> None:
        def visit(schema: Any) -> None:
            for name, field in schema.get("properties", {}).items():
                assert field.get("description"), name
                numeric = {one.get("type") for one in [field, *field.get("anyOf", [])]} & {"integer", "number"}
                assert not numeric or field.get("unit"), f"{name} has no unit"

        schema = json_schema()
        for one in [schema, *schema["$defs"].values()]:
            visit(one)
            assert one.get("additionalProperties") is False or "enum" in one

    def test_checking_and_writing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        monkeypatch.setattr(reference, "MARKDOWN", tmp_path / "docs" / "policy.md")
        monkeypatch.setattr(reference, "SCHEMA", tmp_path / "docs" / "schema.json")
        assert reference.main(["--check"]) == 1
        assert "policy.md is not current" in capsys.readouterr().err
        assert reference.main([]) == 0
        assert reference.main(["--check"]) == 0
        reference.SCHEMA.write_text("{}")
        assert reference.main(["--check"]) == 1
