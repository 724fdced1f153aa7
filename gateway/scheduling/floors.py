"""Floors: the share of a pool's work that a class gets even while higher classes wait.

For each home pool and class that has tickets waiting there, `owed` grows by the class's floor times all work that is
dispatched, and shrinks by its own; a class that is owed something goes first. Work is counted as estimated when it is
sent and put right when it has ended. Nothing is owed to a class that has nothing waiting, and no more than CAP_TOKENS
to one that cannot be placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

CAP_TOKENS: Final = 65_536.0
MARGIN: Final = (
    1.1  # so much more than promised is owed: requests come whole, and their size is known only at their end
)


class Floors:
    """What classes are owed, in tokens as fairness counts them."""

    __slots__ = ("_floors", "_owed")

    def __init__(self, floors: Sequence[float]) -> None:
        self._owed: dict[tuple[str, int], float] = {}
        self.adopt(floors)

    def adopt(self, floors: Sequence[float]) -> None:
        """Take over the classes' floors, in the order of the classes."""
        self._floors = {klass: min(MARGIN * floor, 1.0) for klass, floor in enumerate(floors) if floor > 0.0}
        self._owed = {key: owed for key, owed in self._owed.items() if key[1] in self._floors}

    def dispatched(self, home: str, klass: int, tokens: float, waiting: Mapping[tuple[str, int], int]) -> None:
        """`tokens` of work of a class went to a worker; `waiting` counts the tickets by home pool and class.

        Less than 0: so much less than was counted before.
        """
        for other, floor in self._floors.items():
            key = (home, other)
            if key not in waiting:
                self._owed.pop(key, None)
                continue
            owed = self._owed.get(key, 0.0) + floor * tokens
            if other == klass:
                owed -= tokens
            self._owed[key] = max(min(owed, CAP_TOKENS), -CAP_TOKENS)

    def first(self, waiting: Mapping[tuple[str, int], int]) -> list[tuple[str, int]]:
        """Home pools and classes that go before their turn: what is owed to them, the most first."""
        if not self._owed:
            return []
        due = [(owed, key) for key, owed in self._owed.items() if owed > 0.0 and key in waiting]
        due.sort(key=lambda entry: (-entry[0], entry[1]))
        return [key for _, key in due]
