"""A body decoded around its long strings says what the parser says of the whole of it, faults included."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.body_guard import read_object
from gateway.errors import ErrorAnswer
from gateway.facts import EXTRACT, BodyFacts, BodyLimits, common
from gateway.hollow import FRAME_BYTES, LONG_BYTES, MAX_BACKSLASHES, MAX_QUOTES, cut, filled
from gateway.openai import parse_facts
from gateway.prefix_chain import prefix_chain
from policies.endpoints import Endpoint
from policies.tokens import LongText

LONG = b"The [quick] {brown} fox, 12: " * 400


def resolved(value: Any, long: dict[str, LongText]) -> Any:
    """With the texts in the place of their marks."""
    if isinstance(value, dict):
        return {key: resolved(one, long) for key, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, long) for one in value]
    text = long.get(value) if isinstance(value, str) else None
    return value if text is None else text.piece(0, text.size).decode()


def hollow(body: bytes) -> object:
    """What comes of the body without its long strings; None: it is left to the parser."""
    around = cut(body)
    if around is None:
        return None
    long: dict[str, LongText] = {}
    return resolved(filled(*around, long), long)


def read(body: bytes, max_depth: int = 64) -> Any:
    """All that a gate reads."""
    long: dict[str, LongText] = {}
    return resolved(read_object(body, max_depth, long), long)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"%b"}' % LONG,
        b'{"a":"%b","b":[1,"%b",{"c":"%b"},[["%b"]]]}' % (LONG, LONG * 2, b"x" * LONG_BYTES, LONG),
        b' {"short \\" \\\\":"\\u00e9\\n", "a" :\t"%b"}\n' % LONG,
        b'{"a":"\xc3\xa9","b":"%b\x7f"}' % LONG,
        b'{"a":"%b","a":2,"b":"%b"}' % (b"short", LONG),
    ],
)
def test_long_plain_strings_are_read_apart(body: bytes):
    assert hollow(body) == orjson.loads(body)
    assert read(body) == orjson.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"%b"}' % LONG[: LONG_BYTES - 1],
        b'{"a":"%b\\n"}' % LONG,
        b'{"a":"%b\xc3\xa9"}' % LONG,
        b'{"%b":1}' % LONG,
        b'{"a":"%b","a":"%b"}' % (LONG, LONG),
        b'{"a":"%b","b":[%b1]}' % (LONG, b"1," * FRAME_BYTES),
        b'{"a":"%b","b":[%b""]}' % (LONG, b'"",' * MAX_QUOTES),
        b'{"a":"%b","b":"%b"}' % (LONG, b'\\"' * (MAX_QUOTES + 1)),
        b'{"a":"%b","b":"%b"}' % (LONG, b"\\" * (2 * MAX_BACKSLASHES)),
        b'{"a":"%b","b":"\\n%b"}' % (LONG, b"y" * FRAME_BYTES),
    ],
)
def test_what_is_odd_is_left_to_the_parser(body: bytes):
    assert hollow(body) is None
    assert read(body) == orjson.loads(body)


@pytest.mark.parametrize("byte", range(0x20))
@pytest.mark.parametrize("at", [0, 1, 31, 4096, len(LONG) - 1, len(LONG)])
def test_no_control_character_passes(byte: int, at: int):
    body = b'{"a":"%b%c%b"}' % (LONG[:at], byte, LONG[at:])
    assert hollow(body) is None
    refused = read(body)
    assert isinstance(refused, ErrorAnswer)
    assert "column" in refused.message


def test_limits_hold_around_long_strings():
    deep = b'{"a":"%b","b":%b1%b}' % (LONG, b"[" * 9, b"]" * 9)
    assert read(deep, 10) == orjson.loads(deep)
    refused = read(deep, 9)
    assert isinstance(refused, ErrorAnswer)
    assert "limits.json_depth" in refused.message


# `@` stands for a long string.
PIECES = st.sampled_from(
    [b"", b"@", b"@@", b"\\", b'\\"', b'"', b"\\\\", b"\\u0041", b"\\ud800", b"\n", b"\0", b"\xff", b"\xc3\xa9", b"a"]
)
STRINGS = st.lists(PIECES, max_size=3).map(lambda pieces: b'"%b"' % b"".join(pieces))
VALUES = st.recursive(
    st.one_of(STRINGS, st.sampled_from([b"1", b"null", b'""', b"-", b"NaN"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: b"[%b]" % b",".join(values)),
        st.lists(st.tuples(st.one_of(st.just(b'"a"'), STRINGS), inner), max_size=3).map(
            lambda pairs: b"{%b}" % b",".join(b"%b:%b" % pair for pair in pairs)
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(value=VALUES, spoiled=st.integers(0, 20), at=st.floats(0, 1, exclude_max=True))
def test_nothing_differs_from_the_parser(value: bytes, spoiled: int, at: float):
    body = (b'{"v":%b,"messages":[{"content":%b},%b,{"content":"@"}]}' % (value, value, value)).replace(b"@", LONG)
    if spoiled == 0:
        body = body[: 1 + int(at * len(body))]
    expected: object
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        expected = (error.msg, error.lineno, error.colno)
    found = read(body)
    if isinstance(found, ErrorAnswer):
        assert isinstance(expected, tuple)
        assert found.message.startswith(f"The body is not valid JSON: {expected[0]} ")
        assert found.message.endswith(f"(line {expected[1]}, column {expected[2]}).")
    else:
        assert found == expected


CONTENTS = st.sampled_from(
    [
        b"null",
        b'""',
        b'"hi"',
        b'"%b"' % LONG,
        b'"%b"' % (LONG * 40),
        b'"%b"' % (b"z" * LONG_BYTES),
        b'"%b"' % (b"a, b" * 130),
        b'"\xc3\xa9%b"' % LONG,
        b'"%b\\n"' % LONG,
        b'["a",{"text":"b"}]',
        b'[{"text":"%b"}]' % LONG,
        b'[{"type":"image_url","image_url":{"url":"%b"}}]' % LONG,
    ]
)
ENDPOINTS = st.sampled_from([Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.EMBEDDINGS])


@settings(max_examples=200, deadline=None)
@given(contents=st.lists(CONTENTS, max_size=5), other=CONTENTS, endpoint=ENDPOINTS)
def test_estimates_and_chains_are_those_of_the_whole(contents: list[bytes], other: bytes, endpoint: Endpoint):
    messages = b",".join(b'{"role":"user","content":%b}' % one for one in contents)
    body = b'{"model":"m","messages":[%b],"system":%b,"tools":[%b],"input":%b}' % (messages, other, other, other)
    limits = BodyLimits(64, 8, ())
    found = parse_facts(endpoint, body, limits)
    value = orjson.loads(body)
    expected = common(value, limits)
    EXTRACT[endpoint](value, expected, limits)
    assert isinstance(found, BodyFacts)
    long = dict(found.long or {})
    assert resolved(found.begin, long) == expected.begin
    assert resolved(found.fields, long) == expected.fields
    assert (found.prompt_tokens, found.longest_prompt) == (expected.prompt_tokens, expected.longest_prompt)
    tokens = found.prompt_tokens
    assert prefix_chain(found.begin, tokens, "t", "m", "", found.long) == prefix_chain(expected.begin, tokens, "t", "m")
