"""Cards by name, and how long a step of a model takes on them by the roofline: for planning without the card.

`W = weights/(η_w·bandwidth)`, `c_tok = 2·parameters/(η_c·FLOPs)`, `c_kv = KV bytes/(η_kv·bandwidth)`,
`c_pair = 4·heads·head_dim·layers/(η_a·FLOPs)`, each per device. Efficiencies η were measured with GEMM and attention
kernels (vidur, LLMServingSim) on the cards marked so, and taken from a relative elsewhere. Bandwidth and FLOPs (dense,
16 bits) are the makers' data sheets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2
from typing import Final

from workers.capacity import EngineShape, kv_layout, weights_bytes
from workers.model_shape import Attention, Latent, ModelShape
from workers.units import GIB

STEP_S: Final = 0.0015  # fixed part of a step on one device; as much again for each doubling of devices
SEQUENCE_S: Final = 2.5e-5  # for each sequence in a step
PCIE_BYTES_PER_S: Final = 12e9  # of an all-reduce, effective


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of device."""

    name: str
    memory_bytes: int  # as the driver reports it, less than what is printed on the box
    bytes_per_s: float
    flops: float
    weights: float = 0.77  # η_w
    compute: float = 0.70  # η_c
    attention: float = 0.55  # η_a
    kv: float = 0.85  # η_kv
    link_bytes_per_s: float = PCIE_BYTES_PER_S  # of an all-reduce between such cards, effective
    measured: bool = False


CARDS: Final[dict[str, Card]] = {
    card.name: card
    for card in (
        Card("h100", int(79.2 * GIB), 3.35e12, 989e12, 0.70, 0.62, 0.50, link_bytes_per_s=260e9, measured=True),
        Card("h200", int(140.4 * GIB), 4.8e12, 989e12, 0.70, 0.62, 0.50, link_bytes_per_s=260e9),
        Card("h20", int(95.1 * GIB), 4.0e12, 148e12, 0.70, 0.62, 0.50, link_bytes_per_s=260e9),
        Card("b200", int(178.4 * GIB), 8.0e12, 2250e12, 0.70, 0.62, 0.50, link_bytes_per_s=400e9),
        Card("a100-80", int(79.2 * GIB), 2.039e12, 312e12, 0.70, 0.67, 0.55, link_bytes_per_s=112e9, measured=True),
        Card("a100-40", int(39.4 * GIB), 1.555e12, 312e12, 0.70, 0.67, 0.55, link_bytes_per_s=112e9),
        Card("rtx4090", 25_250_627_584, 1.008e12, 165e12, 0.91, 0.97, 0.85, 0.95, measured=True),
        Card("rtx-pro-6000", int(94.97 * GIB), 1.792e12, 503e12, 0.77, 0.79, 0.57, measured=True),
        Card("rtx3090", int(23.58 * GIB), 0.936e12, 71e12, 0.77, 0.85),
        Card("a6000", int(47.5 * GIB), 0.768e12, 155e12, 0.85, 0.63),
        Card("l40s", int(44.5 * GIB), 0.864e12, 362e12, 0.77, 0.70),
        Card("l4", int(22.0 * GIB), 0.300e12, 121e12, 0.86, 0.73),
        Card("a10", int(22.1 * GIB), 0.600e12, 125e12, 0.86, 0.73),
        Card("t4", int(14.6 * GIB), 0.320e12, 65e12, 0.77, 0.60),
        Card("mi300x", int(191.5 * GIB), 5.3e12, 1307e12, 0.70, 0.50, link_bytes_per_s=200e9),
        Card("ascend-910b3", 64 * GIB, 1.6e12, 313e12, 0.70, 0.60, link_bytes_per_s=100e9),
    )
}

