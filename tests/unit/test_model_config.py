"""Reading config.json and safetensors headers: shapes, and refusals that name the key."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model_config import (
    Config,
    kinds_of,
    kv_value_bytes,
    layer_kinds,
    named_quantization,
    quantization_of,
    read_config,
    shape_of,
)
from workers.model_files import known_models, load_model, read_header, stored_weights
from workers.model_shape import Attention, ModelError, State

PLAIN: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048,
}


def kinds(**fields: Any) -> list[str | None]:
    return layer_kinds(Config({**PLAIN, **fields}), 4)


def test_a_plain_model() -> None:
    shape = read_config(json.dumps(PLAIN).encode(), "m")
    assert shape.layers == (Attention(4, 2, 16),)
    assert shape.matrix_parameters == 4 * (64 * (2 * 4 * 16 + 2 * 2 * 16) + 3 * 64 * 128)
    assert shape.embedding_parameters == 2 * 64 * 1000
    assert (shape.max_model_len, shape.layer_count, shape.quantization) == (2048, 4, None)
    assert shape.active_parameters == shape.matrix_parameters


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sliding_window": 8}, ["sliding"] * 4),
        ({"sliding_window": None}, ["full"] * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, ["full"] * 4),
        ({"sliding_window": 8, "model_type": "gemma2"}, ["sliding", "full"] * 2),
        ({"sliding_window": 8, "model_type": "gemma3_text"}, ["sliding"] * 4),
        ({"sliding_window": 8, "sliding_window_pattern": 4}, ["sliding"] * 3 + ["full"]),
        ({"sliding_window": 8, "model_type": "qwen2", "max_window_layers": 1}, ["full"] + ["sliding"] * 3),
        ({"attention_chunk_size": 8}, ["chunked"] * 3 + ["full"]),
        ({"full_attention_interval": 2}, ["linear", "full"] * 2),
        ({"attn_layer_period": 2, "attn_layer_offset": 1}, ["mamba", "full"] * 2),
        ({"hybrid_override_pattern": "M-*-"}, ["mamba2", None, "full", None]),
        (
            {"layer_types": ["full_attention", "sliding_attention", "linear_attention", "mlp"]},
            ["full", "sliding", "linear", None],
        ),
        ({"layer_types": ["full_attention"]}, ["full"] * 4),  # of another length: not about these layers
        ({"kv_lora_rank": 8}, ["latent"] * 4),
    ],
)
def test_kinds_of_layers(fields: dict[str, Any], expected: list[str | None]) -> None:
    assert kinds(**fields) == expected


def test_a_model_that_sees_keeps_its_text_part_one_level_down() -> None:
    nested = {"model_type": "seeing", "vision_config": {"hidden_size": 9}, "text_config": PLAIN}
    assert shape_of(nested).layers == shape_of(PLAIN).layers


def test_mamba_states_are_those_of_the_config() -> None:
    known = known_models()
    jamba = known["Jamba-1.5-mini"].layers
    assert jamba == (Attention(4, 8, 128), State(28, 3 * 8192, 8192 * 16))
    nemotron = known["Nemotron-H-8B"].layers
    assert nemotron == (Attention(4, 8, 128), State(24, 3 * (8192 + 2 * 8 * 128), 128 * 64 * 128))
    half = shape_of({**PLAIN, "attn_layer_period": 2, "mamba_ssm_dtype": "bfloat16"}).layers[1]
    assert isinstance(half, State)
    assert half.state_bytes == 2


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("DeepSeek-V3", 671.0, 37.5),
        ("DeepSeek-V2-Lite", 15.7, 2.7),
        ("Qwen3-Next-80B-A3B", 79.7, 3.9),
        ("Qwen3-30B-A3B", 30.5, 3.4),
        ("gpt-oss-20b", 20.9, 4.2),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Jamba-1.5-mini", 51.6, 12.1),
        ("Nemotron-H-8B", 8.1, 8.1),
        ("Gemma-3-27B", 27.0, 27.0),
    ],
)
def test_parameters_are_what_the_makers_say(name: str, billions: float, active: float) -> None:
    shape = known_models()[name]
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert (shape.active_parameters + shape.embedding_parameters) / 1e9 == pytest.approx(active, rel=0.03)


def test_experts_in_some_layers_only() -> None:
    moe = {**PLAIN, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    dense, sparse = 3 * 64 * 128, 4 * 3 * 64 * 32 + 64 * 4
    mixing = 4 * 64 * (2 * 4 * 16 + 2 * 2 * 16)

    def feed_forward(**fields: Any) -> int:
        return shape_of({**moe, **fields}).matrix_parameters - mixing

    assert feed_forward() == 4 * sparse
    assert feed_forward(mlp_only_layers=[0]) == dense + 3 * sparse
    assert feed_forward(decoder_sparse_step=2) == 2 * dense + 2 * sparse
    assert feed_forward(first_k_dense_replace=3) == 3 * dense + sparse
    assert feed_forward(num_experts=1) == 4 * dense
    assert feed_forward(model_type="llama4_text") == 4 * (sparse + 3 * 64 * 32)


@pytest.mark.parametrize(
    ("told", "name", "each"),
    [
        ({"quant_method": "fp8"}, "fp8", 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq", 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 0.5625),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
        ({"quant_method": "mxfp4"}, "mxfp4", 0.53125),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            "compressed-tensors",
            1.0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"x": 1, "g": {"weights": {"num_bits": 4, "group_size": 64}}},
            },
            "compressed-tensors",
            0.54,
        ),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors", 0.52),
    ],
)
def test_quantisation(told: dict[str, Any], name: str, each: float) -> None:
    found = quantization_of(Config({"quantization_config": told}))
    assert found is not None
    assert (found.name, found.bytes_per_parameter) == (name, pytest.approx(each))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "hidden_size: is missing; without it the memory cannot be known"),
        ({"vocab_size": "x"}, "vocab_size: must be a whole number from 1 to 1000000000, got 'x'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number from 1"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: must be at most 4096, got 100000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers: must be a whole number from 1"),
        ({"torch_dtype": "int3"}, "torch_dtype: 'int3' is not known; there are bfloat16"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantization: 'magic' is not known; there are awq"),
        ({"layer_types": ["odd"] * 4}, "layer_types: 'odd' is not known; there are full_attention"),
    ],
)
def test_what_cannot_be_read_is_told_by_its_key(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match="^" + told.replace("(", r"\(")):
        shape_of({**PLAIN, **change})


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b" " * (5 << 20)])
def test_text_that_is_no_config(text: bytes) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *PLAIN,
                "layer_types",
                "quantization_config",
                "sliding_window",
                "text_config",
                "kv_lora_rank",
                "hybrid_override_pattern",
                "model_type",
                "num_experts",
            ]
        ),
        JSON,
    )
)
def test_any_object_gives_a_shape_or_a_reason(changes: dict[str, Any]) -> None:
    with suppress(ModelError):
        assert shape_of({**PLAIN, **changes}).parameters >= 0


def test_kv_types() -> None:
    shape = shape_of(PLAIN)
    assert [kv_value_bytes(shape, name) for name in (None, "auto", "fp8", "bfloat16")] == [2, 2, 1, 2]
    with pytest.raises(ModelError, match="kv_cache_dtype: 'fp3' is not known"):
        kv_value_bytes(shape, "fp3")
    with pytest.raises(ModelError, match="quantization: 'x'"):
        named_quantization("x")


def test_kinds_for_people() -> None:
    known = known_models()
    assert dict(kinds_of(known["gpt-oss-20b"])) == {"attention": 12, "attention, window 128": 12}
    assert dict(kinds_of(known["DeepSeek-R1"])) == {"latent attention": 61}
    assert dict(kinds_of(known["Jamba-1.5-mini"])) == {"attention": 4, "state": 28}


def safetensors(path: Path, tensors: dict[str, list[int]], size: int) -> None:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}}
        | {name: {"dtype": "BF16", "shape": [1], "data_offsets": offsets} for name, offsets in tensors.items()}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


def model_directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    return tmp_path


def test_weights_are_read_from_the_headers(tmp_path: Path) -> None:
    directory = model_directory(tmp_path)
    assert load_model(str(directory)).stored_bytes is None
    safetensors(directory / "model-1.safetensors", {"a": [0, 60], "b": [60, 100]}, 100)
    safetensors(directory / "model-2.safetensors", {"c": [0, 30]}, 30)
    safetensors(directory / "consolidated.safetensors", {"a": [0, 130]}, 130)  # all of it once more
    found = stored_weights(directory)
    assert found is not None
    assert (found.bytes, found.tensors) == (130, 3)
    assert load_model(str(directory)).stored_bytes == 130
    assert load_model(str(directory / "config.json")).stored_bytes is None
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))
    assert load_model(str(directory)).stored_bytes == 100


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ('{"weight_map": {"a": "../../secret.safetensors"}}', "is not the name of a file beside it"),
        ('{"weight_map": {"a": 1}}', "is not the name of a file beside it"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot be read: No such file"),
        ('{"weight_map": 1}', "is no safetensors index"),
        ("[", "is no safetensors index"),
    ],
)
def test_an_index_names_files_beside_it(tmp_path: Path, index: str, told: str) -> None:
    (model_directory(tmp_path) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=told):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "is no safetensors file: a header of 0 bytes in one of 0"),
        ((2**62).to_bytes(8, "little") + b"{}", "is no safetensors file: a header of 4611686018427387904 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "must be an object"),
        ((2).to_bytes(8, "little") + b"{[", "is not JSON"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "a lies outside of the file"),
    ],
)
def test_files_that_are_no_safetensors(tmp_path: Path, raw: bytes, told: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=told):
        read_header(path)


def test_tensors_lie_inside_and_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors(path, {"a": [0, 101]}, 100)
    with pytest.raises(ModelError, match="a lies outside"):
        read_header(path)
    safetensors(path, {f"t{n}": [0, 1000] for n in range(9)}, 1000)
    with pytest.raises(ModelError, match="overlap"):
        read_header(path)


def test_too_many_files_and_too_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model_directory(tmp_path)
    safetensors(directory / "a.safetensors", {}, 0)
    monkeypatch.setattr("workers.model_files.MAX_FILES", 0)
    with pytest.raises(ModelError, match="has 1 safetensors files, at most 0 are read"):
        load_model(str(directory))
    monkeypatch.setattr("workers.model_files.MAX_CONFIG_BYTES", 3)
    with pytest.raises(ModelError, match=r"config\.json: is larger than 3 bytes"):
        load_model(str(directory))


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"])
def test_well_known_models_have_names(name: str) -> None:
    assert load_model(name).layers == (Attention(32, 8, 128),)


def test_unknown_names_are_told_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no known model; known are Llama-2-7B"):
        load_model("Llama-9-1B")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: No such file"):
        load_model(str(tmp_path))
