"""The words of the engine core: what configuration is refused, and how long a run of steps takes."""

from __future__ import annotations

from random import Random

import pytest
from engine_support import engine

from workers.engines.batch import Run


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"block_size": 0}, "kv_tokens"),
        ({"kv_tokens": 15}, "kv_tokens"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 65}, "max_num_seqs"),
        ({"prefix_unit_tokens": 24}, "prefix_unit_tokens"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        engine(**changes)


def run(first_s: float, growth_s: float, max_steps: int) -> Run:
    return Run(0.0, first_s, growth_s, max_steps, tokens=1, decodes=1, prefills=[], preempted=[])


def test_a_single_step_and_steps_that_do_not_grow() -> None:
    assert run(1.0, 0.5, 1).steps_until(9.0) == 1
    assert run(2.0, 0.0, 10).steps_until(0.0) == 1
    assert [run(2.0, 0.0, 10).steps_until(elapsed) for elapsed in (2.0, 2.1, 4.0, 19.0, 99.0)] == [1, 2, 2, 10, 10]


def test_durations_add_up_and_can_be_inverted() -> None:
    own = run(0.0121, 7.6e-8, 999)
    assert own.duration_s(3) == pytest.approx(sum(own.first_s + i * own.growth_s for i in range(3)))
    rng = Random(5)
    for elapsed in [0.0, own.first_s, own.duration_s(999), 1e9, *[rng.uniform(0, 14) for _ in range(200)]]:
        steps = own.steps_until(elapsed)
        assert 1 <= steps <= own.max_steps
        assert steps == 1 or own.duration_s(steps - 1) < elapsed
        assert steps == own.max_steps or own.duration_s(steps) >= elapsed
