"""Reads a model's shape from its `config.json`. Pure: the text comes in, nothing of the model is run.

Keys are those of Hugging Face configs. What they mean for the KV cache follows vLLM 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from workers.model_layers import matrices
from workers.model_shape import (
    QUANTIZATIONS,
    Attention,
    Latent,
    Layers,
    ModelError,
    ModelShape,
    Quantization,
    State,
    grouped,
)

MAX_CONFIG_BYTES: Final = 4 << 20
MAX_VALUE: Final = 10**9
MAX_LAYERS: Final = 4096
DTYPES: Final = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "auto": 2}
KV_DTYPES: Final = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "q8_0": 1, "f16": 2, **DTYPES}


# What a layer may keep for a request, in the order in which a shape lists it.
KINDS: Final = ("full", "latent", "sliding", "chunked", "linear", "mamba", "mamba2")


class Config:
    """Checked reading of a config's numbers: each is a whole number within bounds, or the error names its key."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that is set. Raises ModelError."""
        for name in names:
            value = self.data.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_VALUE:
                    raise ModelError(f"{name}: must be a whole number from {least} to {MAX_VALUE}, got {value!r:.80}")
                return value
        if default is None:
            raise ModelError(f"{names[0]}: is missing; without it the memory cannot be known")
        return default

    def optional(self, *names: str, least: int = 1) -> int | None:
        """As `number`; None where none is set."""
        found = self.number(*names, default=-1, least=least)
        return None if found == -1 else found

    def flag(self, name: str) -> bool:
        """Whether it is true."""
        return self.data.get(name) is True


