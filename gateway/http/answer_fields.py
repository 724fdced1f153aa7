"""Header fields as they are read and sent."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = -1
"""Stands for the length of a body that is not known or not told: compiled, a number or nothing is an object."""

Fields = list[tuple[bytes, bytes]]
