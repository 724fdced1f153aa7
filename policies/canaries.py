"""Which of a model's requests are a canary's: a share of its sessions, the same ones at every gateway and every time.

Each canary pool looks at a session by a hash of its own. So a weight that changes by some share moves about that share
of the sessions and leaves the others where they are, those of other canaries too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from policies.sections import Canary

ROUNDING = 1e-9
"""What a sum of weights may be off by and still be 1."""


def place_of(salt: str, key: str) -> float:
    """Where a key falls, from 0 to just below 1: the same everywhere, and unrelated for another salt."""
    hashed = hashlib.blake2b(f"{salt}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(hashed) >> 11) / 2**53


class Canaries:
    """The canaries of one model, ready to be asked about requests.

    They are asked in the document's order. One takes those of the requests left to it whose place lies below
    weight / (1 - weights before it), which makes its weight its share of all.
    """

    __slots__ = ("_bounds",)

    def __init__(self, canaries: Iterable[Canary]) -> None:
        bounds = []
        left = 1.0
        for one in canaries:
            if left <= ROUNDING:
                break
            bound = 1.0 if one.weight >= left - ROUNDING else one.weight / left
            bounds.append((one, bound))
            left -= one.weight
        self._bounds = tuple(bounds)

    def choose(self, key: str, place: Callable[[str, str], float] = place_of) -> Canary | None:
        """The canary that takes the request with this key (its session, or itself); None: it goes its usual way."""
        for one, bound in self._bounds:
            if place(one.pool, key) < bound:
                return one
        return None


def way(
    canary: str, may_borrow: Iterable[str], usual: tuple[str, ...], allowed: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pools of a canary's request, and those for want of all of them.

    What the canary may borrow from, else the usual pools, stand by: a canary that is full or broken costs no request.
    """
    borrowed = tuple(pool for pool in may_borrow if pool in allowed) or usual
    pools = (canary, *(pool for pool in borrowed if pool != canary))
    return pools, tuple(pool for pool in allowed if pool not in pools)
