"""How much memory a model takes on a device and how many requests that leaves room for. Pure arithmetic.

Blocks, groups and the two derived figures ("GPU KV cache size", "Maximum concurrency") are computed as vLLM 0.32 does
in `kv_cache_utils.py`. The log's "tokens" are derived from the longest request, not measured, so for models whose
layers differ one must not divide bytes by them: what a request costs has two parts, one fixed and one for each token,
and both are given here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor, sqrt
from typing import Final

from workers.model_shape import Attention, ModelError, ModelShape, State
from workers.units import GIB, show_bytes

DEFAULT_BLOCK_SIZE: Final = 16
DEFAULT_BATCHED_TOKENS: Final = 2048
DEFAULT_MAX_SEQS: Final = 256
MAX_SEQS: Final = 1 << 20

# The null block that vLLM keeps for itself.
HELD_BACK: Final = 1
# Two types of layers whose counts differ by less are grouped by the larger one.
NEARLY_EQUAL: Final = 1.5
# An attention block is a multiple of this where it has to be as large as a state (FlashAttention's alignment).
STATE_ALIGNMENT: Final = 16

# Estimate where no engine has measured: implied by public logs of vLLM 0.19 and before within 0.35 GiB.
RUNTIME_BYTES: Final = GIB
PARALLEL_BYTES: Final = GIB // 10  # buffers for communication, where there is more than one device
# vLLM deducts its CUDA graphs from the KV cache since 0.21; between 0.2 and 1.5 GiB were seen.
GRAPH_BYTES: Final = GIB // 2

Z_99: Final = 2.33  # a normal variable stays below mean + 2.33 σ in 99 of 100 cases


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share block numbers. `most_tokens`: a request never keeps more than these; None: all it has.

    `fixed_blocks`: what a request has from its first token on, whatever its length (states of Mamba layers).
    """

    kind: str
    layers: int
    padding: int  # of the layers, added to make groups equal: memory that nothing uses
    block_size: int
    most_tokens: int | None = None
    fixed_blocks: int = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks of a request of `tokens`."""
        if self.fixed_blocks:
            return self.fixed_blocks
        if self.most_tokens is None:
            return -(-tokens // self.block_size)
        # One more than the window: it slides inside of blocks.
        return -(-min(self.most_tokens, tokens) // self.block_size) + 1


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How one device keeps the KV of one model: groups that draw blocks of the same size from one pool."""

    groups: tuple[KvGroup, ...]
    block_size: int
    bytes_per_block: int

    def blocks_for(self, tokens: int) -> int:
        """Blocks of a request of `tokens`, over all groups."""
        return sum(group.blocks_for(tokens) for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """What each further token of a long request costs: only groups without a bound grow."""
        growing = sum(group.most_tokens is None and not group.fixed_blocks for group in self.groups)
        return growing * self.bytes_per_block // self.block_size

    @property
    def fixed_bytes_per_request(self) -> int:
        """What a request costs beyond its tokens once it is longer than every window: full windows and states."""
        bounded = [group for group in self.groups if group.most_tokens is not None or group.fixed_blocks]
        return self.bytes_per_block * sum(group.blocks_for(group.most_tokens or 1) for group in bounded)

    @property
    def padding_share(self) -> float:
        """Share of the pool that pads groups to equal size."""
        layers = sum(group.layers + group.padding for group in self.groups)
        return sum(group.padding for group in self.groups) / layers


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What an engine is started with, as far as memory goes."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    block_size: int = DEFAULT_BLOCK_SIZE
    kv_value_bytes: int = 2
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    max_num_seqs: int = DEFAULT_MAX_SEQS
    graphs: bool = True
    draft_layers: int = 0  # of a draft model that keeps KV beside the model's own: 1 for EAGLE


def kv_layout(model: ModelShape, engine: EngineShape) -> KvLayout:
    """The layout on each device. Raises ModelError where heads cannot be spread over the devices."""
    kinds = _kinds(model, engine)
    if not kinds:
        raise ModelError(f"{model.name}: no layer keeps anything for a request: this is no model that generates")
    states = [one for one in kinds if isinstance(one[0], State)]
    tokens_bytes = max((one[2] for one in kinds if not isinstance(one[0], State)), default=0)
    block_size = engine.block_size
    state_bytes = max((one[2] for one in states), default=0)
    if state_bytes and tokens_bytes:
        # Pages must be equal: the attention block grows until it is as large as a state.
        unit = STATE_ALIGNMENT * tokens_bytes
        block_size = max(block_size, STATE_ALIGNMENT * -(-state_bytes // unit))
    page = max(tokens_bytes * block_size, state_bytes)
    counts = [one[1] for one in kinds]
    size = min(counts)
    if max(counts) < size * NEARLY_EQUAL:
        size = max(counts)
    groups: list[KvGroup] = []
    for layer, count, _ in kinds:
        for start in range(0, count, size):
            layers = min(size, count - start)
            groups.append(_kv_group(layer, layers, size - layers, block_size, engine))
    return KvLayout(tuple(groups), block_size, page * size)


def _kinds(model: ModelShape, engine: EngineShape) -> list[tuple[object, int, int]]:
    """(layers, how many of them on one device, bytes of one layer for a token or, of states, for a request)."""
    found: list[tuple[object, int, int]] = []
    for group in model.layers:
        # Stages get as equal a number of layers as possible; the largest decides.
        count = -(-group.layers // engine.pipeline_parallel)
        if isinstance(group, State):
            found.append((group, count, group.page_bytes(engine.tensor_parallel, model.value_bytes)))
            continue
        own = group.values_per_token(engine.tensor_parallel) * engine.kv_value_bytes
        extra = engine.draft_layers if group.window is None else 0
        found.append((group, count + extra, own))
    return found


def _kv_group(layer: object, layers: int, padding: int, block_size: int, engine: EngineShape) -> KvGroup:
    if isinstance(layer, State):
        return KvGroup("state", layers, padding, block_size, fixed_blocks=1)
    window = layer.window if isinstance(layer, Attention) else None
    if window is None:
        return KvGroup("full", layers, padding, block_size)
    return KvGroup("window", layers, padding, block_size, most_tokens=window - 1 + engine.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits into the KV memory of an instance. Tokens and blocks are of the whole instance, not of one device."""

    layout: KvLayout
    kv_bytes: int
    num_blocks: int
    max_model_len: int

    @property
    def max_concurrency(self) -> float:
        """ "Maximum concurrency" of the log: requests of the greatest length."""
        return self.num_blocks / self.layout.blocks_for(self.max_model_len)

    @property
    def kv_tokens(self) -> int:
        """ "GPU KV cache size" of the log: derived from the greatest length."""
        return int(self.max_concurrency * self.max_model_len)

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get."""
        return max(0, self.num_blocks - HELD_BACK)

    @property
    def guaranteed(self) -> int:
        """Requests that fit whatever they ask for: each of the greatest length."""
        return self.usable_blocks // self.layout.blocks_for(self.max_model_len)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits alone; 0: none does."""
        low, high = 0, self.usable_blocks * self.layout.block_size
        while low < high:
            middle = (low + high + 1) // 2
            if self.layout.blocks_for(middle) <= self.usable_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def fits(self) -> bool:
        """Whether a request of the greatest length can run at all."""
        return self.guaranteed >= 1


def capacity(layout: KvLayout, kv_bytes: int, max_model_len: int) -> Capacity:
    """What `kv_bytes` on each device hold. With several devices, the least of theirs: all take the minimum."""
    return Capacity(layout, kv_bytes, max(0, kv_bytes) // layout.bytes_per_block, max_model_len)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Memory of one device beside weights and KV, in bytes. An estimate: ±0.35 GiB without the graphs."""

    runtime: int
    activations: int
    graphs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.runtime + self.activations + self.graphs


def overhead(model: ModelShape, engine: EngineShape) -> Overhead:
    """1 GiB and the widest intermediate results of a full step, buffers between devices, CUDA graphs."""
    widest = 2 * model.intermediate // engine.tensor_parallel + model.hidden // 2
    activations = model.value_bytes * engine.max_num_batched_tokens * widest
    parallel = PARALLEL_BYTES if engine.tensor_parallel * engine.pipeline_parallel > 1 else 0
    return Overhead(RUNTIME_BYTES + parallel, activations, GRAPH_BYTES if engine.graphs else 0)


def weights_bytes(model: ModelShape, engine: EngineShape) -> int:
    """Weights on one device: matrices and embeddings dealt out, norms on each; as stored, where files were read."""
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    if model.stored_bytes is not None:
        return -(-model.stored_bytes // ranks)
    each = model.quantization.bytes_per_parameter if model.quantization is not None else model.value_bytes
    dealt = model.matrix_parameters * each + model.embedding_parameters * model.value_bytes
    whole = model.replicated_parameters * model.value_bytes / engine.pipeline_parallel
    return round(dealt / ranks + whole)


@dataclass(frozen=True, slots=True)
class Budget:
    """One device's memory as one instance divides it, in bytes."""

    granted: int
    weights: int
    overhead: Overhead

    @property
    def kv(self) -> int:
        """What is left for KV; negative: it does not fit."""
        return self.granted - self.weights - self.overhead.total


def budget(model: ModelShape, engine: EngineShape, device_bytes: int, share: float) -> Budget:
    """What `share` of a device leaves after weights and overhead."""
    return Budget(floor(device_bytes * share), weights_bytes(model, engine), overhead(model, engine))


@dataclass(frozen=True, slots=True)
class Residency:
    """Tokens that a request has in the cache, averaged over the time it is there: mean and standard deviation.

    Long answers stay longer, so this is not the mean over requests.
    """

    mean: float
    deviation: float


def residency(lengths: Iterable[tuple[int, int]]) -> Residency:
    """From (prompt, output) tokens of requests: E[O(I+O/2)]/E[O] and the like for the square."""
    time = first = second = 0.0
    for prompt, output in lengths:
        time += output
        first += output * (prompt + output / 2)
        second += output * (prompt * prompt + prompt * output + output * output / 3)
    if time == 0:
        raise ValueError("lengths: no request has output, so nothing stays in the cache")
    mean = first / time
    return Residency(mean, sqrt(max(0.0, second / time - mean * mean)))


def held_bytes(layout: KvLayout, held: Residency) -> Residency:
    """The same in bytes: what grows, what is fixed, and the half block that the last one is empty on average.

    A request shorter than a window is counted with the whole window, so the estimate is on the safe side.
    """
    fixed = layout.fixed_bytes_per_request + layout.block_size * layout.bytes_per_token / 2
    return Residency(held.mean * layout.bytes_per_token + fixed, held.deviation * layout.bytes_per_token)


def kv_concurrency(room: float, held: Residency, z: float = Z_99) -> int:
    """The largest N with N·m + z·s·√N ≤ C, all in the same unit: requests that fit but for one moment in a hundred."""
    if held.mean <= 0:
        return MAX_SEQS
    spread = z * held.deviation
    root = (sqrt(spread * spread + 4 * held.mean * max(0.0, room)) - spread) / (2 * held.mean)
    return min(MAX_SEQS, floor(root * root + 1e-9))


def step_concurrency(step_s: Callable[[int], float], tpot_s: float, most: int = MAX_SEQS) -> int:
    """The largest N ≤ `most` with `step_s(N)` ≤ `tpot_s`; `step_s` must not fall. 0: not even one."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if step_s(middle) <= tpot_s:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests run well at once, and what holds them back."""

    max_num_seqs: int
    by_kv: int
    by_step: int
    guaranteed: int

    @property
    def true(self) -> int:
        """The least of the three."""
        return min(self.max_num_seqs, self.by_kv, self.by_step)

    @property
    def bound(self) -> str:
        """Which of the three it is."""
        named = {"max_num_seqs": self.max_num_seqs, "KV memory": self.by_kv, "step time": self.by_step}
        return min(named, key=lambda name: named[name])


def explain_shortage(room: Capacity) -> str:
    """Why the greatest length does not fit, and the largest that does."""
    need = room.layout.blocks_for(room.max_model_len) * room.layout.bytes_per_block
    return (
        f"a request of {room.max_model_len} tokens needs {show_bytes(need)} of KV,"
        f" {show_bytes(room.kv_bytes)} are there; the largest that fits is {room.longest}"
    )
