"""The simulated engine against real vLLM 0.19 runs on two cards."""

from dataclasses import replace

import pytest

from loadtest.fidelity import fidelity, percentile, replay
from loadtest.traces import load_measured
from policies.work import PRESETS


@pytest.mark.parametrize(
    ("name", "mean", "tail"),
    [
        ("rtx4090", 0.02, 0.04),  # KV-bound: 191 preemptions decide its figures
        ("rtxpro6000", 0.08, 0.08),  # bound by max_num_seqs
    ],
)
def test_replay_of_a_measured_run(name: str, mean: float, tail: float) -> None:
    real, simulated = fidelity(name)
    error = real.error_of(simulated)
    for figure in ("ttft_mean", "tpot_mean", "makespan"):
        assert abs(error[figure]) <= mean, f"{figure} {error[figure]:+.1%}"
    for figure in ("ttft_p99", "tpot_p99"):
        assert abs(error[figure]) <= tail, f"{figure} {error[figure]:+.1%}"


def test_a_wrong_preset_would_be_noticed() -> None:
    """The margins above are narrow enough to tell a card from a slightly faster one."""
    measured = load_measured("rtx4090")
    preset = PRESETS["llama3-8b/rtx4090"]
    faster = replay(measured, replace(preset, step=replace(preset.step, c_kv=preset.step.c_kv * 0.85)))
    assert max(request.arrival_s + request.e2e_s for request in faster) < 0.98 * 183.57


def test_a_preset_without_kv_size_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="KV"):
        replay([], replace(PRESETS["llama3-8b/rtx4090"], kv_tokens=None))


def test_percentile_of_none_and_of_some() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(1, 101)), 0.99) == 99
