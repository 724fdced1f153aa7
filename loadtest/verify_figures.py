"""Figures of `headrace verify`: what was promised, what was found, and whether that will do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.verify_client import LOST, Fate, Told

SHOWN: Final = 3  # of what went wrong, beside a figure


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was promised, and what was found."""

    name: str
    value: float
    target: str
    ok: bool


def none_of(name: str, count: float) -> Figure:
    """Something that must not have happened."""
    return Figure(name, count, "0", count == 0)


def every(name: str, count: int, of: int, but: Sequence[str] = ()) -> Figure:
    """Something that must hold for all of `of`, and for one at least. `but`: those for which it does not, in words."""
    target = f"all {of}" if of else "all, and at least 1"
    if but:
        target += "; not " + "; ".join([*but[:SHOWN], *(["and more"] if len(but) > SHOWN else [])])
    return Figure(name, count, target, count == of > 0)


def lost(told: Sequence[Told]) -> int:
    """Requests that ended without a word, or not at all."""
    return sum(one.fate in LOST for one in told)


def failed(told: Sequence[Told]) -> int:
    """Requests that should have been answered and were not."""
    return sum(one.fate is not Fate.ANSWERED for one in told)
