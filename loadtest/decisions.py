"""What a decision costs: the production scheduler alone, in seconds of its own processor time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.scheduling.model import Effect, Lease, Outcome, OutcomeKind, Request, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy, policy_from_mapping

MODEL: Final = "m"
PROMPTS: Final = (100, 300, 900, 2000, 5000)
LONG: Final = 3500
TENANTS: Final = 10
OK: Final = Outcome(OutcomeKind.OK, 200, None, None, 128)
BATCH: Final = 50  # the clock is read once for so many: reading it costs as much as a part of a decision
GC_THRESHOLD: Final = 50_000  # as in the gateway's own process


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """Whole lives of requests. `arriving_s`: their submission; `ending_s`: first token, end, and who goes next."""

    workers: int
    waiting: int
    lives: int
    dispatches: int
    arriving_s: float
    ending_s: float

    @property
    def dispatches_per_s(self) -> float:
        """Dispatches a second of the processor time that is spent when a request ends and the next one goes."""
        return self.dispatches / self.ending_s

    @property
    def life_s(self) -> float:
        """Processor time of one request from its arrival to its end."""
        return (self.arriving_s + self.ending_s) / self.lives


def busy(workers: int, waiting: int, lives: int, places: int = 16, seed: int = 1) -> DecisionCost:
    """All places taken and so many requests waiting: each one that ends lets the next one go, and a new one comes."""
    return _measure(workers, waiting, lives, places, seed, full=True)


def idle(workers: int, lives: int, each: int = 10, seed: int = 1) -> DecisionCost:
    """Nobody waits, every worker can take the next request: so many run on each."""
    return _measure(workers, 0, lives, each, seed, full=False)


def best_of(times: int, measure: Callable[[], DecisionCost]) -> DecisionCost:
    """The least of several measurements: whatever else the machine does only adds."""
    return min((measure() for _ in range(times)), key=lambda cost: cost.life_s)


def _policy() -> Policy:
    return policy_from_mapping(
        {
            "admission": {"max_queued": 1_000_000, "max_queued_bytes": 1 << 40},
            "health": {"slow_start_s": 0.0},
        }
    )


def _request(number: int, rng: Random) -> Request:
    prompt = rng.choice(PROMPTS)
    pools = ("long-context", "short-chat") if prompt > LONG else ("short-chat", "long-context")
    tenant = f"t{rng.randrange(TENANTS)}"
    return Request(str(number), tenant, 1, MODEL, pools, prompt, 512, queue_timeout_s=1e6, body_bytes=4 * prompt)


def _measure(workers: int, waiting: int, lives: int, places: int, seed: int, *, full: bool) -> DecisionCost:
    rng = Random(seed)
    scheduler = Scheduler(_policy(), rng)
    for number in range(workers):
        pool = "short-chat" if number % 4 else "long-context"
        seqs = places if full else 16 * places
        spec = WorkerSpec(f"w{number}", pool, frozenset({MODEL}), 32_768, seqs, 60_000 * places)
        scheduler.observe(spec, None, 0.0)
    running: list[Lease] = []

    def take(effects: list[Effect]) -> int:
        before = len(running)
        running.extend([effect for effect in effects if isinstance(effect, Lease)])
        return len(running) - before

    for number in range(workers * places + waiting):
        take(scheduler.submit(_request(number, rng), None, 0.0)[1])
    coming = [_request(number, rng) for number in range(lives)]
    picks = [rng.random() for _ in range(lives)]
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *threshold[1:])
    try:
        now, dispatches, ending_s = 0.0, 0, 0.0
        began = time.process_time()
        size = min(BATCH, max(len(running) // 4, 1))
        for first in range(0, lives, size):
            batch = range(first, min(first + size, lives))
            ends = time.process_time()
            for number in batch:
                now += 0.001 if full else 0.05
                place = int(picks[number] * len(running))
                lease = running[place]
                running[place] = running[-1]
                running.pop()
                if effects := scheduler.first_token(lease, now):
                    dispatches += take(effects)
                if effects := scheduler.settle(lease, OK, now):
                    dispatches += take(effects)
            ending_s += time.process_time() - ends
            for number in batch:
                _, effects = scheduler.submit(coming[number], None, now)
                if effects:
                    take(effects)
        arriving_s = time.process_time() - began - ending_s
    finally:
        gc.set_threshold(*threshold)
        if not frozen:
            gc.unfreeze()
    return DecisionCost(workers, waiting, lives, dispatches, arriving_s, ending_s)
