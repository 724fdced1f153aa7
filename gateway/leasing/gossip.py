"""What gateways tell each other of their ledgers, and what it adds up to. Pure.

A ledger's text has `worker count prefill_ms decode_ms kv_tokens` for every worker with something booked, joined by `;`.
What cannot be read is left out: a wrong number must not steer traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp
from typing import Final

from gateway.scheduling.model import Others
from gateway.scheduling.shares import TENANT, Load

FRESH_S: Final = 1.0  # up to this age a ledger counts in full
FADE_S: Final = 2.0  # then it fades by e in this time
GONE_S: Final = 10.0  # an older one counts nothing
MAX_BYTES: Final = 256 * 1024
MAX_NUMBER: Final = 10**12
EMPTY: Final = "-"


def write_ledger(loads: Iterable[Load]) -> str:
    """Our ledger. Never empty: to have nothing is something to say. What exceeds `MAX_BYTES` is left out."""
    parts = []
    size = 0
    for load in loads:
        if not load.used or load.id.startswith(TENANT):
            continue
        part = f"{load.id} {load.used} {round(load.prefill_s * 1000)} {round(load.decode_s * 1000)} {load.kv_tokens:d}"
        size += len(part) + 1
        if size > MAX_BYTES:
            break
        parts.append(part)
    return ";".join(parts) or EMPTY


def merge(ledgers: Mapping[str, tuple[float, str]]) -> dict[str, Others]:
    """What other gateways have on each worker: their ledgers, each weighed by how long it has been silent."""
    found: dict[str, list[float]] = {}
    for age, text in ledgers.values():
        if age >= GONE_S or len(text) > MAX_BYTES or text == EMPTY:
            continue
        weight = 1.0 if age <= FRESH_S else exp(-(age - FRESH_S) / FADE_S)
        for part in text.split(";"):
            fields = part.split(" ")
            numbers = fields[1:]
            if len(numbers) != 4 or not all(n.isascii() and n.isdigit() and int(n) <= MAX_NUMBER for n in numbers):
                continue
            sums = found.setdefault(fields[0], [0.0, 0.0, 0.0, 0.0])
            for at, number in enumerate(numbers):
                sums[at] += weight * int(number)
    return {
        worker: Others(count, prefill_ms / 1000, decode_ms / 1000, kv)
        for worker, (count, prefill_ms, decode_ms, kv) in found.items()
    }
