"""Usage is found in the bytes of an answer, and only where the engine wrote it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai import Usage, usage_from, usage_of
from gateway.usage import MAX_USAGE_BYTES, _last_name, _plain_after

NAME = b'"usage"'
CHAT = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (CHAT, Usage(5, 7)),
        ({**CHAT, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 7, 4)),
        ({**CHAT, "prompt_tokens_details": None}, Usage(5, 7)),
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0)),
        ({"prompt_tokens": 5, "completion_tokens": None}, Usage(5, 0)),
        ({"input_tokens": 5, "output_tokens": 7}, Usage(5, 7)),
        ({"input_tokens": 5, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 2}}, Usage(5, 7, 2)),
        ({"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 20}, Usage(25, 7, 20)),
        ({}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": "5"}, None),
        (None, None),
        ([1], None),
        (5, None),
    ],
)
def test_each_apis_counts(usage: object, expected: Usage | None):
    assert usage_from(usage) == expected
    assert usage_of(json.dumps({"choices": [], "usage": usage, "z": {"y": 1}}).encode()) == expected
    assert usage_of(json.dumps({"usage": usage}, indent=2).encode()) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"usage"',
        b'{"usage":',
        b'{"usage":{',
        b'{"usage":{"prompt_tokens":5',
        b'{"usage":[{"prompt_tokens":5}]}',
        b'{"text":"usage"}',
        b'{"usage":{' + b'"a":{},' * 20 + b'"prompt_tokens":5},"z":1}',
        b'{"usage":{"a":"' + b"x" * 5000 + b'"}}',
    ],
)
def test_answers_without_usage(body: bytes):
    assert usage_of(body) is None


def test_the_last_member_is_found_whatever_is_in_it_and_whatever_else_ends_so():
    inner = b'"a":{},' * 20
    assert usage_of(b'{"usage":{' + inner + b'"prompt_tokens":5}}') == Usage(5, 0)
    assert usage_of(b'{"usage":{"prompt_tokens":5},"metrics":{"a":{}}}') == Usage(5, 0)
    assert usage_of(b'{"a":{"usage":{"prompt_tokens":5}}}') == Usage(5, 0)


def test_text_about_usage_is_not_usage():
    content = '"usage": {"prompt_tokens": 666, "completion_tokens": 666}'
    answer = {"usage": CHAT, "choices": [{"message": {"content": content}, "tool": {"arguments": content}}]}
    assert usage_of(json.dumps(answer).encode()) == Usage(5, 7)


def test_the_last_one_counts_and_a_few_are_tried():
    assert usage_of(b'{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}') == Usage(2, 0)
    assert usage_of(b'{"usage":{"prompt_tokens":1},"a":["usage"]}') == Usage(1, 0)
    assert usage_of(b'{"usage":{"prompt_tokens":1},"a":[' + b'"usage",' * 20 + b"1]}") is None


def test_a_large_answer_is_not_parsed():
    body = b'{"data":[' + b"[" * 3_000_000 + b'],"usage":{"prompt_tokens":9,"total_tokens":9}}'
    assert usage_of(body) == Usage(9, 0)


@given(st.binary(max_size=100) | st.text('{}":, usage0', max_size=80).map(str.encode))
def test_no_bytes_raise(body):
    assert usage_of(b'{"usage":' + body) is None or isinstance(usage_of(b'{"usage":' + body), Usage)


@given(st.text('"usage:{} e', max_size=60).map(str.encode))
def test_the_last_name_is_where_a_search_finds_it(body):
    assert _last_name(body) == body.rfind(NAME)
    assert _last_name(body + NAME + body) == (body + NAME + body).rfind(NAME)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"prompt_tokens":60,"completion_tokens":16,"total_tokens":76}', Usage(60, 16)),
        (b'{"total_tokens":76,"completion_tokens":16,"prompt_tokens":0,"prompt_tokens_details":null}', Usage(0, 16)),
        (b'{"prompt_tokens":5,"input_tokens":3,"prompt_tokens_details":7}', Usage(5, 0)),
        (b'{"prompt_tokens":123456789012345}', Usage(123456789012345, 0)),
        (b'{"prompt_tokens":1234567890123456}', None),
        (b'{"prompt_tokens":05}', None),
        (b'{"prompt_tokens":-5}', None),
        (b'{"prompt_tokens":5.0}', None),
        (b'{"prompt_tokens":5,"completion_tokens":null}', None),
        (b'{"prompt_tokens":5,"x":nul}', None),
        (b'{"prompt_tokens":5,"x":"y"}', None),
        (b'{"prompt_tokens":5,"prompt_tokens":6}', None),
        (b'{"prompt_tokens":5,"completion_tokens":5,"completion_tokens":6}', None),
        (b'{"prompt_tokens":5,"output_tokens":6}', None),
        (b'{"prompt_tokens" :5}', None),
        (b'{"prompt_tokens":5 }', None),
        (b'{"prompt_tokens":5,}', None),
        (b'{"prompt\\u005ftokens":5}', None),
        (b'{"total_tokens":5}', None),
        (b"{}", None),
        (b"5", None),
        (b'{"prompt_tokens":5' + b',"x":1' * (MAX_USAGE_BYTES // 6) + b"}", None),
    ],
)
def test_plain_counts_are_read_without_decoding(value: bytes, expected: Usage | None):
    body = b'{"usage":' + value + b',"z":1}'
    assert _plain_after(body, 8) == expected
    for cut in range(8, 9 + len(value) - 1):
        assert _plain_after(body[:cut], 8) is None
    if expected is not None:
        assert usage_from(json.loads(value)) == expected


COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "prompt_tokens_details",
    "a`b",
    "output",
)


@given(st.lists(st.tuples(st.sampled_from(COUNTS), st.integers(0, 10**6) | st.none()), max_size=5))
def test_plain_counts_are_what_decoding_finds(counts: list[tuple[str, int | None]]):
    value = ",".join(f'"{name}":{json.dumps(count)}' for name, count in counts)
    found = _plain_after(b'"usage":{%b}' % value.encode(), len(NAME))
    assert found is None or found == usage_from(json.loads("{" + value + "}"))
