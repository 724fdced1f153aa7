"""Parameters of a model's matrices, layer by layer, from its config. Biases are left out: below one in a thousand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.model_config import Config


@dataclass(frozen=True, slots=True)
class Matrices:
    """Parameters of all matrices, and of those that one token goes through."""

    all: int
    active: int


def matrices(config: Config, kinds: Sequence[str | None]) -> Matrices:
    """Count what the layers of these kinds have. Raises ModelError for a key that is missing."""
    stored = active = 0
    for index, kind in enumerate(kinds):
        mixing = MIXERS[kind](config) if kind is not None else 0
        stored += mixing
        active += mixing
        # Nemotron-H has its MLPs in layers of their own.
        if "hybrid_override_pattern" in config.data and kind is not None:
            continue
        all_experts, used = _feed_forward(config, index)
        stored += all_experts
        active += used
    return Matrices(stored, active)


def _attention(config: Config) -> int:
    hidden, heads = config.number("hidden_size", "d_model", "n_embd"), config.number("num_attention_heads", "n_head")
    width = config.optional("head_dim", "attention_head_dim") or hidden // heads
    kv_heads = config.number("num_key_value_heads", "multi_query_group_num", "num_kv_heads", default=heads)
    gate = heads * width if config.flag("attn_output_gate") or config.data.get("model_type") == "qwen3_next" else 0
    return hidden * (2 * heads * width + gate + 2 * kv_heads * width)


def _latent(config: Config) -> int:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    latent, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    plain, value = config.number("qk_nope_head_dim"), config.number("v_head_dim")
    compressed = config.optional("q_lora_rank")
    queries = heads * (plain + rope)
    query = hidden * queries if compressed is None else compressed * (hidden + queries)
    return query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden


def _linear(config: Config) -> int:
    hidden = config.number("hidden_size")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    value_heads = config.number("linear_num_value_heads")
    values = value_heads * config.number("linear_value_head_dim")
    return hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden


def _mamba(config: Config) -> int:
    hidden = config.number("hidden_size")
    inner = config.number("mamba_expand", default=2) * hidden
    state = config.number("mamba_d_state", default=16)
    step = config.optional("mamba_dt_rank") or -(-hidden // 16)
    return 2 * hidden * inner + inner * (step + 2 * state) + step * inner + inner * state + inner * hidden


def _mamba2(config: Config) -> int:
    hidden = config.number("hidden_size")
    heads = config.number("mamba_num_heads", "mamba_n_heads")
    inner = heads * config.number("mamba_head_dim", "mamba_d_head")
    groups = config.number("n_groups", "mamba_n_groups", default=1)
    state = config.number("ssm_state_size", "mamba_d_state")
    return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden


MIXERS: Final[Mapping[str, Callable[[Config], int]]] = {
    "full": _attention,
    "sliding": _attention,
    "chunked": _attention,
    "latent": _latent,
    "linear": _linear,
    "mamba": _mamba,
    "mamba2": _mamba2,
}
"""Kind of a layer -> parameters of what mixes tokens in it."""


def _feed_forward(config: Config, index: int) -> tuple[int, int]:
    """Parameters of layer `index`'s MLP, and of its part that a token uses."""
    hidden = config.number("hidden_size", "d_model", "n_embd")
    # Three matrices where the width is gated, two where it is not.
    gated = 2 if config.data.get("mlp_hidden_act") == "relu2" or "n_embd" in config.data else 3
    dense = gated * hidden * config.number("intermediate_size_mlp", "intermediate_size", "n_inner", default=4 * hidden)
    experts = config.optional("n_routed_experts", "num_experts", "num_local_experts")
    if experts is None or experts == 1 or not _is_sparse(config, index):
        return dense, dense
    width = config.number("moe_intermediate_size", "intermediate_size")
    shared_width = config.optional("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    # Llama 4 has a shared expert that its config does not mention.
    unsaid = 1 if str(config.data.get("model_type", "")).startswith("llama4") else 0
    shared_count = config.number("n_shared_experts", "num_shared_experts", default=unsaid, least=0)
    shared = 3 * hidden * (shared_width if shared_width is not None else shared_count * width)
    used = config.number("num_experts_per_tok", "experts_per_token", "moe_topk", default=2)
    router = hidden * experts
    one = 3 * hidden * width
    return experts * one + shared + router, used * one + shared + router


def _is_sparse(config: Config, index: int) -> bool:
    if index < config.number("first_k_dense_replace", default=0, least=0):
        return False
    dense_only = config.data.get("mlp_only_layers")
    if isinstance(dense_only, list) and index in dense_only:
        return False
    if (period := config.optional("expert_layer_period")) is not None:  # Jamba
        return index % period == config.number("expert_layer_offset", default=0, least=0)
    return (index + 1) % config.number("decoder_sparse_step", "interleave_moe_layer_step", default=1) == 0
