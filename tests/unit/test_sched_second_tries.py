"""What one attempt's end means for the next one: of the same request, and of others for the same model."""

from __future__ import annotations

from sched_support import Bench, leases, policy, spec

from gateway.scheduling.model import OutcomeKind, Reason


def test_a_model_that_worked_in_between_is_not_taken_off_a_worker() -> None:
    bench = Bench(policy(), spec())
    for n in range(6):
        bench.settle(bench.lease(f"no-{n}"), OutcomeKind.MISROUTED, status=404)
        bench.settle(bench.lease(f"yes-{n}"))


def test_a_request_that_must_not_wait_does_not_wait_for_another_try_either() -> None:
    bench = Bench(policy(retries={"budget_ratio": 1.0}), spec("w"), spec("v"))
    one = bench.lease("1", may_queue=False)
    (again,) = leases(bench.settle(one, OutcomeKind.BUSY, retry=True, retry_after_s=2.0))
    assert again.worker != one.worker
    bench.settle(again, OutcomeKind.BUSY, retry=True, retry_after_s=2.0)
    assert bench.reason(one.ticket) is Reason.ATTEMPTS_EXHAUSTED
    assert bench.scheduler.snapshot(bench.now).queued == 0
