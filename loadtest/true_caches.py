"""What a router would know that sees into every engine's prefix cache, and two that use it.

`TrueCaches` in place of the scheduler's index is the scheduler with perfect knowledge: it still weighs load against
hits. `longest_held` weighs nothing: whatever a worker holds of a prompt decides, and load only where none holds any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from gateway.scheduling.prefixes import PrefixIndex
from loadtest.baselines import Load, Rule
from loadtest.fleet import Job
from loadtest.traces import MOONCAKE_BLOCK_TOKENS
from workers.engines.timing import EngineCore

Cores = Callable[[], Mapping[str, EngineCore]]

SHARED_BLOCKS: Final = 1
"""Blocks at the start of a prompt that say nothing: nearly all of Mooncake's begin with the same one."""

PATIENCE_S: Final = 3.0
"""As long as a prefix router may wait for a holder without costing goodput: on the tuning windows 3 s keep 99.89 % of
Mooncake's requests good where knowing nothing of prefixes keeps 99.88 %; 5 s keep 99.75 %, waiting for ever 99.1 %."""


class TrueCaches(PrefixIndex):
    """In place of the index: what the engines have at the moment of the decision."""

    def __init__(self, cores: Cores) -> None:
        super().__init__()
        self._cores = cores

    def cached(self, hashes: Sequence[int], ends: Sequence[int], most: int) -> dict[str, int]:
        """Tokens of a prompt that each worker would find, `most` at the most; workers without are left out."""
        return {
            worker: MOONCAKE_BLOCK_TOKENS * found
            for worker, core in self._cores().items()
            if (found := core.pool.match(hashes, most // MOONCAKE_BLOCK_TOKENS)[0])
        }


def longest_held(cores: Cores, patience_s: float = PATIENCE_S) -> Rule:
    """The rule of an omniscient prefix router: to the worker that really holds most of the prompt.

    Unless that has over `patience_s` more to do than the one with the least outstanding work, to which goes whatever
    nobody holds more of than the block that all share.
    """

    def rule(loads: list[Load], job: Job, rng: Random) -> Load:
        most = (job.trace.prompt_tokens - 1) // MOONCAKE_BLOCK_TOKENS
        engines = cores()
        held = {load.id: engines[load.id].pool.match(job.trace.hashes, most)[0] for load in loads}
        bar = min(load.seconds for load in loads) + patience_s

        def order(load: Load) -> tuple[int, float, float]:
            follows = held[load.id] > SHARED_BLOCKS and load.seconds <= bar
            return -held[load.id] if follows else 0, load.seconds, rng.random()

        return min(loads, key=order)

    return rule
