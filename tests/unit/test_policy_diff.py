"""The diff tells what a policy does otherwise, for whom, and nothing where documents mean the same."""

# ruff: noqa: E501 - tables of sentences

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.diff import ANY_MODEL, Change, diff, lines, text_diff, to_yaml
from policies.document import Policy, parse_policy
from policies.phrases import PHRASES
from policies.revisions import digest


def changes(old: str, new: str) -> tuple[Change, ...]:
    return diff(parse_policy(old), parse_policy(new))


def one(old: str, new: str, section: str) -> Change:
    (found,) = [change for change in changes(old, new) if change.section == section]
    return found


def test_the_same_meaning_has_no_difference():
    assert changes("{}", "# said again\nbalancing: {beta: 0.1}") == ()
    assert text_diff(Policy(), Policy()) == ""


@pytest.mark.parametrize(
    ("old", "new", "effect"),
    [
        (
            "pools: {a: {max_budget_tokens: 10}, b: {}}",
            "pools: {a: {max_budget_tokens: 20}, b: {}}",
            "pool a: takes token budgets up to 20 instead of 10",
        ),
        (
            "tenants: {a: {}}",
            "tenants: {a: {weight: 2.5}}",
            "tenant a: weighs 2.5 instead of 1 against others that wait in its class",
        ),
        ("tenants: {a: {}}", "tenants: {a: {max_in_flight: 3}}", "tenant a: may run 3 requests at once instead of any number"),
        ("tenants: {a: {}}", "tenants: {a: {}, b: {max_queued: 1}}", "tenant b is new: max_queued 1"),
        ("tenants: {a: {}, b: {}}", "tenants: {a: {}}", "tenant b is gone"),
        ("models: {m: {}}", "models: {m: {served_as: x}}", "model m: is asked of the engines as x instead of its own name"),
        (
            "models: {chat: {}}",
            "models: {chat: {canary: [{pool: embeddings, weight: 0.1}]}}",
            "model chat: gives shares of its sessions to embeddings (0.1) instead of to no pool",
        ),
        (
            "classes: [{name: standard}]",
            "classes: [{name: standard, queue_timeout_s: 5}]",
            "class standard: waits at most 5 s instead of 30 s",
        ),
        (
            "classes: [{name: standard}, {name: low}]",
            "classes: [{name: low}, {name: standard}]",
            "order of classes: low, standard instead of standard, low",
        ),
        ("{}", "redis_loss: open", "redis_loss: open instead of local_share (Limits while Redis is gone: keep the local share, admit all (open), or admit none (closed))"),
        ("{}", "timeouts: {connect_s: 2}", "timeouts.connect_s: 2 seconds instead of 1 seconds (Open a connection to a worker)"),
        ("{}", "balancing: {algorithm: round_robin}", "balancing.algorithm: workers are chosen by round_robin instead of least_outstanding_work"),
        ("{}", "admission: {reject_when_hopeless: false}", "admission.reject_when_hopeless: no instead of yes (Refuse at once what cannot meet its deadline any more, instead of letting it wait)"),
        ("{}", "limits: {max_in_flight_per_worker: 4}", "limits.max_in_flight_per_worker: a worker holds at most 4 requests instead of as many as its engine batches"),
        ("classes: [{name: standard, ttft_slo_s: 2}]", "classes: [{name: standard}]", "class standard: ttft_slo_s is none instead of 2 seconds (Time to first token that this class is meant to get; null: none promised)"),
        ("pools: {a: {}}", "{pools: {a: {}}, rules: [{when: {tenant: x}, class: batch}]}", "rule 0 is new: tenant x -> class batch"),
        ("{pools: {a: {}}, rules: [{deadline_s: 3}]}", "pools: {a: {}}", "rule 0 is gone: every request -> deadline_s 3.0"),
    ],
)  # fmt: skip
def test_each_change_says_what_it_does(old, new, effect):
    assert effect in lines(changes(old, new))


def test_values_stand_beside_the_words():
    change = one("{}", "retries: {max_attempts: 5}", "retries")
    assert (change.path, change.subject, change.kind) == ("retries.max_attempts", "max_attempts", "changed")
    assert (change.before, change.after) == (3, 5)
    added = one("limits: {max_in_flight_per_worker: 4}", "{}", "limits")
    assert (added.kind, added.before, added.after) == ("changed", 4, None)


def test_a_rule_in_the_middle_is_one_change():
    head = "pools: {a: {}, b: {}}\nrules:\n- {when: {tenant: x}, pool: a}\n"
    tail = "- {when: {tenant: z}, pool: b}\n"
    found = [
        change
        for change in changes(head + tail, head + "- {when: {tenant: y}, pool: b}\n" + tail)
        if change.section == "rules"
    ]
    assert [(change.kind, change.path) for change in found] == [("added", "rules[1]")]


