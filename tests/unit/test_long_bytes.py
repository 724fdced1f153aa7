"""Where a long plain string ends: every byte at every place counts; and room. On the compiled core C is asked."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.long_bytes import blank, plain_end

PLAIN = frozenset(range(0x20, 0x80)) - set(b'\\"')
BLOCK = 4096  # of the C function; those of the other are longer


def expected(body: bytes, start: int, least: int) -> int:
    """The same, one byte after the other."""
    at = start
    while at < len(body) and body[at] in PLAIN:
        at += 1
    return at if body[at : at + 1] == b'"' and at - start >= least else -1


@given(st.lists(st.sampled_from([b'"', b"\\", b"\n", b"\xc3\xa9", b"a", b"bc {", b"~\x7f"])), st.data())
@example([], None)
def test_it_ends_where_its_quote_is(parts: list[bytes], data: st.DataObject | None) -> None:
    body = b"".join(parts)
    start = 0 if data is None else data.draw(st.integers(0, len(body)))
    least = 0 if data is None else data.draw(st.integers(-1, len(body) + 2))
    assert plain_end(body, start, least) == expected(body, start, least)


@pytest.mark.parametrize("byte", range(256))
@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 33, BLOCK, BLOCK + 1, 24_001])
def test_one_byte_decides_wherever_it_stands(byte: int, size: int) -> None:
    for at in {0, size // 2, size - 1, min(BLOCK, size - 1)}:
        body = bytearray(b'"' + b"x" * size + b'"')
        body[1 + at] = byte
        for least in {0, 1, at, size}:
            assert plain_end(bytes(body), 1, least) == expected(bytes(body), 1, least)


@pytest.mark.parametrize("start", [-1, 4, 1 << 60])
def test_what_is_no_place_in_the_body_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match=f"no place in 3 bytes: {start}"):
        plain_end(b"abc", start, 0)


@pytest.mark.parametrize("wrong", [("abc", 0, 1), (b'abc"', "0", 1), (b'abc"', 0, None)])
def test_what_is_no_body_or_place_is_refused(wrong: tuple[object, object, object]) -> None:
    with pytest.raises(TypeError):
        plain_end(*wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 2, 511, 512, 1 << 20])
def test_blank_bytes_have_their_size(size: int) -> None:
    found = blank(size)
    assert type(found) is bytes
    assert len(found) == size


@pytest.mark.parametrize(("size", "why"), [(-1, ValueError), ("7", TypeError), (None, TypeError)])
def test_what_is_no_size_is_refused(size: object, why: type[Exception]) -> None:
    with pytest.raises(why):
        blank(size)  # type: ignore[arg-type]
