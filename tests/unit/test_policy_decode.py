"""Strict decoding: whatever comes in, either a policy comes out or all of its problems with their places."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from policies.decode import decode_mapping, decode_text
from policies.document import Policy, PolicyError, Problem, parse_policy, policy_from_mapping
from policies.problems import closest, show_path, show_value
from policies.yamltree import MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_PROBLEMS


def problems(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert str(caught.value) == "\n".join(str(one) for one in caught.value.problems)
    return caught.value.problems


def refused(data: Mapping[str, object]) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        policy_from_mapping(data)
    assert all(one.line is None and one.column is None for one in caught.value.problems)
    return [str(one) for one in caught.value.problems]


def policy_or_problems(read: Callable[[], Policy]) -> Policy | tuple[str, ...]:
    try:
        return read()
    except PolicyError as error:
        return tuple(map(str, error.problems))


MANY = """\
classes:
  - {name: a, queue_timeout_s: .inf}
  - {name: A, ttft_slo_s: true}
  - {nam: b}
defualt_class: x
default_class: b
pools:
  short-chat: {max_budget_tokens: 0}
  odd name: {}
rules:
  - {when: {tenent: a}, pool: shrt-chat}
balancing: {algorithm: least_outstanding, beta: -1}
limits: [1, 2]
"""


class TestEverythingAtOnce:
    def test_each_problem_has_its_line_and_they_come_in_document_order(self) -> None:
        assert [str(one) for one in problems(MANY)] == [
            "line 2: classes[0].queue_timeout_s: must be a finite number",
            "line 3: classes[1].name: same name as classes[0]",
            "line 3: classes[1].ttft_slo_s: must be a number, got true",
            "line 4: classes[2].name: is required",
            "line 4: classes[2].nam: unknown key (did you mean name?)",
            "line 5: defualt_class: unknown key (did you mean default_class?)",
            "line 8: pools.short-chat.max_budget_tokens: must be at least 1, got 0",
            "line 9: pools[\"odd name\"]: has characters that are not allowed here, or is too long, got 'odd name'",
            "line 11: rules[0].when.tenent: unknown key (did you mean tenant?)",
            (
                "line 11: rules[0].pool: no pool is called 'shrt-chat'; there are short-chat, odd name"
                " (did you mean short-chat?)"
            ),
            (
                "line 12: balancing.algorithm: must be one of least_outstanding_work, round_robin, least_requests,"
                " power_of_two, got 'least_outstanding' (did you mean least_outstanding_work?)"
            ),
            "line 12: balancing.beta: must be at least 0, got -1",
            "line 13: limits: must be a mapping, got a list",
        ]

    def test_places_are_those_of_the_key(self) -> None:
        (one,) = problems("retries:\n  max_attempts: 99\n")
        assert (one.path, one.line, one.column, one.value) == ("retries.max_attempts", 2, 3, "99")

    def test_no_more_problems_than_anyone_reads(self) -> None:
        many = problems("\n".join(f"key{place}: 1" for place in range(MAX_PROBLEMS * 3)))
        assert len(many) == MAX_PROBLEMS
        assert len(problems("\n".join(f"{place}: 1" for place in range(MAX_PROBLEMS * 3)))) == MAX_PROBLEMS
        assert len(refused({f"key{place}": 1 for place in range(MAX_PROBLEMS * 3)})) == MAX_PROBLEMS


WORDS = [
    ("retries: {max_attempts: 1.5}", "must be a whole number, got 1.5", None),
    ("retries: {max_attempts: true}", "must be a whole number, got true", None),
    ("retries: {max_attempts: '3'}", "must be a whole number, got '3'", "3"),
    ("retries: {max_attempts: 'three'}", "must be a whole number, got 'three'", None),
    ("retries: {max_attempts: null}", "must be a whole number, got null", None),
    ("balancing: {beta: '1e-1'}", "must be a number, got '1e-1'", "0.1"),
    ("balancing: {beta: 'inf'}", "must be a number, got 'inf'", None),
    ("balancing: {beta: [1]}", "must be a number, got a list", None),
    ("balancing: {beta: {a: 1}}", "must be a number, got a mapping", None),
    ("admission: {kv_watermark: 0}", "must be more than 0, got 0", None),
    ("admission: {kv_watermark: 1.5}", "must be at most 1, got 1.5", None),
    ("admission: {reject_when_hopeless: 'yes'}", "must be true or false, got 'yes'", "true"),
    ("admission: {reject_when_hopeless: 'maybe'}", "must be true or false, got 'maybe'", None),
    ("admission: {reject_when_hopeless: 1}", "must be true or false, got 1", None),
    ("tenants: [a]", "must be a mapping, got a list", None),
    ("rules: {a: 1}", "must be a list, got a mapping", None),
    ("models: {m: {served_as: 7}}", "must be text, got 7", None),
    ("redis_loss: 4", "must be one of local_share, open, closed, got 4", None),
    ("rules: [{class: batch, when: {endpoint: chatt}}]", "must be one of chat, completions", "chat"),
    ("classes: []", "must have at least 1 entries", None),
    (f"limits: {{refused_fields: {['x'] * 257}}}", "must have at most 256 entries", None),
]


class TestWords:
    @pytest.mark.parametrize(("text", "told", "hint"), WORDS, ids=[one[0][:40] for one in WORDS])
    def test_problems_speak_of_the_document(self, text: str, told: str, hint: str | None) -> None:
        found = problems(text)
        (one,) = [one for one in found if one.path != "default_class"]
        assert told in one.message
        assert one.suggestion == hint

    def test_any_other_rule_of_a_model_is_told_in_its_own_words(self) -> None:
        class Odd(BaseModel):
            number: int = Field(multiple_of=2, lt=9)

        with pytest.raises(PolicyError, match=r"line 1: number: input should be a multiple of 2, got 3"):
            decode_text(Odd, "number: 3", lambda _: [])
        with pytest.raises(PolicyError, match=r"^number: must be less than 9, got 10"):
            decode_mapping(Odd, {"number": 10}, lambda _: [])

    def test_no_suggestions_where_any_key_goes(self) -> None:
        class Loose(BaseModel, extra="forbid"):
            inner: dict[str, int]

        with pytest.raises(PolicyError) as caught:
            decode_text(Loose, "{inner: {a: x}, innr: 1}", lambda _: [])
        assert [one.suggestion for one in caught.value.problems] == [None, "inner"]

    def test_suggestions_inside_a_section_that_may_be_null(self) -> None:
        class Inner(BaseModel, extra="forbid"):
            number: int = 1

        class Outer(BaseModel):
            inner: Inner | None = None

        with pytest.raises(PolicyError, match=r"inner.numbr: unknown key \(did you mean number\?\)"):
            decode_text(Outer, "inner: {numbr: 2}", lambda _: [])

    def test_paths_values_and_guesses(self) -> None:
        assert show_path(("models", "a.b/c", 3, "x")) == 'models["a.b/c"][3].x'
        assert show_path(("a b",)) == '["a b"]'
        assert show_value("x" * 500) == "'" + "x" * 78 + "…"
        assert show_value({}) == "a mapping"
        assert closest("STANDRD", ["standard", "batch"]) == "standard"
        assert closest("zzz", ["standard"]) is None
        assert str(Problem("", "is empty")) == "is empty"


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(f'*{old}' for _ in range(10))}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)

UNREADABLE = [
    ("", "is empty", 1),
    ("# only a comment\n", "is empty", 1),
    ("[]", "must be a mapping of sections", 1),
    ("text", "must be a mapping of sections", 1),
    ("null", "must be a mapping of sections", 1),
    (b"\xff\xfe{}", "not UTF-8 text: invalid start byte at offset 0", None),
    ("a: \ud800", "not UTF-8 text: surrogates not allowed", None),
    ("\x00", "not valid YAML", None),
    ("a: [", "not valid YAML", 1),
    ("a: b: c", "not valid YAML", 1),
    ("{}\n---\n{}", "holds more than one YAML document", 2),
    ("x" * (MAX_BYTES + 1), "larger than 256 KiB", None),
    ("é" * (MAX_BYTES // 2 + 1), "larger than 256 KiB", None),
    ("{a: " * (MAX_DEPTH + 1), f"a: nested deeper than {MAX_DEPTH} levels", 1),
    ("[" * 5000, "nest", 1),
    (BOMB, f"more than {MAX_NODES} values once aliases are expanded", None),
]

ODD = [
    ("pools: {a: {}}\npools: {b: {}}", "line 2: pools: key given twice, first in line 1"),
    ("a: &a [*a]", "line 1: a[0]: alias *a refers to itself"),
    ("redis_loss: *b", "line 1: redis_loss: alias *b names no anchor before it"),
    ("1: 2", 'line 1: 1: keys must be text; put it in quotes (did you mean "1"?)'),
    ("yes: 2", 'line 1: yes: keys must be text; put it in quotes (did you mean "yes"?)'),
    ("? [a]\n: 2", 'line 1: ["a list"]: keys must be text; put it in quotes'),
    ("<<: {redis_loss: open}", 'line 1: ["<<"]: merge keys are not supported; write the entries out'),
    ("!!set {a}", "line 1: tag tag:yaml.org,2002:set is not allowed"),
    ("redis_loss: !!python/name:os.system x", "tag tag:yaml.org,2002:python/name:os.system is not allowed"),
    ("retries: {max_attempts: .nan}", "line 1: retries.max_attempts: must be a finite number"),
    ("retries: {max_attempts: -.inf}", "line 1: retries.max_attempts: must be a finite number"),
    (f"retries: {{max_attempts: {'9' * 5000}}}", "line 1: retries.max_attempts: is too large a number"),
    # More digits than Python turns into text: these must not even be shown.
    (f"retries: {{max_attempts: 0x{'f' * 5000}}}", "line 1: retries.max_attempts: is too large a number"),
    (f"retries: {{max_attempts: {'1:' * 5000}1}}", "line 1: retries.max_attempts: is too large a number"),
    (f"retries: {{max_attempts: {2**63}}}", "line 1: retries.max_attempts: is too large a number"),
    (f"retries: {{max_attempts: {2**63 - 1}}}", "must be at most"),
    ("timeouts: {total_s: 1:30}", "line 1: timeouts.total_s: is a number of base 60 in YAML (1:30 is 90)"),
    ("admission: {max_queued: 0100}", "line 1: admission.max_queued: begins with 0, which makes it a number of base 8"),
    ("retries: {max_attempts: !!int ''}", "is not a number or constant that can be read: ''"),
    ("retries: {continue_streams: !!bool maybe}", "is not a number or constant that can be read: 'maybe'"),
    ("retries: {max_attempts: !!float x}", "is not a number or constant that can be read: 'x'"),
]


class TestHostileText:
    @pytest.mark.parametrize(("text", "told", "line"), UNREADABLE, ids=lambda value: repr(value)[:24])
    def test_it_is_refused_whole(self, text: str | bytes, told: str, line: int | None) -> None:
        found = problems(text)
        assert told in str(found[-1])
        assert line is None or found[-1].line == line or told == "not valid YAML"

    @pytest.mark.parametrize(("text", "told"), ODD, ids=[one[0][:24] for one in ODD])
    def test_it_is_refused_at_its_place(self, text: str, told: str) -> None:
        assert any(told in str(one) for one in problems(text))

    def test_aliases_within_bounds_are_fine_and_stand_where_they_are_used(self) -> None:
        policy = parse_policy("pools: {a: &p {max_budget_tokens: 9}, b: *p}")
        assert policy.pools["a"] == policy.pools["b"]
        found = problems("pools:\n  a: &p {max_budget_tokens: 0}\n  b: *p\n")
        assert [(one.path, one.line) for one in found] == [
            ("pools.a.max_budget_tokens", 2),
            ("pools.b.max_budget_tokens", 2),
        ]

    def test_scalars_are_what_they_look_like(self) -> None:
        policy = parse_policy(
            b'\xef\xbb\xbfmodels:\n  m: {served_as: 2024-01-01}\n  \'=\': {served_as: "7"}\n  x: {served_as: ! "3"}\n'
            b"tenants: {a: {weight: 0x10}, b: {weight: !!float 2}}\n"
        )
        assert [one.served_as for one in policy.models.values()] == ["2024-01-01", "7", "3"]
        assert [one.weight for one in policy.tenants.values()] == [16, 2]

    def test_json_is_yaml(self) -> None:
        assert parse_policy('{"redis_loss":"open"}').redis_loss == "open"

    @given(st.binary(max_size=400) | st.text(max_size=400))
    @example(b"a: &a\n- *a")
    @example("? ? ? :")
    @example("!<tag:yaml.org,2002:int> x: y")
    def test_nothing_but_policy_errors_comes_out(self, text: bytes | str) -> None:
        assert policy_or_problems(lambda: parse_policy(text))

    @given(st.lists(st.sampled_from([*"{}[]:,-?&*!|>'\"\n #%@`ax1", "&a ", "*a", "pools", "---\n", "<<", "!!int "])))
    def test_nor_from_what_looks_like_yaml(self, pieces: list[str]) -> None:
        assert policy_or_problems(lambda: parse_policy("".join(pieces)))


class TestData:
    def test_it_is_read_as_text_is(self) -> None:
        data = {"pools": {"a": MappingProxyType({"may_borrow": ("b",)}), "b": {}}, "redis_loss": "open"}
        assert policy_from_mapping(data) == parse_policy("{pools: {a: {may_borrow: [b]}, b: {}}, redis_loss: open}")

    def test_all_problems_at_once(self) -> None:
        assert refused({"rules": [{"pool": "x"}], "retries": {"max_attempts": 0, "maxattempts": 1}}) == [
            "retries.max_attempts: must be at least 1, got 0",
            "retries.maxattempts: unknown key (did you mean max_attempts?)",
            "rules[0].pool: no pool is called 'x'; there are short-chat, long-context, embeddings",
        ]

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (float("nan"), "redis_loss: must be a finite number"),
            (float("inf"), "redis_loss: must be a finite number"),
            ("\ud800", "redis_loss: is not valid Unicode text"),
            (2**63, "redis_loss: is too large a number"),
            (-(16**5000), "redis_loss: is too large a number"),
            (b"x", "redis_loss: values of type bytes are not allowed"),
            ({7: 1}, "redis_loss.7: keys must be text"),
            ({"\ud800": 1}, "keys must be text"),
            ([0] * (MAX_NODES + 10), f"more than {MAX_NODES} values"),
            ({str(one): 0 for one in range(MAX_NODES + 10)}, f"more than {MAX_NODES} values"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_no_document_can_hold(self, value: object, told: str) -> None:
        assert any(told in one for one in refused({"redis_loss": value}))

    def test_depth_is_bounded(self) -> None:
        deep: Any = 1
        for _ in range(5000):
            deep = [deep]
        assert any(f"nested deeper than {MAX_DEPTH} levels" in one for one in refused({"pools": deep}))

    def test_many_odd_keys_make_no_endless_list(self) -> None:
        assert len(refused({"pools": dict.fromkeys(range(1000), b"x")})) == MAX_PROBLEMS
        assert len(refused({"rules": [b"x"] * 1000})) == MAX_PROBLEMS

    def test_what_is_no_mapping(self) -> None:
        assert refused([]) == ["must be a mapping of sections"]  # type: ignore[arg-type]
        assert refused(b"x") == ["values of type bytes are not allowed"]  # type: ignore[arg-type]

    @given(
        st.dictionaries(
            st.sampled_from([*Policy.model_fields, "else"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
                max_leaves=12,
            ),
            max_size=4,
        )
    )
    def test_nothing_but_policy_errors_comes_out(self, data: dict[str, object]) -> None:
        read = policy_or_problems(lambda: policy_from_mapping(data))
        assert read
        if isinstance(read, Policy):
            assert policy_from_mapping(json.loads(read.model_dump_json(by_alias=True))) == read
