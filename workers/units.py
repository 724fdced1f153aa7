"""Amounts of memory as people write them, and as they are shown."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

# K, M, G without more are powers of two, as `vllm serve --kv-cache-memory-bytes` reads them.
UNITS: Final[dict[str, int]] = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "K": KIB,
    "M": MIB,
    "G": GIB,
    "T": 1024**4,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1024**4,
}
MAX_BYTES: Final = 2**50

_AMOUNT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)")


def parse_bytes(value: object) -> int:
    """Bytes of `24GiB`, `24 GB`, `512M` or a bare number of bytes. Raises ValueError that says what is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        amount = value
    elif isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if match is None or match[2] not in UNITS:
            raise ValueError("must be an amount of memory such as 24GiB, 512MiB or a number of bytes")
        amount = round(float(match[1]) * UNITS[match[2]])
    else:
        raise ValueError("must be an amount of memory such as 24GiB, 512MiB or a number of bytes")
    if not 0 <= amount <= MAX_BYTES:
        raise ValueError(f"must be between 0 and {MAX_BYTES} bytes (1 PiB)")
    return amount


def show_bytes(amount: float) -> str:
    """`3.81 GiB`, `131,072 B`: GiB and MiB with two decimals, below 1 MiB the exact bytes."""
    for unit, size in (("GiB", GIB), ("MiB", MIB)):
        if abs(amount) >= size:
            return f"{amount / size:.2f} {unit}"
    return f"{amount:,.0f} B"
