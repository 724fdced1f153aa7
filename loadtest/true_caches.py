"""What a router would know that sees into every engine's prefix cache: the upper bound for the scheduler's index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.scheduling.prefixes import PrefixIndex
from loadtest.traces import MOONCAKE_BLOCK_TOKENS
from workers.engines.timing import EngineCore


class TrueCaches(PrefixIndex):
    """In place of the index: what the engines have at the moment of the decision."""

    def __init__(self, cores: Callable[[], Mapping[str, EngineCore]]) -> None:
        super().__init__()
        self._cores = cores

    def cached(self, hashes: Sequence[int], ends: Sequence[int], most: int) -> dict[str, int]:
        """Tokens of a prompt that each worker would find, `most` at the most; workers without are left out."""
        return {
            worker: MOONCAKE_BLOCK_TOKENS * found
            for worker, core in self._cores().items()
            if (found := core.pool.match(hashes, most // MOONCAKE_BLOCK_TOKENS)[0])
        }
