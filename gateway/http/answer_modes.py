"""How the answer of an attempt is being read. Plain numbers: they are compared with each piece of a stream."""

from __future__ import annotations

from typing import Final

WAITING: Final = 0  # for its head
ERROR: Final = 1  # a status of 400 and more: held, then passed on or taken for a failure
WHOLE: Final = 2  # held to its end
FIRST: Final = 3  # a stream, held until its first event
EVENTS: Final = 4  # a stream whose events are watched while they pass
RAW: Final = 5  # relayed as it comes
OVER: Final = 6  # ended, or there as a whole