# Measured or fitted step times (`policies.work.PRESETS`) by model, card and devices: better than any roofline.
PRESET_NAMES: Final[dict[tuple[str, str, int], str]] = {
    ("Llama-3.1-8B", "rtx4090", 1): "llama3-8b/rtx4090",
    ("Llama-3.1-8B", "rtx-pro-6000", 1): "llama3-8b/rtxpro6000",
    ("Llama-3.1-8B", "a100-80", 1): "llama3-8b/a100-80",
    ("Llama-3.1-8B", "h100", 1): "llama3-8b/h100",
    ("Llama-3.1-8B", "l4", 1): "llama3-8b/l4",
    ("Llama-3.1-8B", "a10", 1): "llama3-8b/a10",
    ("Llama-3.1-8B", "a6000", 1): "llama3-8b/a6000",
    ("Llama-3.1-8B", "rtx3090", 1): "llama3-8b/rtx3090",
    ("Qwen3-32B", "rtx-pro-6000", 2): "qwen3-32b/2xrtxpro6000-tp2-pcie",
    ("Llama-3.1-70B", "a100-80", 4): "llama3-70b/4xa100-80-nvlink-tp4",
    ("Llama-3.3-70B", "a100-80", 4): "llama3-70b/4xa100-80-nvlink-tp4",
    ("Llama-3.1-70B", "h100", 4): "llama3-70b/4xh100-tp4",
    ("Llama-3.3-70B", "h100", 4): "llama3-70b/4xh100-tp4",
    ("Llama-3.1-70B", "h100", 8): "llama3-70b/8xh100-tp8",
    ("Llama-3.3-70B", "h100", 8): "llama3-70b/8xh100-tp8",
}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Coefficients of the step-time formula, named as there: seconds, and seconds per unit."""

    t0: float
    c_seq: float
    W: float
    c_tok: float
    c_kv: float
    c_pair: float
    c_comm: float


def roofline(model: ModelShape, card: Card, engine: EngineShape) -> Roofline:
    """The step time of one instance. Raises ModelError where the model cannot be spread over the devices."""
    devices = engine.tensor_parallel
    used = model.active_parameters or model.matrix_parameters
    # The head multiplies too; the embedding is only looked up.
    head = model.vocabulary * model.hidden
    attention_width = sum(
        layers.layers * model.heads * _head_width(layers)
        for layers in model.layers
        if isinstance(layers, Attention | Latent) and layers.window is None
    )
    exchanged = 2 * model.layer_count * model.hidden * model.value_bytes * 2 * (devices - 1) / devices
    return Roofline(
        t0=STEP_S * (1 + log2(devices)),
        c_seq=SEQUENCE_S,
        W=weights_bytes(model, engine) / (card.weights * card.bytes_per_s),
        c_tok=2 * (used + head) / devices / (card.compute * card.flops),
        c_kv=kv_layout(model, engine).bytes_per_token / (card.kv * card.bytes_per_s),
        c_pair=4 * attention_width / devices / (card.attention * card.flops),
        c_comm=exchanged / card.link_bytes_per_s,
    )


def _head_width(layers: Attention | Latent) -> int:
    return layers.head_dim if isinstance(layers, Attention) else layers.width // 2


def find_card(name: str) -> Card:
    """The card called `name`, also as a driver writes it: `NVIDIA A100-SXM4-80GB`. Raises ValueError."""
    wanted = _words(name)
    # The driver's name has more words than ours; of several that match, the one with the most words.
    found = [card for key, card in CARDS.items() if _words(key) <= wanted]
    if not found and any(word.isdecimal() for word in wanted):
        found = [card for key, card in CARDS.items() if wanted <= _words(key)][:1]
    if not found:
        raise ValueError(f"no card {name!r}; there are {', '.join(CARDS)}")
    return max(found, key=lambda card: len(_words(card.name)))


def _words(name: str) -> set[str]:
    """Runs of letters and runs of digits: `a100-80` has a, 100 and 80, so that it is no A10."""
    return set(re.findall(r"[a-z]+|[0-9]+", name.casefold()))
