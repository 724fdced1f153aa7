"""What of a model decides its memory: layers by kind, parameters by kind, and how the weights are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BF16_BYTES: Final = 2


class ModelError(ValueError):
    """A model whose description does not say, or contradicts, what is needed. The message names the key."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers with keys and values for each token: MHA, GQA, MQA. `window`: tokens they look back; None: all."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None

    def values_per_token(self, tensor_parallel: int) -> int:
        """Numbers that one layer keeps for a token on one device.

        Heads are dealt out over devices, and replicated where there are more devices than heads (vLLM 0.32,
        `get_num_kv_heads`). Raises ModelError where neither goes without remainder.
        """
        heads, devices = self.kv_heads, tensor_parallel
        if heads % devices and devices % heads:
            raise ModelError(f"{heads} KV heads cannot be spread over tensor_parallel {devices}: neither divides")
        return 2 * max(1, heads // devices) * self.head_dim


@dataclass(frozen=True, slots=True)
class Latent:
    """Layers that keep one compressed vector for a token (MLA); every device has all of it."""

    layers: int
    width: int  # kv_lora_rank + qk_rope_head_dim
    window: None = None

    def values_per_token(self, tensor_parallel: int) -> int:
        """Numbers that one layer keeps for a token on one device: the same at every `tensor_parallel`."""
        return self.width


@dataclass(frozen=True, slots=True)
class State:
    """Layers with a state of fixed size for a request: Mamba, linear attention. Devices share it."""

    layers: int
    conv_values: int  # of one layer, in the model's type
    state_values: int  # of one layer
    state_bytes: int = 4  # each: kept in float32 unless the config says otherwise

    def page_bytes(self, tensor_parallel: int, conv_bytes: int) -> int:
        """Bytes of one layer's state on one device."""
        return -(-(self.conv_values * conv_bytes + self.state_values * self.state_bytes) // tensor_parallel)


Layers = Attention | Latent | State


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of matrices are stored; embeddings, head and norms stay as they are."""

    name: str
    bytes_per_parameter: float


# 2.56 bytes for scale and zero point of a group: 0.52 bytes a parameter at 4 bits in groups of 128, which gives
# 37.06 GiB for Llama-70B AWQ where the engine's log says 37.09.
GROUP_BYTES: Final = 2.56


def grouped(name: str, bits: int, group: int) -> Quantization:
    """Integers of `bits` with a scale for each `group` parameters; a group of -1 is a whole column: next to nothing."""
    return Quantization(name, bits / 8 + (GROUP_BYTES / group if group > 0 else 0.0))


QUANTIZATIONS: Final[dict[str, Quantization]] = {
    "fp8": Quantization("fp8", 1.0),
    "fbgemm_fp8": Quantization("fbgemm_fp8", 1.0),
    "modelopt": Quantization("modelopt", 1.0),
    "int8": Quantization("int8", 1.0),
    "w8a8": Quantization("w8a8", 1.0),
    "w8a8_int8": Quantization("w8a8_int8", 1.0),
    "awq": grouped("awq", 4, 128),
    "awq_marlin": grouped("awq_marlin", 4, 128),
    "gptq": grouped("gptq", 4, 128),
    "gptq_marlin": grouped("gptq_marlin", 4, 128),
    "compressed-tensors": grouped("compressed-tensors", 4, 128),
    # NF4 with a float32 maximum for each 64.
    "bitsandbytes": Quantization("bitsandbytes", 0.5 + 4 / 64),
    # 4 bits and a shared exponent of 8 bits for each 32.
    "mxfp4": Quantization("mxfp4", 0.5 + 1 / 32),
    "modelopt_fp4": Quantization("modelopt_fp4", 0.5 + 1 / 16),
}
"""By the names that engines take. Where a config says bits and group, those count."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model, as far as memory goes. Sizes are of the whole model, not of one device."""

    name: str
    hidden: int
    heads: int
    intermediate: int  # width of the widest dense layer: what activations need
    vocabulary: int
    layers: tuple[Layers, ...]
    matrix_parameters: int
    embedding_parameters: int
    replicated_parameters: int = 0  # norms and the like: on every device whole
    active_parameters: int = 0  # of the matrices, used for one token; 0: all of them
    value_bytes: int = BF16_BYTES  # of weights that are not quantised, activations and the KV cache
    max_model_len: int | None = None
    quantization: Quantization | None = None
    stored_bytes: int | None = None  # of all weights, read from their files: then the parameters above don't count

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.matrix_parameters + self.embedding_parameters + self.replicated_parameters

    @property
    def layer_count(self) -> int:
        """All layers that keep something for a request."""
        return sum(group.layers for group in self.layers)
