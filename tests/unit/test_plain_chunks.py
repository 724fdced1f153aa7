"""A worker's body is read the same whether llhttp reads it or we do, whatever it is and wherever it is cut."""

from __future__ import annotations

import asyncio

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import compiled
from gateway.http import known_heads
from gateway.http.known_heads import AnswerHead
from gateway.http.plain_chunks import (
    MAX_SIZES,
    ONE_CHUNK_BYTES,
    SIZE_DIGITS,
    PlainChunks,
    _line_end,
    one_chunk,
    several_chunks,
    size_of,
)
from gateway.http.upstream import UpstreamPool
from gateway.http.worker_connection import AnswerSink, UpstreamConnection
from gateway.scheduling.model import OutcomeKind

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


SPELLINGS = st.sampled_from(
    [b"%x", b"%X", b"0%x", b"00000%x", b"%x;a=b", b"%x ", b" %x", b"+%x", b"0x%x", b"%xg", b"000000000%x"]
)
ENDS = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"", b"\r\r\n", b"x\r\n"])


@st.composite
def bodies(draw: st.DrawFn, *, plain: bool = False) -> bytes:
    """Chunked bodies, most of them well-formed."""
    body = b""
    for data in draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6)):
        spelling = b"%x" if plain else draw(st.one_of(st.just(b"%x"), st.just(b"%x"), SPELLINGS))
        line_end, data_end = (b"\r\n", b"\r\n") if plain else (draw(ENDS), draw(ENDS))
        body += spelling % len(data) + line_end + data + data_end
    if not plain:
        body += draw(
            st.sampled_from([b"0\r\n\r\n"] * 4 + [b"0\r\nt: v\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"", b"0\r\n"])
        )
        body += draw(
            st.sampled_from([b""] * 6 + [b"x", b"\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"0\r\n\r\n"])
        )
    return body


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [piece for piece in pieces if piece]


class Llhttp:
    """What llhttp makes of a body."""

    def __init__(self) -> None:
        self.data = b""
        self.complete = self.broken = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(HEAD)

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.data += data

    def on_message_complete(self) -> None:
        self.complete = True

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.broken = self.broken or not self.complete


def read_plainly(pieces: list[bytes]) -> tuple[bytes, bool, bool]:
    """Data, whether it is complete, whether it is broken: with `PlainChunks` until it gives up."""
    chunks, rest, data = PlainChunks(), Llhttp(), b""
    handed_over = False
    for piece in pieces:
        if handed_over:
            rest.feed(piece)
        else:
            data += chunks.feed(piece)
            if chunks.fault:
                return data, False, True
            if chunks.rest is not None:
                handed_over = True
                rest.feed(chunks.rest)
        if rest.broken or rest.complete:
            break
    return data + rest.data, rest.complete, rest.broken


def read_by_llhttp(pieces: list[bytes]) -> tuple[bytes, bool, bool]:
    """The same by llhttp alone."""
    reader = Llhttp()
    for piece in pieces:
        reader.feed(piece)
        if reader.broken or reader.complete:
            break
    return reader.data, reader.complete, reader.broken


@given(bodies(), st.lists(st.integers(0, 400), max_size=8))
def test_it_is_as_llhttp_reads_it(body: bytes, places: list[int]):
    pieces = cut(body, places)
    assert read_plainly(pieces) == read_by_llhttp(pieces)


@given(bodies())
def test_byte_by_byte_it_is_the_same(body: bytes):
    pieces = [body[at : at + 1] for at in range(len(body))]
    assert read_plainly(pieces) == read_by_llhttp(pieces)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_whatever_comes(body: bytes, places: list[int]):
    pieces = cut(body, places)
    assert read_plainly(pieces) == read_by_llhttp(pieces)


@given(bodies(plain=True), st.lists(st.integers(0, 400), max_size=8))
def test_plain_chunks_never_need_llhttp_and_whole_ones_are_told(body: bytes, places: list[int]):
    chunks, read = PlainChunks(), b""
    for piece in cut(body, places):
        data = chunks.feed(piece)
        read += data
        assert chunks.rest is None
        assert not chunks.fault
        if chunks.whole:
            assert read_by_llhttp([piece])[0] == data
            assert not chunks.inside
    assert not chunks.inside
    assert (read, False, False) == read_by_llhttp([body])


@given(
    st.one_of(
        st.binary(max_size=80), bodies(), st.integers(1, ONE_CHUNK_BYTES + 9).map(lambda size: chunk(b"a" * size))
    )
)
def test_one_chunk_is_one_chunk(data: bytes):
    found = one_chunk(data)
    if found:
        assert chunk(found) == data
    elif len(data) < ONE_CHUNK_BYTES and data not in (b"", b"0\r\n\r\n"):
        assert chunk(read_by_llhttp([data])[0]) != data


@given(st.one_of(bodies(), bodies(plain=True), st.binary(max_size=80)), st.integers(0, 3))
def test_several_chunks_are_whole_chunks(data: bytes, more: int):
    for size in range(1, 41):
        size_of(b"%x" % size)
    found = several_chunks(data * more)
    if found:
        assert read_by_llhttp([data * more]) == (found, False, False)
        ending = read_by_llhttp([data * more, b"0\r\n\r\n"])
        assert ending == (found, True, False)


def test_sizes_are_bounded_and_strict():
    assert size_of(b"a") == size_of(b"0A") == 10
    assert size_of(b"ffffffff") == 0xFFFFFFFF
    for odd in (b"", b"0", b"00", b"1_0", b"0x1", b"+1", b" 1", b"1 ", b"1;a", b"000000001", b"g"):
        assert size_of(odd) == 0
    for number in range(2 * MAX_SIZES):
        size_of(b"%x" % number)
    assert size_of(b"12") == 18


# -- the connection ---------------------------------------------------------------------------------------------------


class Transport:
    """Takes everything, and tells whether it was closed."""

    closed = False

    def abort(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


if not compiled.in_use():  # compiled classes have no subclasses in Python

    class Heard(AnswerSink):
        """What a connection tells."""

        def __init__(self) -> None:
            self.said: list[object] = []
            self.data = self.framed = b""

        def on_head(self, head: AnswerHead, length: int | None) -> None:
            self.said.append((head.status, head.lines, length))

        def on_piece(self, piece: bytes, last: bool, framed: bytes | None = None) -> None:
            assert framed is None or read_by_llhttp([framed]) == (piece, False, False)
            self.data += piece
            if last:
                self.said.append("whole")

        def on_failed(self, kind: OutcomeKind, detail: str, stale: bool) -> None:
            self.said.append(kind)


def answers_of(pieces: list[bytes], again: int) -> list[tuple[list[object], bytes, bool]]:
    """What one connection makes of the same answer, so often: how it ends, its data, whether it may be used again."""
    loop = asyncio.new_event_loop()
    pool = UpstreamPool("w", "http://127.0.0.1:1", rest_s=0.0)
    connection = UpstreamConnection(pool, loop)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    told = []
    for _ in range(again):
        sink = Heard()
        connection.ask(sink, b"", [], bodyless=False)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)
        if "whole" not in sink.said and not transport.closed:
            connection.eof_received()
        told.append((sink.said, sink.data, not transport.closed))
        if transport.closed:
            break
    pool.close()
    loop.close()
    return told


@pytest.mark.skipif(compiled.in_use(), reason="compiled classes have no subclasses in Python")
@given(bodies(), st.lists(st.integers(0, 400), max_size=5), st.booleans())
def test_a_connection_reads_a_body_alike_the_first_and_every_other_time(body: bytes, places: list[int], apart: bool):
    known_heads._streams.clear()
    pieces = [HEAD, *cut(body, places)] if apart else cut(HEAD + body, [])
    told = answers_of(pieces, 3)
    data, complete, broken = read_by_llhttp([body])
    for said, read, _ in told:
        assert said[0] == (200, b"content-type: text/event-stream\r\n", None)
        assert said[1:] == ["whole" if complete else OutcomeKind.PROTOCOL if broken else OutcomeKind.RESET]
        assert read == data
    assert len({open_ for _, _, open_ in told}) == 1


@given(st.text("0a\r\n", max_size=30).map(str.encode), st.integers(0, 30))
def test_a_size_line_ends_where_a_search_finds_it(data: bytes, at: int):
    assert _line_end(data, at) == data.find(b"\r\n", at, at + SIZE_DIGITS + 2)
