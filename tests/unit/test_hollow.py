"""A body decoded around its long strings says what the parser says of the whole of it, faults included."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.body_guard import read_object
from gateway.errors import ErrorAnswer
from gateway.hollow import FRAME_BYTES, LONG_BYTES, MAX_BACKSLASHES, MAX_QUOTES, cut, filled

LONG = b"The [quick] {brown} fox, 12: " * 400


def hollow(body: bytes) -> object:
    """What comes of the body without its long strings; None: it is left to the parser."""
    around = cut(body)
    return None if around is None else filled(*around)


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
    assert read_object(body, 64) == orjson.loads(body)


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
    assert read_object(body, 64) == orjson.loads(body)


@pytest.mark.parametrize("byte", range(0x20))
@pytest.mark.parametrize("at", [0, 1, 31, 4096, len(LONG) - 1, len(LONG)])
def test_no_control_character_passes(byte: int, at: int):
    body = b'{"a":"%b%c%b"}' % (LONG[:at], byte, LONG[at:])
    assert hollow(body) is None
    refused = read_object(body, 64)
    assert isinstance(refused, ErrorAnswer)
    assert "column" in refused.message


def test_limits_hold_around_long_strings():
    deep = b'{"a":"%b","b":%b1%b}' % (LONG, b"[" * 9, b"]" * 9)
    assert read_object(deep, 10) == orjson.loads(deep)
    refused = read_object(deep, 9)
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
    body = (b'{"v":%b,"w":"@"}' % value).replace(b"@", LONG)
    if spoiled == 0:
        body = body[: 1 + int(at * len(body))]
    expected: object
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        expected = (error.msg, error.lineno, error.colno)
    found = read_object(body, 64)
    if isinstance(found, ErrorAnswer):
        assert isinstance(expected, tuple)
        assert found.message.startswith(f"The body is not valid JSON: {expected[0]} ")
        assert found.message.endswith(f"(line {expected[1]}, column {expected[2]}).")
    else:
        assert found == expected
