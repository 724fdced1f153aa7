"""Answers of engines whose heads were read before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http import known_heads
from gateway.http.known_heads import KnownAnswer, answer_head_of, find_answer, remember_answer
from gateway.http.verdicts import Reading

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nContent-Length: %d\r\nset-cookie: x\r\n\r\n"
FIELDS = [(b"content-type", b"a/b"), (b"content-length", b"2"), (b"set-cookie", b"x")]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\nset-cookie: x\r\n\r\n"


def answer(body: bytes, head: bytes = HEAD) -> bytes:
    """A whole answer."""
    return head % len(body) + body


def remember(data: bytes, status: int = 200, *, chunked: bool = False) -> KnownAnswer | None:
    """As a connection does that has read an answer."""
    told = data[: data.find(b"\r\n\r\n") + 4]
    return remember_answer(answer_head_of(status, FIELDS), told, chunked=chunked)


def found(data: bytes) -> tuple[KnownAnswer, bytes] | None:
    """The known answer that these bytes are, and its body."""
    known = find_answer(data)
    body = None if known is None else known.body_of(data)
    return None if known is None or body is None else (known, body)


def test_what_follows_from_a_head():
    head = answer_head_of(200, FIELDS)
    assert (head.status, head.fields, head.reading) == (200, FIELDS, Reading.WHOLE)
    assert head.lines == b"content-type: a/b\r\n"


@given(st.binary(max_size=1200), st.binary(max_size=1200))
def test_an_answer_with_a_known_head_is_found_whatever_its_length(first: bytes, second: bytes):
    remember(answer(first))
    known = found(answer(second))
    assert known is not None
    assert known[1] == second
    assert known[0].head.fields == FIELDS
    assert known[0].body_of(answer(second) + b"x") is None
    assert known[0].body_of(answer(second)[:-1]) is None


@pytest.mark.parametrize(
    "size", [0, 1, 8, 9, 10, 11, 98, 99, 100, 101, 998, 999, 1000, 1001, 9_999, 10_000, 99_999, 100_000]
)
def test_each_length_is_told_by_its_own_digits_only(size: int):
    known = remember(answer(b"{}"))
    assert known is not None
    assert known.body_of(answer(b"x" * size)) == b"x" * size
    for other in (size - 1, size + 1, size * 10, size // 10):
        if other != size:
            assert known.body_of(HEAD % other + b"x" * size) is None


@pytest.mark.parametrize(
    "data",
    [
        answer(b"{}") + b"x",
        answer(b"{}")[:-1],
        answer(b"{}")[:-3],
        answer(b"{}").replace(b"a/b", b"a/c"),
        answer(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2x"),
        answer(b"{}").replace(b"Content-Length: 2", b"Content-Length: 02"),
        answer(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
        answer(b"{}").replace(b"Content-Length: 2\r\n", b""),
        b"",
        b"\r\n\r\n",
    ],
)
def test_anything_else_is_read(data: bytes):
    remember(answer(b"{}"))
    assert found(data) is None


def test_a_chunked_answer_is_known_by_its_whole_head():
    known = remember(STREAM, chunked=True)
    assert known is not None
    assert found(STREAM + b"rest") == (known, b"rest")
    assert found(STREAM) == (known, b"")
    assert found(STREAM[:-1]) is None
    both = STREAM[:-2] + b"content-length: 0\r\n\r\n"
    assert found(both) is None


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body_are_not_kept(status: int):
    odd = HEAD.replace(b"200 OK", b"%d X" % status)
    assert remember(answer(b"{}", odd), status) is None
    assert found(answer(b"{}", odd)) is None


def test_they_are_bounded():
    for number in range(3 * known_heads.MAX_HEADS):
        remember(answer(b"{}").replace(b"a/b", b"a/%d" % number))
    assert len(known_heads._answers) <= known_heads.MAX_HEADS
    big = answer(b"{}").replace(b"a/b", b"a" * known_heads.MAX_HEAD_BYTES)
    assert remember(big) is None
    assert found(big) is None
