"""The step-time model: the formula, its safety for any input, and the presets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.work import DEFAULT_PRESET, PRESETS, USUAL_BATCH, StepTime, prefill_pairs, preset_for

STEP = StepTime(t0=1.0, c_seq=2.0, W=3.0, c_tok=4.0, c_kv=5.0, c_pair=6.0, c_comm=7.0)
any_int = st.integers(min_value=-(10**400), max_value=10**400)


def test_step_is_the_formula_term_by_term() -> None:
    assert STEP.step_s(0, 0, 0, 0.0) == 1 + 3
    assert STEP.step_s(1, 2, 3, 4.0) == 1 + 2 * 2 + 5.0 + 5 * 3 + 6 * 4 + 7 * 1  # sqrt(3² + 4²) = 5


def test_published_point_of_the_knee_is_met() -> None:
    """A100, 8B, 256 tokens: 19.7 ms measured for the matrix products, where max() of the two roofs says 17."""
    a100 = PRESETS["llama3-8b/a100-80"].step
    assert a100.step_s(256, 0, 0) - a100.t0 == pytest.approx(0.0200, rel=0.02)


def test_prefill_in_two_pieces_costs_what_it_costs_in_one() -> None:
    whole = STEP.prefill_s(3000, 0)
    assert STEP.prefill_s(1000, 0) + STEP.prefill_s(2000, 1000) == pytest.approx(whole)
    assert prefill_pairs(3000) == 3000 * 3000 / 2


def test_cached_tokens_cost_only_the_attention_over_them() -> None:
    assert STEP.prefill_s(0, 5000) == 0.0
    assert STEP.prefill_s(10, 100) > STEP.prefill_s(10, 0)


def test_decode_step_counts_each_sequence_once() -> None:
    assert STEP.decode_step_s(4, 100) == STEP.step_s(4, 4, 100, 0.0)
    assert STEP.decode_seconds(10, 0.5) == 5.0


def test_crowding_grows_with_output_and_context() -> None:
    assert STEP.crowding_s(0, 1000) == 0.0
    assert STEP.crowding_s(2, 10) == pytest.approx(2 * (2 + 0.3 * 4 + 5 * 11))
    assert STEP.chunk_s(10) == 1 + 4 * 10


@given(any_int, any_int, any_int, st.floats(allow_nan=True, allow_infinity=True))
def test_no_input_gives_a_negative_or_infinite_time(a: int, b: int, c: int, pairs: float) -> None:
    for preset in PRESETS.values():
        step = preset.step
        times = (
            step.step_s(a, b, c, pairs),
            step.decode_step_s(a, b),
            step.prefill_s(a, b),
            step.decode_seconds(a, 0.01),
            step.crowding_s(a, b),
            step.occupancy_s(a, b),
            step.chunk_s(a),
        )
        assert all(math.isfinite(t) and t >= 0.0 for t in times)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_work_never_takes_less_time(a: int, b: int, more: int) -> None:
    step = PRESETS[DEFAULT_PRESET].step
    assert step.prefill_s(a + more, b) >= step.prefill_s(a, b)
    assert step.decode_step_s(a + more, b) >= step.decode_step_s(a, b)


def test_occupancy_is_prefill_and_a_part_of_each_step() -> None:
    each = STEP.W / USUAL_BATCH + STEP.c_seq + STEP.c_kv * (100 + 20 / 2)
    assert STEP.occupancy_s(100, 20) == pytest.approx(STEP.prefill_s(100) + 20 * each)
    assert STEP.occupancy_s(100, 0) == STEP.prefill_s(100)


def test_unknown_names_get_the_default_preset() -> None:
    assert preset_for(None) is PRESETS[DEFAULT_PRESET]
    assert preset_for("no/such-card") is PRESETS[DEFAULT_PRESET]
    assert preset_for("llama3-8b/l4") is PRESETS["llama3-8b/l4"]


def test_every_row_says_where_it_comes_from() -> None:
    assert all(preset.status for preset in PRESETS.values())