def read_config(text: bytes, name: str = "model") -> ModelShape:
    """The shape that a `config.json` describes. Raises ModelError."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ModelError(f"config.json: has {len(text)} bytes, at most {MAX_CONFIG_BYTES} are read")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ModelError(f"config.json: is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ModelError("config.json: must be an object")
    return shape_of(data, name)


def shape_of(data: Mapping[str, Any], name: str = "model") -> ModelShape:
    """The shape that a parsed config describes. Raises ModelError."""
    # Models that also see or hear keep what we need one level down.
    text = next((data[key] for key in ("text_config", "llm_config") if isinstance(data.get(key), dict)), None)
    config = Config(data if text is None else {**data, **text})
    hidden = config.number("hidden_size", "d_model", "n_embd")
    vocabulary = config.number("vocab_size")
    count = config.number("num_hidden_layers", "n_layer", "num_layers")
    if count > MAX_LAYERS:
        raise ModelError(f"num_hidden_layers: must be at most {MAX_LAYERS}, got {count}")
    kinds = layer_kinds(config, count)
    heads = config.number("num_attention_heads", "n_head")
    parts = matrices(config, kinds)
    tied = config.data.get("tie_word_embeddings", str(config.data.get("model_type")).startswith("gemma")) is True
    return ModelShape(
        name=name,
        hidden=hidden,
        heads=heads,
        intermediate=config.number("intermediate_size", "n_inner", "moe_intermediate_size", default=4 * hidden),
        vocabulary=vocabulary,
        layers=tuple(_group(config, kind, kinds.count(kind)) for kind in KINDS if kind in kinds),
        matrix_parameters=parts.all,
        embedding_parameters=vocabulary * hidden * (1 if tied else 2),
        replicated_parameters=hidden * (2 * count + 1),
        active_parameters=parts.active,
        value_bytes=_value_bytes(config),
        max_model_len=config.optional("max_position_embeddings", "max_seq_len", "n_positions", "seq_length"),
        quantization=quantization_of(config),
    )


def layer_kinds(config: Config, count: int) -> list[str | None]:
    """What each layer keeps, of `KINDS`; None: nothing."""
    data = config.data
    if config.optional("kv_lora_rank") is not None:
        return ["latent"] * count
    pattern = data.get("hybrid_override_pattern")  # Nemotron-H: M is Mamba-2, * attention, - only an MLP
    if isinstance(pattern, str):
        return [{"M": "mamba2", "*": "full"}.get(letter) for letter in pattern]
    listed = data.get("layer_types", data.get("layers_block_type"))
    if isinstance(listed, list) and len(listed) == count:
        return [_named_kind(str(one)) for one in listed]
    if (period := config.optional("attn_layer_period")) is not None:  # Jamba
        offset = config.number("attn_layer_offset", default=0, least=0)
        return ["full" if index % period == offset else "mamba" for index in range(count)]
    if (period := config.optional("full_attention_interval")) is not None:  # Qwen3-Next
        return ["full" if (index + 1) % period == 0 else "linear" for index in range(count)]
    if config.optional("attention_chunk_size") is not None:  # Llama 4: every fourth layer sees all
        return ["full" if (index + 1) % 4 == 0 else "chunked" for index in range(count)]
    return _windowed(config, count)


def _windowed(config: Config, count: int) -> list[str | None]:
    window, data = config.optional("sliding_window"), config.data
    kind = str(data.get("model_type", ""))
    if window is None or data.get("use_sliding_window") is False:
        return ["full"] * count
    pattern = config.optional("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None and kind.startswith("gemma"):
        pattern = 2 if kind.startswith("gemma2") else 6
    if pattern is not None:
        return ["full" if (index + 1) % pattern == 0 else "sliding" for index in range(count)]
    if kind.startswith("qwen"):  # the first max_window_layers see all
        first = config.number("max_window_layers", default=count, least=0)
        return ["full" if index < first else "sliding" for index in range(count)]
    return ["sliding"] * count


_NAMED: Final = {
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba2",
    "mlp": None,
}


def _named_kind(name: str) -> str | None:
    if name not in _NAMED:
        raise ModelError(f"layer_types: {name!r:.80} is not known; there are {', '.join(_NAMED)}")
    return _NAMED[name]


def _group(config: Config, kind: str, layers: int) -> Layers:
    if kind == "latent":
        return Latent(layers, config.number("kv_lora_rank") + config.number("qk_rope_head_dim"))
    if kind == "linear":
        keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
        width = config.number("linear_value_head_dim")
        values = config.number("linear_num_value_heads") * width
        conv = (config.number("linear_conv_kernel_dim") - 1) * (2 * keys + values)
        return State(layers, conv, values * config.number("linear_key_head_dim"), _state_bytes(config))
    if kind == "mamba":
        inner = config.number("mamba_expand", default=2) * config.number("hidden_size")
        state = inner * config.number("mamba_d_state", default=16)
        return State(layers, (config.number("mamba_d_conv", default=4) - 1) * inner, state, _state_bytes(config))
    if kind == "mamba2":
        heads, width, state = mamba2_sizes(config)
        groups = config.number("n_groups", "mamba_n_groups", default=1)
        conv = (config.number("conv_kernel", "mamba_d_conv", default=4) - 1) * (heads * width + 2 * groups * state)
        return State(layers, conv, heads * width * state, _state_bytes(config))
    heads = config.number("num_attention_heads", "n_head")
    width = config.optional("head_dim", "attention_head_dim") or config.number("hidden_size", "n_embd") // heads
    kv_heads = config.number("num_key_value_heads", "multi_query_group_num", "num_kv_heads", default=heads)
    windows = {"full": None, "sliding": "sliding_window", "chunked": "attention_chunk_size"}
    window = windows[kind]
    return Attention(layers, kv_heads, width, None if window is None else config.number(window))


def mamba2_sizes(config: Config) -> tuple[int, int, int]:
    """Heads, width of a head and size of the state of Mamba-2 layers."""
    return (
        config.number("mamba_num_heads", "mamba_n_heads"),
        config.number("mamba_head_dim", "mamba_d_head"),
        config.number("ssm_state_size", "mamba_d_state"),
    )


def _state_bytes(config: Config) -> int:
    return DTYPES.get(str(config.data.get("mamba_ssm_dtype", "float32")), 4)


def _value_bytes(config: Config) -> int:
    name = str(config.data.get("torch_dtype") or config.data.get("dtype") or "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise ModelError(f"torch_dtype: {name!r:.80} is not known; there are {', '.join(DTYPES)}")
    # Engines load float32 checkpoints as 16 bits unless told otherwise.
    return min(DTYPES[name], 2)


def quantization_of(config: Config) -> Quantization | None:
    """How the config says that the matrices are stored; None: as they are. Raises ModelError for what nobody knows."""
    told = config.data.get("quantization_config")
    if not isinstance(told, dict):
        return None
    method = str(told.get("quant_method", told.get("quant_algo", ""))).lower()
    if method == "compressed-tensors":
        return _compressed(told)
    own = Config(told)
    bits = own.optional("bits", "w_bit")
    if bits is not None:
        return grouped(method or "integer", bits, own.number("group_size", "q_group_size", default=128, least=-1))
    if method == "bitsandbytes" and told.get("load_in_8bit") is True:
        return QUANTIZATIONS["int8"]
    return named_quantization(method)


def _compressed(told: Mapping[str, Any]) -> Quantization:
    groups = told.get("config_groups")
    for one in groups.values() if isinstance(groups, dict) else ():
        weights = Config(one["weights"]) if isinstance(one, dict) and isinstance(one.get("weights"), dict) else None
        if weights is not None:
            group = weights.optional("group_size", least=-1)
            return grouped("compressed-tensors", weights.number("num_bits"), -1 if group is None else group)
    return QUANTIZATIONS["compressed-tensors"]


def named_quantization(name: str) -> Quantization:
    """The scheme that engines call `name`. Raises ModelError."""
    if name not in QUANTIZATIONS:
        raise ModelError(f"quantization: {name!r:.80} is not known; there are {', '.join(sorted(QUANTIZATIONS))}")
    return QUANTIZATIONS[name]


def kv_value_bytes(shape: ModelShape, name: str | None) -> int:
    """Bytes of a number in the KV cache: of its own type, else of the model's. Raises ModelError for a name unknown."""
    if name is None or name == "auto":
        return shape.value_bytes
    if name not in KV_DTYPES:
        raise ModelError(f"kv_cache_dtype: {name!r:.80} is not known; there are {', '.join(sorted(KV_DTYPES))}")
    return KV_DTYPES[name]


def kinds_of(shape: ModelShape) -> Counter[str]:
    """How many layers of each kind there are, for people."""
    counted: Counter[str] = Counter()
    for group in shape.layers:
        match group:
            case Attention(window=None):
                counted["attention"] += group.layers
            case Attention():
                counted[f"attention, window {group.window}"] += group.layers
            case Latent():
                counted["latent attention"] += group.layers
            case State():
                counted["state"] += group.layers
    return counted
