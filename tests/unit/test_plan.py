"""Planning by arithmetic: step times from data sheets, splits by work, one card for several models."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.work import PRESETS, StepTime
from workers.capacity import EngineShape
from workers.hardware import CARDS, PRESET_NAMES, find_card, roofline
from workers.model_files import known_models
from workers.model_shape import ModelShape
from workers.plan import (
    Goal,
    Tenant,
    engine_for,
    fit,
    longest_length,
    share_card,
    splits,
    tensor_parallels,
    work_s,
)
from workers.units import GIB

KNOWN = known_models()
LLAMA = KNOWN["Llama-3.1-8B"]
H100 = CARDS["h100"]
CHAT = [(1000, 120)] * 96 + [(12_000, 300)] * 4
STEP = PRESETS["llama3-8b/a100-80"].step


@pytest.mark.parametrize(("key", "preset"), PRESET_NAMES.items(), ids=str)
def test_the_roofline_comes_near_what_was_measured(key: tuple[str, str, int], preset: str) -> None:
    model, card, ranks = key
    found = roofline(KNOWN[model], CARDS[card], EngineShape(tensor_parallel=ranks))
    measured = PRESETS[preset].step
    for name in ("W", "c_tok", "c_kv", "c_pair"):
        assert getattr(found, name) == pytest.approx(getattr(measured, name), rel=0.12), name
    assert found.c_comm == pytest.approx(measured.c_comm, rel=0.1)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_known_model_has_a_roofline(name: str) -> None:
    found = asdict(roofline(KNOWN[name], H100, EngineShape()))
    assert all(value >= 0 for value in found.values())
    assert found["W"] > 0


@pytest.mark.parametrize(
    ("written", "card"),
    [
        ("H100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("A100-PCIE-40GB", "a100-40"),
        ("a100", "a100-80"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX A6000", "a6000"),
        ("910B3", "ascend-910b3"),
    ],
)
def test_cards_by_name(written: str, card: str) -> None:
    assert find_card(written).name == card


@pytest.mark.parametrize("written", ["", "abacus", "h", "NVIDIA A30"])
def test_cards_that_are_not_known(written: str) -> None:
    with pytest.raises(ValueError, match="there are h100, h200"):
        find_card(written)


def test_the_longest_request_is_rounded_up_within_what_the_model_can() -> None:
    assert longest_length([(1000, 120), (2000, 100)], LLAMA) == 3072
    assert longest_length([(2000, 100)], replace(LLAMA, max_model_len=2048)) == 2048
    assert longest_length([(2000, 100)], replace(LLAMA, max_model_len=None)) == 3072


def fitted(model: ModelShape = LLAMA, device_bytes: int = 80 * GIB, length: int = 8192, tpot_s: float = 0.1):  # type: ignore[no-untyped-def]
    engine = engine_for(model, device_bytes, "", 1, 2)
    return fit(model, engine, device_bytes, 0.95, CHAT, STEP, tpot_s, length)


def test_what_fits_has_values_for_the_flags() -> None:
    found = fitted()
    assert found.fits
    assert found.budget.kv == found.room.kv_bytes
    assert found.max_num_seqs == min(1024, found.concurrency.true)
    assert found.concurrency.by_kv < found.concurrency.by_step
    assert fitted(tpot_s=0.0121).max_num_seqs == 8  # never so few that it cannot batch


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device_bytes": 16 * GIB}, "weights and overhead are 1.4 GiB more than its share of the device"),
        ({"device_bytes": 20 * GIB, "length": 131_072}, "the longest request that fits has"),
        ({"tpot_s": 0.01}, "a step takes longer than 10 ms even for one request"),
    ],
)
def test_what_does_not_fit_says_why(changes: dict[str, int], why: str) -> None:
    found = fitted(**changes)  # type: ignore[arg-type]
    assert not found.fits
    assert why in found.why_not


def test_instances_are_spread_over_powers_of_two_that_divide_the_heads() -> None:
    assert tensor_parallels(LLAMA, 8) == [1, 2, 4, 8]
    assert tensor_parallels(LLAMA, 6) == [1, 2, 4]
    assert tensor_parallels(KNOWN["Qwen2.5-0.5B"], 8) == [1, 2]  # 14 heads


def work(prompt: int, output: int) -> float:
    return work_s(prompt, output, STEP, 32, 1024.0)


def test_splits_follow_the_work_and_not_the_number_of_requests() -> None:
    found = splits(CHAT, 16.0, 8, work)
    assert found[0].worst == min(split.worst for split in found)
    at_2k = next(split for split in found if split.threshold == 2048)
    assert at_2k.short + at_2k.long == 8
    assert 0.5 < at_2k.short_share < 0.85  # 96 of 100 requests
    whole = 16.0 * sum(work(*one) for one in CHAT) / 100
    assert at_2k.short * at_2k.short_load + at_2k.long * at_2k.long_load == pytest.approx(whole)


def test_nothing_to_split() -> None:
    assert splits(CHAT, 16.0, 1, work) == []
    assert splits([(100, 10)] * 5, 16.0, 8, work) == []
    assert splits([(5000, 10)] * 5, 16.0, 8, work) == []  # all of them long


@given(st.lists(st.tuples(st.integers(1, 50_000), st.integers(1, 2000)), min_size=1, max_size=20), st.integers(2, 40))
def test_each_pool_of_a_split_has_a_worker(lengths: list[tuple[int, int]], workers: int) -> None:
    for split in splits(lengths, 1.0, workers, work):
        assert min(split.short, split.long) >= 1
        assert split.short + split.long == workers
        assert 0 < split.short_share < 1


def test_a_request_costs_more_when_it_is_longer_and_less_when_many_share_the_step() -> None:
    assert work(2000, 100) > work(1000, 100) > work(1000, 50)
    assert work_s(1000, 100, STEP, 64, 0.0) < work_s(1000, 100, STEP, 1, 0.0)


def tenant(name: str, per_s: float = 1.0) -> Tenant:
    model = KNOWN[name]
    engine = engine_for(model, H100.memory_bytes, "h100", 1, 2)
    step = StepTime(**asdict(roofline(model, H100, engine)))
    return Tenant(model, CHAT, per_s, step, engine, longest_length(CHAT, model))


def test_one_card_three_models() -> None:
    parts = share_card(
        [tenant("Qwen2.5-7B"), tenant("Llama-3.2-3B", 2), tenant("Qwen2.5-0.5B", 3)], H100.memory_bytes, Goal().tpot_s
    )
    assert all(part.fit.fits for part in parts)
    assert sum(part.share for part in parts) == pytest.approx(0.95)
    for part in parts:
        assert 1 < part.slowdown <= 3
        assert 0 < part.active <= 1
        assert part.fit.budget.kv == pytest.approx(
            part.share * H100.memory_bytes - part.fit.budget.weights - part.fit.budget.overhead.total, abs=1
        )


def test_alone_on_a_card_nobody_slows_it_down() -> None:
    (part,) = share_card([tenant("Llama-3.1-8B")], H100.memory_bytes, 0.1)
    assert (part.slowdown, round(part.share, 6)) == (1.0, 0.95)


def test_models_that_do_not_fit_together() -> None:
    parts = share_card([tenant("Qwen2.5-32B"), tenant("Qwen2.5-14B")], H100.memory_bytes, 0.1)
    assert not any(part.fit.fits for part in parts)


def test_models_that_are_too_slow_together() -> None:
    one, two = share_card([tenant("Qwen2.5-7B", 15), tenant("Llama-3.1-8B", 15)], H100.memory_bytes, 0.1)
    assert "beside the others it needs" in one.fit.why_not
    assert "times what it can compute" in two.fit.why_not