def ways_of(old: str, new: str) -> list[str]:
    return [change.effect for change in changes(old, new) if change.section == "routing"]


def test_requests_that_go_elsewhere_are_told_by_their_budget():
    pools = "pools: {{short: {{max_budget_tokens: {}}}, long: {{}}}}"
    assert ways_of(pools.format(100), pools.format(200)) == [
        "requests for any other model, token budgets 101 to 200 (all that generates text): pool short instead of pool long"
    ]
    assert (
        ways_of(pools.format(100), "{pools: {short: {max_budget_tokens: 100}, long: {}}, timeouts: {connect_s: 2}}")
        == []
    )


def test_a_rule_moves_its_tenant_only():
    old = "{tenants: {x: {}}, pools: {a: {}, b: {}}}"
    new = (
        "{tenants: {x: {}}, pools: {a: {}, b: {}}, rules: [{when: {tenant: x, stream: false}, pool: b, class: batch}]}"
    )
    assert ways_of(old, new) == [
        "requests of tenant x, not streamed for any other model, all token budgets (every endpoint): pool b, class batch instead of pool a, class standard"
    ]


def test_what_everybody_meets_is_not_said_again_for_one_tenant():
    rules = "rules: [{when: {tenant: x, budget_tokens_over: 500}, pool: a}]"
    found = ways_of(f"{{pools: {{a: {{}}, b: {{}}}}, {rules}}}", f"{{pools: {{b: {{}}, a: {{}}}}, {rules}}}")
    assert found == ["requests for any other model, all token budgets (every endpoint): pool b instead of pool a"]


def test_thousands_of_models_are_compared_within_bounds():
    models = ", ".join(f"m{number}: {{}}" for number in range(3000))
    found = changes(
        f"{{models: {{{models}}}, pools: {{a: {{}}, b: {{}}}}}}",
        f"{{models: {{{models}}}, pools: {{b: {{}}, a: {{}}}}}}",
    )
    assert 0 < len([change for change in found if change.subject != ANY_MODEL]) <= 2000


def test_the_text_shows_the_lines_that_differ():
    told = text_diff(Policy(), parse_policy("redis_loss: open"))
    assert told.startswith("--- now\n+++ new\n")
    assert "-redis_loss: local_share\n+redis_loss: open\n" in told


def test_every_phrase_names_a_field_that_exists():
    from policies.phrases import ENTRIES, _section_model

    for section, name in PHRASES:
        model = ENTRIES[section][1] if section in ENTRIES else _section_model(section)
        assert model is not None
        assert name in model.model_fields, (section, name)


EXAMPLES = [Policy(), *(parse_policy(path.read_bytes()) for path in sorted(Path("policies/examples").glob("*.yaml")))]


@given(st.sampled_from(EXAMPLES), st.sampled_from(EXAMPLES))
def test_no_difference_means_the_same_digest(old, new):
    found = diff(old, new)
    assert bool(found) is (digest(old) != digest(new))
    assert all(change.effect and "\n" not in change.effect for change in found)
    assert parse_policy(to_yaml(new)) == new


@given(old=st.lists(st.integers(1, 5), max_size=12), new=st.lists(st.integers(1, 5), max_size=12))
def test_the_text_is_a_diff_that_leads_from_one_document_to_the_other(old: list[int], new: list[int]) -> None:
    before, after = (
        Policy.model_validate({"tenants": {f"t{at}": {"weight": weight} for at, weight in enumerate(weights)}})
        for weights in (old, new)
    )
    patched, place = [], 0
    was = to_yaml(before).splitlines()
    told = text_diff(before, after).splitlines()
    assert bool(told) == (before != after)
    for line in told[2:]:
        if line.startswith("@@"):
            start, _, count = line.split()[1].removeprefix("-").partition(",")
            first = int(start) - (0 if count == "0" else 1)
            patched += was[place:first]
            place = first
            continue
        if line[0] in " -":
            assert was[place] == line[1:]
            place += 1
        if line[0] in " +":
            patched.append(line[1:])
    assert [*patched, *was[place:]] == to_yaml(after).splitlines()


def test_a_tenants_line_is_not_taken_for_another_ones() -> None:
    many = {f"t{place}": {"weight": place % 3 + 1} for place in range(200)}
    changed = {**many, "t100": {"weight": 7}}
    told = text_diff(*(Policy.model_validate({"tenants": tenants}) for tenants in (many, changed)))
    assert [line for line in told.splitlines()[2:] if line[0] in "+-"] == ["-    weight: 2.0", "+    weight: 7.0"]
