"""Large bodies are read to where they stay: no piece is copied out of the loop's buffer, and none joined to others.

What is read to is the memory of the `bytes` that the body will be. `BytesIO` lends it for writing and hands it out
uncopied once it is full and nobody writes there any more. The loop gives what it was lent back only after it has told
of the bytes, so a body's last byte is read apart.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import TYPE_CHECKING, Final

from gateway.long_bytes import blank

if TYPE_CHECKING:
    from .connection import ClientConnection

LARGE_BYTES: Final = 65_536
"""So much of a body is missing: changing how a connection is read takes some calls."""

FIRST_BYTES: Final = 65_536
AHEAD: Final = 64
AHEAD_BYTES: Final = 1 << 20
"""Room is made for so many times what has come, up to so much, and then for twice: who declares a large body and sends
none takes no memory for it."""

ANYWHERE_BYTES: Final = 16_384
"""A head and what came with it: of a large body the less the better, because it is copied."""


class LargeBody:
    """A body of known length that is being read. `got` of its bytes are there."""

    __slots__ = ("_memory", "_view", "got", "length")

    def __init__(self, parts: list[bytes], missing: int) -> None:
        self.got = 0
        for part in parts:
            self.got += len(part)
        self.length = self.got + missing
        self._make_room()
        at = 0
        for part in parts:
            end = at + len(part)
            self._view[at:end] = part
            at = end

    def _make_room(self) -> None:
        got = self.got
        size = max(2 * got, min(AHEAD * got, AHEAD_BYTES), FIRST_BYTES)
        self._memory = BytesIO(blank(size if size < self.length - 1 else self.length))
        self._view = self._memory.getbuffer()

    def room(self) -> memoryview | None:
        """Where to read the next bytes to; None: only the last byte is missing."""
        got = self.got
        if got == self.length - 1:
            return None
        if got == len(self._view):
            before = self._view
            self._make_room()
            self._view[:got] = before
        return self._view[got : self.length - 1]

    def whole(self, last: bytes) -> bytes:
        """The body, with its last byte."""
        self._view[self.got :] = last
        self._view.release()
        return self._memory.getvalue()


_anywhere: Final = memoryview(bytearray(ANYWHERE_BYTES))
"""What is read to it has been copied before the loop reads again, for whichever connection."""


def read_in_place(connection: ClientConnection, transport: asyncio.Transport) -> None:
    """From now on the connection's large bodies are read to where they stay; not what TLS has to decrypt."""
    if transport.get_extra_info("ssl_object") is None:
        transport.pause_reading()
        transport.set_protocol(InPlace(connection))
        transport.resume_reading()


class InPlace(asyncio.BufferedProtocol):
    """Stands between the loop and a connection that has sent a large body: the next one may be read in place."""

    __slots__ = ("_connection", "_placed")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._placed = False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: D102
        room = self._connection.room()
        self._placed = room is not None
        return _anywhere if room is None else room

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102
        if self._placed:
            self._connection.put(nbytes)
        else:
            self._connection.data_received(bytes(_anywhere[:nbytes]))

    def eof_received(self) -> bool:  # noqa: D102
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102
        self._connection.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        self._connection.resume_writing()
