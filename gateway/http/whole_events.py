"""Keeps a stream's unfinished event back until it is whole, so that an error event may follow whole ones only."""

from __future__ import annotations

HOLD_EVENT_BYTES = 65_536
"""What is kept of one unfinished event. Longer ones go out in pieces as they come."""
HOLD_BYTES = 262_144
"""What is held of one answer before it must go out."""
ERROR_BODY_BYTES = 65_536
"""The same of an answer that says what went wrong."""


class WholeEvents:
    """What of a stream may go out now. The bytes stay as they are and in order.

    `torn`: part of an unfinished event went out because it was too long to keep; nothing may be put behind it.
    `failed`: the stream is no success even if it ends like one; only a subclass can know.
    """

    __slots__ = ("_bytes", "_kept", "torn")

    failed = False

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._bytes = 0
        self.torn = False

    @property
    def empty(self) -> bool:
        """Nothing is kept and nothing is torn: whole pieces need not come by here."""
        return not self._kept and not self.torn

    def take(self, piece: bytes, boundary: int, *, unfinished: bool) -> bytes:
        """The bytes that may go out now that `piece` has come; its last whole event ends at `boundary`."""
        if not unfinished:
            self.torn = False
            return self._out(piece)
        if boundary:
            self.torn = False
            ready = self._out(piece[:boundary])
            rest = piece[boundary:]
            if len(rest) <= HOLD_EVENT_BYTES:
                self._kept = [rest]
                self._bytes = len(rest)
                return ready
            self.torn = True
            return ready + rest
        if self.torn:
            return piece
        if self._bytes + len(piece) > HOLD_EVENT_BYTES:
            self.torn = True
            return self._out(piece)
        self._kept.append(piece)
        self._bytes += len(piece)
        return b""

    def rest(self) -> bytes:
        """What is still kept, given out."""
        return self._out(b"")

    def _out(self, piece: bytes) -> bytes:
        if not self._kept:
            return piece
        data = b"".join((*self._kept, piece))
        self._kept = []
        self._bytes = 0
        return data
