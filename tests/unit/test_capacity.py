"""Capacity arithmetic against published models and what engines logged."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces import load
from workers.capacity import (
    MAX_SEQS,
    Capacity,
    Concurrency,
    EngineShape,
    KvGroup,
    KvLayout,
    Residency,
    budget,
    capacity,
    explain_shortage,
    held_bytes,
    kv_concurrency,
    kv_layout,
    overhead,
    residency,
    step_concurrency,
    weights_bytes,
)
from workers.model_config import named_quantization
from workers.model_files import known_models
from workers.model_shape import Attention, ModelError, ModelShape, State
from workers.units import GIB

DATA = Path(__file__).parent / "data"
KNOWN = known_models()
H100 = int(79.2 * GIB)


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


MODELS = rows("kv_models.csv")


def shape(name: str) -> ModelShape:
    return KNOWN["Llama-3.1-70B" if name == "Llama-3.1/3.3-70B" else name]


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row["model"])
class TestModels:
    def test_kv_bytes_are_exact(self, row: dict[str, str]) -> None:
        model = shape(row["model"])
        assert kv_layout(model, EngineShape()).bytes_per_token == int(row["kv_B_per_tok"])
        assert kv_layout(model, EngineShape(kv_value_bytes=1)).bytes_per_token == int(row["kv_fp8_B_per_tok"])

    @pytest.mark.parametrize("ranks", [2, 4, 8])
    def test_kv_bytes_on_each_of_several_devices_are_exact(self, row: dict[str, str], ranks: int) -> None:
        expected = int(row[f"kv_per_gpu_tp{ranks}"])
        engine = EngineShape(tensor_parallel=ranks)
        if expected:
            assert kv_layout(shape(row["model"]), engine).bytes_per_token == expected
        else:
            with pytest.raises(ModelError, match=f"cannot be spread over tensor_parallel {ranks}"):
                kv_layout(shape(row["model"]), engine)

    @pytest.mark.parametrize(
        ("column", "scheme"), [("w_bf16_GiB", None), ("w_fp8_GiB", "fp8"), ("w_int4g128_GiB", "awq")]
    )
    def test_weights(self, row: dict[str, str], column: str, scheme: str | None) -> None:
        model = replace(shape(row["model"]), quantization=named_quantization(scheme) if scheme else None)
        assert weights_bytes(model, EngineShape()) / GIB == pytest.approx(float(row[column]), rel=2e-4, abs=0.0051)

    def test_parameters(self, row: dict[str, str]) -> None:
        assert shape(row["model"]).parameters / 1e9 == pytest.approx(float(row["params_B"]), rel=2e-4, abs=0.0051)


@pytest.mark.parametrize(
    ("name", "per_token", "groups"),
    [
        ("DeepSeek-V2-Lite", 31_104, 1),
        ("DeepSeek-V3", 70_272, 1),
        ("Gemma-2-9B", 172_032, 2),
        ("Gemma-3-27B", 81_920, 7),
        ("gpt-oss-20b", 24_576, 2),
        ("Qwen3-Next-80B-A3B", 24_576, 4),
        ("Jamba-1.5-mini", 16_384, 8),
        ("Nemotron-H-8B", 16_384, 7),
    ],
)
def test_models_whose_layers_differ(name: str, per_token: int, groups: int) -> None:
    layout = kv_layout(KNOWN[name], EngineShape())
    assert (layout.bytes_per_token, len(layout.groups)) == (per_token, groups)


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_latent_attention_is_whole_on_every_device(ranks: int) -> None:
    assert kv_layout(KNOWN["DeepSeek-R1"], EngineShape(tensor_parallel=ranks)).bytes_per_token == 70_272
    assert kv_layout(KNOWN["DeepSeek-R1"], EngineShape(kv_value_bytes=1)).bytes_per_token == 35_136


def test_windows_have_a_bound_and_padding_is_told() -> None:
    layout = kv_layout(KNOWN["Gemma-3-27B"], EngineShape(max_num_batched_tokens=2048))
    full, *windows = layout.groups
    assert (full.kind, full.layers, full.padding) == ("full", 10, 0)
    assert [(one.layers, one.padding) for one in windows] == [(10, 0)] * 5 + [(2, 8)]
    assert layout.padding_share == pytest.approx(8 / 70)
    # ceil((window - 1 + in flight) / block) + 1 blocks, however long the request is.
    assert windows[0].blocks_for(10**6) == -(-(1023 + 2048) // 16) + 1 == 193
    assert windows[0].blocks_for(100) == 8
    assert layout.fixed_bytes_per_request == 6 * 193 * layout.bytes_per_block
    assert layout.blocks_for(16_000) == 1000 + 6 * 193


def test_states_have_a_fixed_size_and_attention_blocks_grow_to_it() -> None:
    layout = kv_layout(KNOWN["Qwen3-Next-80B-A3B"], EngineShape())
    state = 32 * 128 * 128 * 4 + 3 * 8192 * 2
    assert layout.bytes_per_block >= 12 * state > layout.bytes_per_block - 12 * 16 * 2048
    assert layout.block_size % 16 == 0
    assert layout.fixed_bytes_per_request == 3 * layout.bytes_per_block
    assert layout.blocks_for(1) == 1 + 3
    assert layout.groups[-1].blocks_for(10**6) == 1


def test_nearly_equal_counts_are_grouped_by_the_larger() -> None:
    model = replace(KNOWN["Llama-3.1-8B"], layers=(Attention(10, 8, 128), Attention(14, 8, 128, window=512)))
    layout = kv_layout(model, EngineShape())
    assert [(one.layers, one.padding) for one in layout.groups] == [(10, 4), (14, 0)]


def test_pipeline_stages_share_the_layers() -> None:
    engine = EngineShape(pipeline_parallel=3)
    model = KNOWN["Llama-3.1-8B"]
    assert kv_layout(model, engine).bytes_per_token == 11 * 4096
    assert weights_bytes(model, engine) < weights_bytes(model, EngineShape()) / 2.9


def test_only_states_and_nothing_at_all() -> None:
    model = replace(KNOWN["Llama-3.1-8B"], layers=(State(24, 1000, 2000),))
    layout = kv_layout(model, EngineShape())
    assert (layout.bytes_per_token, layout.blocks_for(10**6), layout.bytes_per_block) == (0, 1, 24 * 10_000)
    with pytest.raises(ModelError, match="no layer keeps anything"):
        kv_layout(replace(model, layers=()), EngineShape())


# Lines that say what the KV memory was: prediction from it alone. The first are in kv_log_lines.csv, the others in
# public issues that name the model or whose bytes per token give it away: model, devices, draft layers, GiB, tokens.
STATED = [
    ("Llama-3.1-8B", 1, 0, 3.81, 31_232, 0.002),
    ("Llama-3.1-8B", 1, 0, 2.89, 23_648, 0.002),
    ("Qwen3-235B-A22B", 4, 0, 8.11, 178_880, 0.012),  # the minimum over four ranks, of which the log has one
    ("Qwen3-30B-A3B", 1, 0, 24.0, 262_144, 0.0),
]
MORE = [
    ("Qwen3-8B", 1, 0, 18.69, 136_080, 0.002),
    ("Qwen2.5-7B", 2, 0, 10.04, 375_968, 0.002),
    ("Llama-3.2-3B", 1, 0, 18.03, 168_832, 0.002),
    ("Llama-3.1-8B", 1, 0, 26.43, 216_496, 0.002),
    ("Llama-3.1-8B", 1, 0, 19.28, 157_936, 0.002),
    ("Llama-3.1-70B", 1, 0, 38.71, 126_832, 0.002),
    ("Llama-3.1-8B", 1, 1, 51.63, 410_128, 0.002),  # EAGLE
    ("Phi-4-14B", 1, 0, 45.21, 237_040, 0.002),
    ("Qwen2.5-1.5B", 1, 0, 2.36, 88_272, 0.002),
    ("Qwen2.5-0.5B", 1, 0, 9.25, 808_192, 0.002),
    ("Qwen2.5-0.5B", 1, 0, 11.71, 1_022_896, 0.002),
    ("Qwen2.5-0.5B", 1, 0, 34.81, 3_041_600, 0.002),
]


@pytest.mark.parametrize(("name", "ranks", "draft", "gib", "tokens", "tolerance"), STATED + MORE)
def test_log_lines_that_state_the_kv_memory(
    name: str, ranks: int, draft: int, gib: float, tokens: int, tolerance: float
) -> None:
    layout = kv_layout(KNOWN[name], EngineShape(tensor_parallel=ranks, draft_layers=draft))
    found = capacity(layout, round(gib * GIB), max_model_len=16_384)
    assert found.kv_tokens == pytest.approx(tokens, rel=tolerance)


def test_every_line_of_the_file_that_states_the_kv_memory_is_checked() -> None:
    stated = [row for row in rows("kv_log_lines.csv") if row["available_kv_gib"]]
    assert [(float(row["available_kv_gib"]), int(row["reported_tokens"])) for row in stated] == [
        (gib, tokens) for _, _, _, gib, tokens, _ in STATED
    ]
    for row, (name, ranks, _, _, _, _) in zip(stated, STATED, strict=True):
        layout = kv_layout(KNOWN[name], EngineShape(tensor_parallel=ranks))
        assert layout.bytes_per_token == int(row["kv_bytes_per_token_per_gpu"])


# Lines without it: device, share and flags in, tokens out. Model, devices, tokens a step, device bytes.
END_TO_END = {
    "LLMServingSim bench meta.json (MIT)": ("Llama-3.1-8B", 1, 2048, 25_250_627_584),
    "BLIS testdata iter29 exp60 (Apache-2.0)": ("Llama-3.1-70B", 4, 8192, H100),
    "BLIS exp61": ("Llama-3.1-70B", 4, 2048, H100),
    "BLIS exp62": ("Mistral-Nemo-12B", 2, 1024, H100),
    "BLIS exp63": ("Mistral-Nemo-12B", 1, 2048, H100),
    "BLIS exp64": ("Qwen2.5-7B", 1, 2048, H100),
    "BLIS exp66": ("Qwen2.5-7B", 1, 1024, H100),
    "BLIS exp65": ("Yi-34B", 2, 2048, H100),
}


@pytest.mark.parametrize("source", END_TO_END)
def test_end_to_end_from_the_device_to_tokens(source: str) -> None:
    (row,) = [one for one in rows("kv_log_lines.csv") if one["source"] == source]
    name, ranks, batched, device_bytes = END_TO_END[source]
    # These engines are older than 0.21: their CUDA graphs are not taken from the KV cache.
    engine = EngineShape(tensor_parallel=ranks, max_num_batched_tokens=batched, graphs=False)
    model = KNOWN[name]
    layout = kv_layout(model, engine)
    assert layout.bytes_per_token == int(row["kv_bytes_per_token_per_gpu"])
    found = capacity(layout, budget(model, engine, device_bytes, 0.9).kv, 32_768)
    assert found.kv_tokens == pytest.approx(int(row["reported_tokens"]), rel=0.025)


def test_lines_of_unknown_devices_agree_in_what_they_do_say() -> None:
    by_source = {row["source"]: row for row in rows("kv_log_lines.csv")}
    assert set(by_source) - set(END_TO_END) - {"vllm#10517 (comment 2024-12-02)", "vllm#21348", "vllm#34076"} == {
        "vllm#13061",
        "vllm#17242",
        "vllm#17395",
    }
    assert kv_layout(KNOWN["Qwen2.5-14B"], EngineShape(tensor_parallel=2)).bytes_per_token == int(
        by_source["vllm#13061"]["kv_bytes_per_token_per_gpu"]
    )
    qwen = EngineShape(tensor_parallel=2)
    assert kv_layout(KNOWN["Qwen2.5-7B"], qwen).bytes_per_token == int(
        by_source["vllm#17395"]["kv_bytes_per_token_per_gpu"]
    )
    assert weights_bytes(KNOWN["Qwen2.5-7B"], qwen) / GIB == pytest.approx(7.1217, rel=0.005)


def test_overhead_has_its_parts() -> None:
    model = KNOWN["Llama-3.1-8B"]
    found = overhead(model, EngineShape())
    assert (found.runtime, found.activations, found.graphs) == (GIB, 2 * 2048 * (2 * 14336 + 2048), GIB // 2)
    assert found.total == found.runtime + found.activations + found.graphs
    assert overhead(model, EngineShape(tensor_parallel=2)).runtime == GIB + GIB // 10


def test_stored_bytes_count_instead_of_parameters() -> None:
    assert weights_bytes(replace(KNOWN["Llama-3.1-8B"], stored_bytes=1001), EngineShape(tensor_parallel=2)) == 501


def test_the_log_s_two_figures_and_what_is_sure() -> None:
    found = capacity(kv_layout(KNOWN["Llama-3.1-8B"], EngineShape()), round(3.81 * GIB), 20_000)
    assert found.num_blocks == 1950
    assert found.max_concurrency == pytest.approx(1.56)
    assert found.kv_tokens == 31_200
    assert (found.guaranteed, found.fits, found.longest) == (1, True, 1949 * 16)


def test_br_13_05_a_length_that_does_not_fit_is_told_with_the_largest_that_does() -> None:
    found = capacity(kv_layout(KNOWN["Llama-3.1-8B"], EngineShape()), 20_000 * 131_072, 32_768)
    assert not found.fits
    assert explain_shortage(found) == (
        "a request of 32768 tokens needs 4.00 GiB of KV, 2.44 GiB are there; the largest that fits is 19984"
    )
    assert capacity(found.layout, -5, 100).longest == 0


LAYOUTS = st.sampled_from([kv_layout(model, EngineShape()) for model in KNOWN.values()])


@given(layout=LAYOUTS, kv=st.integers(0, 10**11), length=st.integers(1, 10**6))
def test_the_longest_fits_and_one_more_does_not(layout: KvLayout, kv: int, length: int) -> None:
    found: Capacity = capacity(layout, kv, length)
    assert layout.blocks_for(found.longest) <= found.usable_blocks or found.longest == 0
    if found.longest:
        assert capacity(layout, kv, found.longest).fits
    assert found.fits == (layout.blocks_for(length) <= found.usable_blocks)
    if any(group.kind == "full" for group in layout.groups):
        assert layout.blocks_for(found.longest + 1) > found.usable_blocks


@given(layout=LAYOUTS, tokens=st.integers(0, 10**6), more=st.integers(0, 10**5))
def test_more_tokens_never_take_less(layout: KvLayout, tokens: int, more: int) -> None:
    assert layout.blocks_for(tokens) <= layout.blocks_for(tokens + more)


@pytest.mark.parametrize(
    ("trace", "mean", "deviation", "average", "sure"),
    [
        ("azure2023_conv", 1227, 713, 352, 328),
        ("azure2023_code", 2131, 1952, 203, 175),
        ("mooncake_conversation", 13_126, 16_516, 33, 20),
    ],
)
def test_true_concurrency_of_recorded_traffic(trace: str, mean: int, deviation: int, average: int, sure: int) -> None:
    held = residency((one.prompt_tokens, one.output_tokens) for one in load(trace))
    assert held.mean == pytest.approx(mean, rel=0.002)
    assert held.deviation == pytest.approx(deviation, rel=0.01)
    assert kv_concurrency(432_000, held, z=0) == pytest.approx(average, abs=1)
    assert kv_concurrency(432_000, held) == pytest.approx(sure, abs=1)


def test_concurrency_in_bytes_counts_what_is_fixed() -> None:
    layout = kv_layout(KNOWN["Gemma-3-27B"], EngineShape())
    held = held_bytes(layout, Residency(1000, 500))
    assert held.mean == 1000 * 81_920 + layout.fixed_bytes_per_request + 8 * 81_920
    assert held.deviation == 500 * 81_920
    assert kv_concurrency(-1.0, held) == 0
    assert kv_concurrency(1.0, Residency(0, 0)) == MAX_SEQS


def test_traffic_without_output_has_no_residency() -> None:
    with pytest.raises(ValueError, match="no request has output"):
        residency([(10, 0)])


@given(room=st.floats(0, 1e12), mean=st.floats(1, 1e6), deviation=st.floats(0, 1e6))
def test_so_many_fit_and_one_more_does_not(room: float, mean: float, deviation: float) -> None:
    def needed(n: int) -> float:
        return n * mean + 2.33 * deviation * n**0.5

    n = kv_concurrency(room, Residency(mean, deviation))
    assert needed(n) <= room * (1 + 1e-6) + 1e-6
    assert n == MAX_SEQS or needed(n + 1) > room * (1 - 1e-6)


def test_the_step_bounds_the_batch() -> None:
    assert step_concurrency(lambda n: 0.01 + 0.0001 * n, 0.02) == pytest.approx(100, abs=1)
    assert step_concurrency(lambda n: 1.0, 0.02) == 0
    assert step_concurrency(lambda n: 0.0, 0.02, most=7) == 7


@pytest.mark.parametrize(
    ("sizes", "true", "bound"),
    [((64, 100, 200), 64, "max_num_seqs"), ((256, 100, 200), 100, "KV memory"), ((256, 100, 20), 20, "step time")],
)
def test_what_holds_it_back(sizes: tuple[int, int, int], true: int, bound: str) -> None:
    found = Concurrency(*sizes, guaranteed=3)
    assert (found.true, found.bound) == (true, bound)


def test_a_group_without_a_bound_rounds_up_to_whole_blocks() -> None:
    assert [KvGroup("full", 1, 0, 16).blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
