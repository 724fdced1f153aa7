"""Bodies are decoded strictly and at a bounded cost; what is refused says why."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.body_guard import (
    MAX_CONTAINERS,
    MAX_STRINGS,
    MAX_VALUES,
    _few_opened,
    deeper_than,
    read_object,
    too_large,
)
from gateway.errors import ErrorAnswer, ErrorCode

DEPTH = 64


def nested(depth: int) -> bytes:
    """An object whose brackets nest `depth` levels."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "UTF-16"),
        ("{}".encode("utf-16-le"), "UTF-16"),
        ("{}".encode("utf-16-be"), "UTF-16"),
        ("{}".encode("utf-32-be"), "UTF-16"),
        (b"null", "not null"),
        (b"[]", "not an array"),
        (b'"x"', "not a string"),
        (b"123", "not a number"),
        (b"1.5", "not a number"),
        (b"true", "not a boolean"),
        (b'{"a":"cut', "not valid JSON"),
        (b'{"a":1} x', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'{"a":"\xed\xa0\x80"}', "not valid JSON"),
        (b'{"a":"\\ud800"}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b'{"a":"tab\there"}', "not valid JSON"),
        (b"\x00", "UTF-16"),
        (b"--x\r\n", "not valid JSON"),
    ],
)
def test_br_04_07_what_is_not_one_json_object_is_400(body: bytes, says: str):
    answer = read_object(body, DEPTH)
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.INVALID_JSON
    assert says in answer.message
    assert "(char" not in answer.message


def test_the_place_of_a_fault_is_named():
    answer = read_object(b'{"a":1,\n "b":x}', DEPTH)
    assert isinstance(answer, ErrorAnswer)
    assert "line 2, column 6" in answer.message


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' \n{"a":1}\n ',
        b'{"a":1,"a":2}',
        b'{"big":123456789012345680000000000000000}',
        b'{"a":"\\ud83d\\ude00"}',
        '{"a":"汉字"}'.encode(),
        nested(DEPTH),
        json.dumps({"code": "[[[{{{" * 1000}).encode(),
        json.dumps({"code": '"[[[{{{\\' * 1000}).encode(),
    ],
)
def test_what_engines_take_passes(body: bytes):
    assert read_object(body, DEPTH) == json.loads(
        body, parse_int=lambda text: int(text) if len(text) < 19 else float(text)
    )


@pytest.mark.parametrize("depth", [65, 66, 300, 999, 1000, 1023, 1024, 1025, 2000, 100_000])
def test_depth_is_bounded(depth: int):
    answer = read_object(nested(depth), DEPTH)
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.LIMIT_EXCEEDED


@pytest.mark.parametrize("max_depth", [4, 64, 1000])
def test_the_policys_depth_holds_exactly(max_depth: int):
    assert isinstance(read_object(nested(max_depth), max_depth), dict)
    assert isinstance(read_object(nested(max_depth + 1), max_depth), ErrorAnswer)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[" * MIB, "arrays and objects"),
        (b"{" * MIB, "arrays and objects"),
        (b'{"a":[' + b"[]," * (4 * MIB // 3) + b"[]]}", "arrays and objects"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}", "strings and keys"),
        (b'{"a":[' + b"1," * MAX_VALUES + b"1,1]}", "values"),
        (b'{"a":"\\\\",' + b'"":{},' * MAX_CONTAINERS + b'"":1}', "arrays and objects"),
    ],
    ids=["nested-arrays", "nested-objects", "4-MiB-of-arrays", "1M-keys", "1M-values", "behind-a-backslash"],
)
def test_what_would_build_a_million_objects_is_refused_before_it_does(body: bytes, what: str):
    tracemalloc.start()
    try:
        answer = read_object(body, DEPTH)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.LIMIT_EXCEEDED
    assert what in answer.message
    # A million small objects are 80 MB and more. Counting copies the body, and cuts it at so many strings as may be.
    assert peak < 3 * len(body) + 16 * MIB


def test_the_limits_are_exact():
    def strings(count: int) -> bytes:
        return b'{"a":[' + b",".join([b'""'] * (count - 1)) + b"]}"

    def containers(count: int) -> bytes:
        return b'{"a":[' + b",".join([b"[]"] * (count - 2)) + b"]}"

    def values(commas: int) -> bytes:
        return b'{"a":[' + b",".join([b"1"] * (commas + 1)) + b"]}"

    for make, limit in ((strings, MAX_STRINGS), (containers, MAX_CONTAINERS), (values, MAX_VALUES)):
        assert too_large(make(limit), DEPTH) is None
        assert too_large(make(limit + 1), DEPTH) is not None


def test_long_text_full_of_brackets_commas_and_quotes_is_only_text():
    text = json.dumps({"messages": [{"role": "user", "content": 'def f(x): return [{"a", "b"}, \\"c\\"]\n' * 50_000}]})
    assert read_object(text.encode(), DEPTH) == json.loads(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}",\\a', max_size=5), inner, max_size=3),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(one) for one in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(one) for one in value), default=0)
    return 0


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.integers(1, 8), st.booleans())
def test_depth_is_measured_as_a_walk_would(value, max_depth, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert (too_large(body, max_depth) is not None) == (depth_of(value) > max_depth)


@given(st.binary(max_size=300) | st.text(alphabet="{}[];:aB\xdb\xfb", max_size=60).map(str.encode), st.integers(0, 9))
def test_a_few_are_told_from_more(body, most):
    assert _few_opened(body, most) == (body.count(b"[") + body.count(b"{") <= most)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ 1aé', max_size=60).map(str.encode))
def test_no_bytes_raise(body):
    assert isinstance(read_object(body, 4), (dict, ErrorAnswer))


@pytest.mark.parametrize(("brackets", "deep"), [(b"[[[", False), (b"[" * 9, True), (b"][", False), (b"", False)])
def test_unbalanced_brackets(brackets: bytes, deep: bool):
    assert deeper_than(brackets, 4) is deep


def test_many_quotes_in_a_long_text_are_text():
    text = 'He said "no" [again] and {again}. ' * 20_000
    body = json.dumps({"a": text}).encode()
    assert read_object(body, DEPTH) == {"a": text}


@pytest.mark.parametrize("strings", [MAX_STRINGS - 1, MAX_STRINGS])
def test_the_number_of_strings_is_bounded_exactly(strings: int):
    body = b'{"a":[' + b",".join([b'"b"'] * strings) + b"]}"
    assert isinstance(read_object(body, DEPTH), dict) is (strings < MAX_STRINGS)
