"""A chunked request body: its data, and where in the bytes it ends.

llhttp reads it, behind a head of our own, so that nothing the client's head says can change how it is read. Blanks in a
size line are refused, also where RFC 9112 §7.1.1 has bad whitespace: `docs/edge.md` says why.
"""

from __future__ import annotations

import httptools

_HEAD = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
_EMPTY_LINE = b"\r\n\r\n"
_EMPTY_LINES_MAX = 64
"""Places of one read at which the body may end. If it ends behind more of them, what follows it is lost."""

# Chunk sizes, extensions and trailers may take this much beside the data: one-byte chunks need five bytes each.
_OVERHEAD_BYTES = 16_384
_OVERHEAD_RATIO = 8


class ChunkedFault(Exception):  # noqa: N818  (the client's fault, not an error of ours)
    """These bytes are no chunked body; says why."""


class ChunkedBody:
    """Reads one body. `parts` and `size` are its data so far; `surplus`: bytes behind its end were lost."""

    __slots__ = ("_complete", "_parser", "_raw_bytes", "_seam", "parts", "size", "surplus")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.surplus = False
        self._raw_bytes = 0
        self._complete = False
        self._seam = b""  # the last three bytes of the read before
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def feed(self, data: bytes) -> bytes | None:
        """Read on; what lies behind the body when it is whole, else None. Raises `ChunkedFault`."""
        self._raw_bytes += len(data)
        feed = self._parser.feed_data
        start = 0
        try:
            # The message ends behind an empty line. llhttp does not say where, so it gets the bytes up to each.
            for end in (*self._empty_lines(data), len(data)):
                feed(data[start:end])
                start = end
                if self._complete:
                    break
        except httptools.HttpParserError as error:
            if not self._complete:
                raise ChunkedFault(f"The chunked body is not well-formed: {error}.") from None
            self.surplus = True  # the message is whole; what is wrong lies behind it
        read = self._raw_bytes - len(data) + start
        if read > _OVERHEAD_BYTES + _OVERHEAD_RATIO * self.size:
            raise ChunkedFault(
                f"The chunked body has {read} bytes for {self.size} of data; {_OVERHEAD_BYTES} and {_OVERHEAD_RATIO} "
                "for each of data are read. Send larger chunks, shorter extensions, fewer trailers."
            )
        return data[start:] if self._complete else None

    def _empty_lines(self, data: bytes) -> list[int]:
        """Where the first empty lines of `data` end; the first may have begun in the read before."""
        seam = self._seam
        ends = []
        if seam:
            at = (seam + data[:3]).find(_EMPTY_LINE)
            if at >= 0:
                ends.append(at + len(_EMPTY_LINE) - len(seam))
        at = data.find(_EMPTY_LINE)
        while at >= 0 and len(ends) < _EMPTY_LINES_MAX:
            ends.append(at + len(_EMPTY_LINE))
            at = data.find(_EMPTY_LINE, at + 2)  # they may overlap
        self._seam = data[-3:] if len(data) >= 3 else (seam + data)[-3:]
        return ends

    # -- called by llhttp -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A message begins; a second one in the same read is surplus."""
        if self._complete:
            self.surplus = True

    def on_body(self, data: bytes) -> None:
        """Data of a chunk."""
        if not self._complete:
            self.size += len(data)
            self.parts.append(data)

    def on_message_complete(self) -> None:
        """The last chunk and the trailers have been read."""
        self._complete = True
