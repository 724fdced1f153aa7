"""The simulated engine's KV memory: counted blocks, and a prefix cache of hashed ones with LRU eviction.

Blocks have no numbers here, only two kinds: *private* ones, which are merely counted, and *cached units*, runs of
`unit_blocks` blocks that hold a known piece of a prompt and may be shared. A cached unit that no sequence references
is idle: it counts as free and is evicted, oldest first, when there are no blank blocks left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice


class BlockPool:
    """KV blocks of one engine. One block of `num_blocks` is the null block, as at vLLM, and never handed out."""

    __slots__ = ("_idle", "_refs", "capacity", "unit_blocks", "used")

    def __init__(self, num_blocks: int, unit_blocks: int = 1) -> None:
        if num_blocks < 2 or unit_blocks < 1:
            raise ValueError(f"needs at least 2 blocks and 1 block a unit, got {num_blocks} and {unit_blocks}")
        self.capacity = num_blocks - 1
        self.unit_blocks = unit_blocks
        self.used = 0  # blocks that a sequence references
        self._refs: dict[int, int] = {}  # hash of a referenced unit -> sequences that hold it
        self._idle: dict[int, None] = {}  # hashes of idle units, least recently used first

    @property
    def free(self) -> int:
        """Blocks that can be taken, idle cached ones included."""
        return self.capacity - self.used

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 … 1: vLLM's `kv_cache_usage_perc`."""
        return self.used / self.capacity

    @property
    def cached_units(self) -> int:
        """Units that the prefix cache knows, referenced or idle."""
        return len(self._refs) + len(self._idle)

    def take(self, blocks: int) -> None:
        """Hand out `blocks` private blocks; idle units give way. Precondition: `blocks <= free`."""
        self.used += blocks
        excess = self.used + len(self._idle) * self.unit_blocks - self.capacity
        if excess > 0:
            for unit in list(islice(self._idle, -(-excess // self.unit_blocks))):
                del self._idle[unit]

    def give(self, blocks: int) -> None:
        """Take `blocks` private blocks back."""
        self.used -= blocks

    def match(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """How many of the first `limit` units are cached without a gap, and how many of those are idle."""
        refs, idle = self._refs, self._idle
        found = idle_found = 0
        for unit in islice(hashes, limit):
            if unit in idle:
                idle_found += 1
            elif unit not in refs:
                break
            found += 1
        return found, idle_found

    def adopt(self, units: Iterable[int]) -> None:
        """Reference units that `match` has found."""
        refs, idle = self._refs, self._idle
        for unit in units:
            if unit in refs:
                refs[unit] += 1
            else:
                del idle[unit]
                refs[unit] = 1
                self.used += self.unit_blocks

    def publish(self, unit: int) -> bool:
        """Let a unit's worth of private blocks become a cached unit; False if that content is cached already.

        On True the caller references the unit and no longer owns those blocks privately.
        """
        if unit in self._refs:
            return False
        if unit in self._idle:
            # The same content in an idle copy: ours is the newer one, the idle copy's blocks become blank.
            del self._idle[unit]
        self._refs[unit] = 1
        return True

    def release(self, units: Sequence[int]) -> None:
        """Drop one reference to each unit. A prompt's tail is evicted before its head, which others may share."""
        refs = self._refs
        for unit in reversed(units):
            left = refs[unit] - 1
            if left:
                refs[unit] = left
            else:
                del refs[unit]
                self._idle[unit] = None
                self.used -= self.unit_blocks
