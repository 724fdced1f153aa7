"""Header fields as they are read and sent."""

from __future__ import annotations

Fields = list[tuple[bytes, bytes]]
