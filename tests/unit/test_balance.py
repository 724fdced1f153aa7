"""Each balancer alone, on hand-made workers."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_support import worker

from policies.balance import BALANCERS, TIE, Candidate, Job, least_outstanding_work, pick_lowest
from policies.work import PRESETS, StepTime

A100 = PRESETS["llama3-8b/a100-80"].step
L4 = PRESETS["llama3-8b/l4"].step
JOB = Job(prompt_tokens=1000, output_tokens=100, kv_tokens=1100)


def bench(name: str, step: StepTime = A100, fragile: int = 0, **numbers: float) -> Candidate:
    """A worker with so many streams that a delay of little more than a second breaks."""
    if fragile:
        one = worker(name=name)
        for _ in range(fragile):
            one.slack.enter(0.7)
        made: Candidate = one
        made.step, made.stretch = step, 1.0
    else:
        made = Candidate(name, step)
    made.step_s = 0.012
    for each, number in numbers.items():
        setattr(made, each, number)
    return made


def choose(
    name: str, workers: list[Candidate], factors: list[float] | None = None, job: Job = JOB, seed: int = 1
) -> str:
    index, scores = BALANCERS[name](workers, factors or [1.0] * len(workers), job, Random(seed))
    assert len(scores) == len(workers)
    return workers[index].id


def test_score_is_the_formula() -> None:
    worker = bench("w", base_s=0.5, stretch=1.5, step_s=0.02, crowd=0.3, prefill_scale=2.0)
    _, (score,) = least_outstanding_work([worker], [1.75], JOB, Random(0))
    prefill = A100.prefill_s(1000) * 2.0
    harm = A100.prefill_s(1000)
    crowding = A100.crowding_s(100, 1000)
    assert score == pytest.approx(1.75 * (0.5 + prefill * 1.5 + 0.3 * (harm + crowding)) + 100 * 0.02)


def test_broken_promises_are_delay_too() -> None:
    one = bench("w", stretch=1.5, step_s=0.02, miss_s=4.0, fragile=3)
    _, (score,) = least_outstanding_work([one], [1.75], JOB, Random(0))
    own, crowding = A100.prefill_s(1000) * 1.5, A100.crowding_s(100, 1000)
    broken = one.broken_by(own + crowding)
    assert 0.0 < broken < 3.0
    assert score == pytest.approx(1.75 * (own + 4.0 * broken) + 100 * 0.02)


def test_fragile_streams_are_avoided_even_at_the_price_of_a_wait() -> None:
    fragile, waiting = bench("fragile", miss_s=4.0, fragile=2), bench("waiting", base_s=1.0, miss_s=4.0)
    assert choose("least_outstanding_work", [fragile, waiting], job=Job(20_000, 10, 20_010)) == "waiting"


def test_waiting_work_is_avoided() -> None:
    assert choose("least_outstanding_work", [bench("busy", base_s=2.0), bench("free")]) == "free"


def test_faster_hardware_wins_without_a_weight() -> None:
    assert choose("least_outstanding_work", [bench("l4", step=L4, step_s=0.064), bench("a100")]) == "a100"


def test_another_pool_has_to_be_better_by_the_crossing_penalty() -> None:
    home, other = bench("home", base_s=1.0), bench("other", base_s=0.6)
    assert choose("least_outstanding_work", [home, other], [1.0, 1.75]) == "home"
    home.base_s = 10.0
    assert choose("least_outstanding_work", [home, other], [1.0, 1.75]) == "other"


def test_a_held_prefix_counts_as_done() -> None:
    job = Job(prompt_tokens=30_000, output_tokens=10, kv_tokens=30_010, cached={"warm": 29_000})
    assert choose("least_outstanding_work", [bench("cold"), bench("warm", base_s=0.5)], job=job) == "warm"


def test_what_several_hold_alike_counts_for_each_of_them() -> None:
    job = Job(prompt_tokens=30_000, output_tokens=10, kv_tokens=30_010, cached={"a": 29_000, "b": 29_000, "c": 100})
    benches = [bench("a"), bench("b"), bench("c"), bench("d")]
    _, scores = BALANCERS["least_outstanding_work"](benches, [1.0] * 4, job, Random(1))
    assert scores[0] == scores[1] < scores[2] < scores[3]


def test_kv_beyond_the_knee_repels_and_below_it_does_not_matter() -> None:
    full, half = bench("full", kv_used=9500, kv_capacity=10_000), bench("half", kv_used=5000, kv_capacity=10_000)
    _, scores = least_outstanding_work([full, half, bench("unknown")], [1.0] * 3, JOB, Random(0))
    assert scores[0] == pytest.approx(scores[1] + 20 * (0.95 + 0.11 - 0.9))
    assert scores[1] == scores[2]


def test_round_robin_takes_the_one_chosen_longest_ago() -> None:
    assert choose("round_robin", [bench("a", picked=7), bench("b", picked=3), bench("c", picked=5)]) == "b"


def test_least_requests_counts_and_respects_the_factor() -> None:
    assert choose("least_requests", [bench("a", load=2), bench("b", load=1)]) == "b"
    assert choose("least_requests", [bench("a", load=1), bench("b", load=0)], [1.0, 3.0]) == "a"


def test_power_of_two_takes_the_lesser_of_what_it_drew() -> None:
    workers = [bench(str(n), load=n) for n in range(8)]
    seen = Counter(choose("power_of_two", workers, seed=seed) for seed in range(400))
    assert seen["0"] > seen["3"] > seen["6"]
    assert seen["7"] == 0
    assert choose("power_of_two", [bench("only")]) == "only"


def test_power_of_two_takes_what_is_nearly_equal_for_equal() -> None:
    """What is left of a report that fades is no reason to pass a worker over, a factor is."""
    rng = Random(3)
    workers = [bench("a", load=0.015), bench("b", load=0.007), bench("c")]
    seen = Counter(BALANCERS["power_of_two"](workers, [1.0] * 3, JOB, rng)[0] for _ in range(60))
    assert all(10 <= seen[index] <= 30 for index in range(3)), seen
    assert {BALANCERS["power_of_two"](workers[:2], [1.0, 1.01], JOB, rng)[0] for _ in range(20)} == {0}


def test_equals_share_the_load() -> None:
    """Sixty idle decisions over three workers spread: none starves, none takes all."""
    rng = Random(5)
    seen = Counter(pick_lowest([1.0, 1.0, 1.01], [1.0] * 3, rng) for _ in range(60))
    assert all(10 <= seen[index] <= 30 for index in range(3))
    assert pick_lowest([1.0, 1.03], [1.75, 1.0], rng) == 0
    assert {pick_lowest([1.0, 1.01, 1.0], [1.75, 1.0, 1.75], rng) for _ in range(20)} == {1}  # home before borrowed


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 1.01, 1.02, 1.03, 2.0, inf]), st.sampled_from([1.0, 1.75])), min_size=1),
    st.integers(0, 1000),
)
def test_one_of_the_equals_is_drawn_as_from_a_list_of_them(workers: list[tuple[float, float]], seed: int) -> None:
    scores, factors = [score for score, _ in workers], [factor for _, factor in workers]
    near = [at for at, score in enumerate(scores) if score <= min(scores) * TIE]
    equals = [at for at in near if factors[at] == min(factors[one] for one in near)]
    drawn = equals[int(Random(seed).random() * len(equals))]
    assert pick_lowest(scores, factors, Random(seed)) == (near[0] if len(near) == 1 else drawn)


def test_a_worker_that_has_lost_is_not_asked_what_would_break_there() -> None:
    lost = bench("lost", base_s=100.0, miss_s=4.0, fragile=1000)
    choice, scores = least_outstanding_work([bench("near"), lost], [1.0, 1.0], JOB, Random(0))
    assert choice == 0
    assert scores[1] == pytest.approx(100.0 + A100.prefill_s(1000) + 100 * 0.012)


@pytest.mark.parametrize("seed", range(20))
def test_skipping_the_lost_changes_no_choice(seed: int) -> None:
    rng = Random(seed)
    workers = [
        bench(str(n), base_s=rng.expovariate(2), miss_s=4.0, fragile=rng.choice((0, 1, 3)), crowd=rng.random() / 10)
        for n in range(12)
    ]
    _, scores = least_outstanding_work(workers, [1.0] * 12, JOB, Random(0))
    alone = [least_outstanding_work([worker], [1.0], JOB, Random(0))[1][0] for worker in workers]
    assert scores.index(min(scores)) == alone.index(min(alone))
    assert all(one <= whole for one, whole in zip(scores, alone, strict=True))


def test_a_session_stays_on_its_worker_among_equals_only() -> None:
    job = Job(JOB.prompt_tokens, JOB.output_tokens, JOB.kv_tokens, last="c")
    equals = [bench("a"), bench("b"), bench("c")]
    assert {choose("least_outstanding_work", equals, job=job, seed=seed) for seed in range(20)} == {"c"}
    busy = [bench("a"), bench("b"), bench("c", base_s=1.0)]
    assert "c" not in {choose("least_outstanding_work", busy, job=job, seed=seed) for seed in range(20)}
    borrowed = [1.0, 1.0, 1.0001]
    assert "c" not in {choose("least_outstanding_work", equals, borrowed, job, seed) for seed in range(20)}
    gone = [bench("a"), bench("b")]
    assert {choose("least_outstanding_work", gone, job=job, seed=seed) for seed in range(20)} == {"a", "b"}
