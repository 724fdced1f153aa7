"""The chunks of a worker's body, read here as long as they are plain: a size in a few hexadecimal digits, CRLF, the
data, CRLF. That is how engines write them, mostly one event in one chunk and one chunk in one read.

A chunk that is plain needs no parser to be told from what is not. Whatever else may stand where a chunk begins (the
last chunk, extensions, what is not well-formed) is left to llhttp, from there to the end of the answer.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

SIZE_DIGITS: Final = 8
ONE_CHUNK_BYTES: Final = 4096
"""Longer reads are looked through chunk by chunk."""
MANY_CHUNKS_BYTES: Final = 65_536
MAX_SIZES: Final = 4096
"""Sizes kept as they were spelled; all are forgotten when there are more."""

_HEX: Final = b"0123456789abcdefABCDEF"
_CRLF: Final = b"\r\n"
_NO_LINE: Final = b"-" * ONE_CHUNK_BYTES
"""Where no chunk is as long as that; longer than whatever could begin with it."""


def _size_lines() -> list[bytes]:
    """For each length of a read the size line that it begins with if it is one chunk, as engines spell it."""
    lines = [_NO_LINE] * ONE_CHUNK_BYTES
    for size in range(1, ONE_CHUNK_BYTES):
        line = b"%x\r\n" % size
        if len(line) + size + 2 < ONE_CHUNK_BYTES:
            lines[len(line) + size + 2] = line
    return lines


_SIZE_LINES: Final = _size_lines()
_sizes: Final[dict[bytes, int]] = {}


def one_chunk(data: bytes) -> bytes:
    """The data of a read that is exactly one plain chunk; nothing if it is not, or not surely."""
    length: i64 = len(data)
    if length < ONE_CHUNK_BYTES:
        line = _SIZE_LINES[length]
        if data.startswith(line) and data[length - 2] == 13 and data[length - 1] == 10:
            return data[len(line) : -2]
    return b""


def several_chunks(data: bytes) -> bytes:
    """The data of a read that is nothing but plain chunks, of sizes seen before and without CRLF in their data.

    Nothing if it is not, or not surely: this costs little where many small events came at once.
    """
    if len(data) > MANY_CHUNKS_BYTES:
        return b""
    parts = data.split(_CRLF)
    if parts.pop():  # no CRLF at its end
        return b""
    pieces = parts[1::2]
    return b"".join(pieces) if list(map(_sizes.get, parts[::2])) == list(map(len, pieces)) else b""


def size_of(line: bytes) -> int:
    """The size that a plain size line (without its CRLF) says; 0 where it is not plain, or the last chunk's."""
    size = _sizes.get(line, 0)
    if size == 0 and 0 < len(line) <= SIZE_DIGITS and not line.strip(_HEX):
        size = int(line, 16)
        if size > 0:
            if len(_sizes) >= MAX_SIZES:
                _sizes.clear()
            _sizes[line] = size
    return size


def _line_end(data: bytes, at: i64) -> int:
    """Where the CRLF of a size line is that begins there; -1: not within reach. Compiled, a fraction of what `find`
    costs before it looks at anything."""
    last: i64 = min(at + SIZE_DIGITS, len(data) - 2)
    while at <= last:
        if data[at] == 13 and data[at + 1] == 10:
            return at
        at += 1
    return -1


_COMPILED: Final = not isinstance(_line_end, FunctionType)


class PlainChunks:
    """Reads one body up to the first chunk that is not plain.

    `inside`: what was fed last ended inside a chunk or its size. `whole`: it was whole chunks, nothing else. `rest`:
    bytes that llhttp has to read, beginning where a chunk does; all that follows is for it as well. `fault`: the body
    is broken, and how.
    """

    __slots__ = ("_line", "_missing", "fault", "inside", "rest", "whole")

    def __init__(self) -> None:
        self._missing = 0  # bytes of the present chunk that have not come, its CRLF among them
        self._line = b""  # of a size line that was cut: what has come
        self.inside = False
        self.whole = True
        self.rest: bytes | None = None
        self.fault = ""

    def feed(self, data: bytes) -> bytes:
        """The data in the next bytes of the body."""
        parts: list[bytes] = []
        missing = self._missing
        begun = self.inside
        if len(self._line) != 0:
            data = self._line + data
            self._line = b""
        size, at = len(data), 0
        while at < size:
            if missing == 0:
                end = _line_end(data, at) if _COMPILED else data.find(_CRLF, at, at + SIZE_DIGITS + 2)
                if end < 0:
                    line = data[at:]
                    digits = line.removesuffix(b"\r")
                    if 0 < len(digits) <= SIZE_DIGITS and not digits.strip(_HEX):
                        self._line = line
                    else:
                        self.rest = line
                    break
                length = size_of(data[at:end])
                if length == 0:
                    self.rest = data[at:]
                    break
                at = end + 2
                missing = length + 2
            end = at + missing
            if missing > 2 and at < size:
                parts.append(data[at : end - 2])
            # As much of the CRLF as is here has to be one.
            end_line, seen = data[max(at, end - 2) : end], max(at - end + 2, 0)
            if end_line != _CRLF[seen : seen + len(end_line)]:
                self.fault = "a chunk does not end where its size says"
                break
            missing = max(end - size, 0)
            at = min(end, size)
        self._missing = missing
        self.inside = missing > 0 or len(self._line) > 0
        self.whole = not begun and not self.inside and self.rest is None and not self.fault
        return parts[0] if len(parts) == 1 else b"".join(parts)
