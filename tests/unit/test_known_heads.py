"""Answers of engines whose heads were read before."""

from __future__ import annotations

import pytest

from gateway.http import known_heads
from gateway.http.headers import forwarded_response_fields
from gateway.http.known_heads import find_answer, remember_answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nContent-Length: %d\r\nset-cookie: x\r\n\r\n"
FIELDS = [(b"content-type", b"a/b"), (b"content-length", b"2"), (b"set-cookie", b"x")]


def answer(body: bytes, head: bytes = HEAD) -> bytes:
    """A whole answer."""
    return head % len(body) + body


def test_an_answer_with_a_known_head_is_found_whatever_its_length():
    remember_answer(answer(b"{}"), 200, FIELDS)
    found = find_answer(answer(b'{"a":1}'))
    assert found is not None
    known, body = found
    assert (known.status, known.fields, body) == (200, FIELDS, b'{"a":1}')
    crossing = forwarded_response_fields(known.fields)
    assert crossing == forwarded_response_fields(FIELDS) == [(b"content-type", b"a/b")]
    crossing.append((b"x", b"y"))  # its own list
    assert forwarded_response_fields(known.fields) == [(b"content-type", b"a/b")]


@pytest.mark.parametrize(
    "data",
    [
        answer(b"{}") + b"x",
        answer(b"{}")[:-1],
        answer(b"{}")[:-3],
        answer(b"{}").replace(b"a/b", b"a/c"),
        answer(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2x"),
        answer(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
        answer(b"{}").replace(b"Content-Length: 2\r\n", b""),
        b"",
        b"\r\n\r\n",
    ],
)
def test_anything_else_is_read(data: bytes):
    remember_answer(answer(b"{}"), 200, FIELDS)
    assert find_answer(data) is None


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body_are_not_kept(status: int):
    odd = HEAD.replace(b"200 OK", b"%d X" % status)
    remember_answer(answer(b"{}", odd), status, FIELDS)
    assert find_answer(answer(b"{}", odd)) is None


def test_they_are_bounded():
    for number in range(3 * known_heads.MAX_HEADS):
        remember_answer(answer(b"{}").replace(b"a/b", b"a/%d" % number), 200, FIELDS)
    assert len(known_heads._answers) <= known_heads.MAX_HEADS
    big = answer(b"{}").replace(b"a/b", b"a" * known_heads.MAX_HEAD_BYTES)
    remember_answer(big, 200, FIELDS)
    assert find_answer(big) is None
