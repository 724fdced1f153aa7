"""Idle workers and requests one after the other: each gets its share, also one that has failed once."""

from __future__ import annotations

from collections import Counter

import pytest
from sched_support import Bench, policy, spec

from gateway.scheduling.model import OutcomeKind

COUNTING = ("power_of_two", "least_requests")


def sixty(algorithm: str, failures: int, seed: int) -> Counter[str]:
    """Where sixty requests went within a second, after so many failures of one worker."""
    names = ("w1", "w2", "w3")
    bench = Bench(policy(balancing={"algorithm": algorithm}), *(spec(name) for name in names), seed=seed)
    for _ in range(failures):
        for _ in range(200):
            if (lease := bench.lease()).worker == "w1":
                break
            bench.settle(lease)
        assert lease.worker == "w1", "it never gets one"
        bench.settle(lease, OutcomeKind.SERVER_ERROR, status=500)
    seen: Counter[str] = Counter()
    for number in range(60):
        bench.to(bench.now + 0.01)
        lease = bench.lease(str(number))
        seen[lease.worker] += 1
        bench.settle(lease)
    return seen


@pytest.mark.parametrize("algorithm", COUNTING)
@pytest.mark.parametrize("failures", [0, 1])
def test_each_gets_its_share_also_after_one_failure(algorithm: str, failures: int) -> None:
    for seed in range(5):
        seen = sixty(algorithm, failures, seed)
        assert all(8 <= seen[name] <= 32 for name in ("w1", "w2", "w3")), seen


@pytest.mark.parametrize("algorithm", COUNTING)
def test_who_fails_again_gets_less(algorithm: str) -> None:
    """It looks idle because it fails fast: that must not draw everything there."""
    assert sixty(algorithm, 2, 1)["w1"] == 0
