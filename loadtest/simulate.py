"""Fleet scenarios in virtual time: recorded traffic, a split of workers, a router; many windows, one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from statistics import fmean
from typing import Final

from loadtest.baselines import RULES, BaselineRouter
from loadtest.figures import Figures
from loadtest.fleet import Fleet, Router, Trouble, WorkerPlan
from loadtest.replicas import ReplicatedRouter
from loadtest.routers import ProductionRouter
from loadtest.traces import (
    MOONCAKE_BLOCK_TOKENS,
    MOONCAKE_QUANTUM_S,
    TraceRequest,
    at_rate,
    jitter,
    load,
    merge,
    window,
)
from loadtest.true_caches import TrueCaches, longest_held
from policies.document import Policy
from policies.work import DEFAULT_PRESET, PRESETS
from workers.engines.timing import EngineConfig

PRODUCTION: Final = "headrace"
OMNISCIENT: Final = "longest_held"  # a prefix router that sees the engines' caches; for comparison only
SHORT_TENANT: Final = "chat"
LONG_TENANT: Final = "documents"

# Where windows start in the two traces, as shares of their length once brought to the scenario's rate. The first is
# for tuning; figures are taken from the others.
WINDOWS: Final = (
    *((0.0, 0.0), (0.496, 0.08), (0.496, 0.16), (0.25, 0.24), (0.37, 0.32), (0.12, 0.40), (0.496, 0.48)),
    *((0.30, 0.56), (0.43, 0.64)),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of a fleet."""

    router: str = PRODUCTION
    policy: Policy = field(default_factory=Policy)
    short_per_s: float = 16.0  # Azure conversation
    long_per_s: float = 1.6  # Mooncake conversation
    seconds: float = 600.0
    window: int = 1
    seed: int = 0
    pools: tuple[tuple[str, int], ...] = (("short-chat", 8),)  # pool -> workers
    preset: str = DEFAULT_PRESET
    belief: tuple[float, float] = (1.0, 1.0)  # the router takes c_tok, and W and c_kv, for so many times what they are
    noise: float = 0.0  # σ of the logarithm of the prompt estimate's error
    prefixes: bool = False  # Mooncake's prompts share the prefixes they were recorded with
    prefixes_known: bool | None = True  # the scheduler knows what they share; None: it sees the engines' caches
    gateways: int = 1
    gossip_s: float | None = 0.2  # how often gateways hear of each other; None: never, by engines' reports only
    classes: tuple[tuple[str, str], ...] = ()  # tenant -> class it asks for
    troubles: tuple[Trouble, ...] = ()

    def plans(self) -> list[WorkerPlan]:
        """The workers."""
        preset = PRESETS[self.preset]
        engine = EngineConfig(
            preset.step,
            preset.kv_tokens or 400_000,
            max_num_seqs=preset.max_num_seqs,
            max_num_batched_tokens=preset.max_num_batched_tokens,
            prefix_caching=self.prefixes,
            prefix_unit_tokens=MOONCAKE_BLOCK_TOKENS,
        )
        believed = self._believed_preset()
        return [
            WorkerPlan(f"{pool}-{number}", engine, pool, believed)
            for pool, count in self.pools
            for number in range(count)
        ]

    def _believed_preset(self) -> str:
        compute, memory = self.belief
        if self.belief == (1.0, 1.0):
            return self.preset
        preset = PRESETS[self.preset]
        step = preset.step
        wrong = replace(step, c_tok=step.c_tok * compute, W=step.W * memory, c_kv=step.c_kv * memory)
        # Workers name their preset in reports, so a wrong one needs a name too.
        name = f"{self.preset} believed x{compute:g}, x{memory:g}"
        PRESETS[name] = replace(preset, step=wrong, status="wrong on purpose")
        return name

    def trace(self) -> list[TraceRequest]:
        """The traffic. Recorded outputs are what the engines will produce; the router does not see them."""
        short_at, long_at = WINDOWS[self.window]
        parts = [
            _part("azure2023_conv", SHORT_TENANT, self.short_per_s, short_at, self.seconds, 0),
            _part(
                "mooncake_conversation", LONG_TENANT, self.long_per_s, long_at, self.seconds, self.seed + self.window
            ),
        ]
        trace = merge(*[part for part in parts if part])
        return trace if self.prefixes else [replace(request, hashes=()) for request in trace]

    def build_router(self) -> Router:
        """Whoever decides. Raises ValueError for a name nobody has."""
        rng = Random(self.seed * 7919 + self.window)
        if self.router == PRODUCTION:
            gateways = [
                ProductionRouter(
                    self.policy,
                    Random(rng.random()) if number else rng,
                    self.noise,
                    dict(self.classes),
                    prefixes=self.prefixes_known is not False,
                )
                for number in range(self.gateways)
            ]
            return gateways[0] if self.gateways == 1 else ReplicatedRouter(gateways, self.gossip_s, rng)
        if self.router not in RULES:
            raise ValueError(f"no router {self.router!r}; there are {', '.join([PRODUCTION, *RULES])}")
        return BaselineRouter(RULES[self.router], rng)

    def run(self) -> Figures:
        """Run it."""
        if self.router == OMNISCIENT:
            router: Router = BaselineRouter(longest_held(lambda: fleet.cores()), Random(self.seed))
        else:
            router = self.build_router()
        fleet = Fleet(self.plans(), router, self.troubles)
        if self.prefixes_known is None and isinstance(router, ProductionRouter):
            # Nothing in production can put another index in its place, so there is no door for it.
            router.scheduler._fleet.prefixes = TrueCaches(fleet.cores)
        return Figures.of(fleet.run(self.trace()))


@cache
def _loaded(name: str) -> list[TraceRequest]:
    return load(name)


def _part(name: str, tenant: str, per_s: float, start: float, seconds: float, seed: int) -> list[TraceRequest]:
    if per_s <= 0:
        return []
    recorded = _loaded(name)
    if name.startswith("mooncake"):
        recorded = jitter(recorded, MOONCAKE_QUANTUM_S, Random(seed))
    scaled = at_rate(recorded, per_s)
    cut = window(scaled, start * scaled[-1].arrival_s, seconds)
    return [replace(request, tenant=tenant) for request in cut]


def windows_of(scenario: Scenario, count: int) -> Iterator[tuple[int, Figures]]:
    """The scenario in each of the first `count` windows that tuning has not seen."""
    for number in range(1, min(count, len(WINDOWS) - 1) + 1):
        yield number, replace(scenario, window=number).run()


def mean_goodput(figures: list[Figures]) -> tuple[float, float, float]:
    """All, short, long: mean over windows, as shares."""
    return (
        fmean(each.all.goodput for each in figures),
        fmean(each.short.goodput for each in figures),
        fmean(each.long.goodput for each in figures),
    )
