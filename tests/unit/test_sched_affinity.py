"""The scheduler sends a prompt where its beginning is, books and charges the rest only, and lets load decide still."""

from __future__ import annotations

from typing import Any

from sched_support import Bench, spec

from gateway.scheduling.model import OutcomeKind, Signal

PROMPT = 4000
HASHES = tuple(range(100, 110))
ENDS = tuple(range(400, 4001, 400))
LONG: dict[str, Any] = {"prompt_tokens": PROMPT, "prefix_hashes": HASHES, "prefix_ends": ENDS}


def fleet(count: int = 4, **changes: Any) -> Bench:
    return Bench(None, *[spec(f"w{number}", max_num_seqs=50, **changes) for number in range(count)])


def test_the_same_beginning_goes_where_it_was_while_that_is_cheaper() -> None:
    bench = fleet()
    first = bench.lease("first", **LONG)
    assert first.held == 0
    bench.scheduler.first_token(first, bench.now)
    for number in range(5):
        lease = bench.lease(f"again-{number}", **LONG)
        assert lease.worker == first.worker
        assert lease.held == PROMPT - 1, "the last token is always computed"
        assert lease.cost.prefill_s < 0.01 * first.cost.prefill_s
        bench.settle(lease, status=200)
    bench.settle(first, status=200)


def test_load_still_decides() -> None:
    bench = fleet()
    workers = {bench.lease(f"r{number}", expected_output=500, **LONG).worker for number in range(40)}
    assert len(workers) > 1


def test_others_go_anywhere() -> None:
    bench = fleet(12)
    workers = set()
    for number in range(30):
        hashes = tuple(1000 * number + one for one in HASHES)
        lease = bench.lease(f"r{number}", prompt_tokens=PROMPT, prefix_hashes=hashes, prefix_ends=ENDS)
        assert lease.held == 0
        workers.add(lease.worker)
        bench.settle(lease, status=200)
    assert len(workers) > 6


def test_tenants_are_charged_for_what_is_computed() -> None:
    bench = fleet(1)
    first = bench.lease("first", **LONG)
    second = bench.lease("second", **LONG)
    assert first.charged - second.charged == PROMPT - 1
    flow = bench.scheduler._tenants.get("t").flow(1)
    bench.settle(first, status=200, prompt_tokens=PROMPT, output_tokens=10)
    before = flow.counter
    bench.settle(second, status=200, prompt_tokens=PROMPT, output_tokens=10)
    assert flow.counter - before == 1 + 2 * 10 - second.charged


def test_a_new_incarnation_holds_nothing_and_a_forgotten_worker_neither() -> None:
    bench = fleet(1)
    bench.settle(bench.lease("a", **LONG), status=200)
    bench.observe(spec("w0", max_num_seqs=50, incarnation="second"))
    lease = bench.lease("b", **LONG)
    assert lease.held == 0
    bench.settle(lease, status=200)
    bench.take(bench.scheduler.forget("w0", bench.now))
    bench.observe(spec("w0", max_num_seqs=50, incarnation="second"))
    assert bench.lease("c", **LONG).held == 0


def test_a_worker_that_failed_is_not_gone_back_to_for_its_cache() -> None:
    bench = fleet(2)
    first = bench.lease("a", **LONG)
    bench.settle(first, OutcomeKind.RESET, retry=True)
    bench.to(bench.now + 60.0)
    again = first.ticket.lease
    assert again is not None
    assert again.worker != first.worker


def test_an_engine_without_a_cache_is_found_out_by_its_reports() -> None:
    bench = fleet(1)
    for number in range(200):
        lease = bench.lease(f"r{number}", **LONG)
        bench.take(bench.scheduler.first_token(lease, bench.now))
        bench.settle(lease, status=200)
        bench.now += 1.0
        bench.observe(spec("w0", max_num_seqs=50), Signal(bench.now, 0, 0, 0, prefix_hits=0))
    assert bench.lease("last", **LONG).held == 0
    silent = fleet(1)
    for number in range(100):
        lease = silent.lease(f"r{number}", **LONG)
        silent.take(silent.scheduler.first_token(lease, silent.now))
        silent.settle(lease, status=200)
        silent.now += 1.0
        silent.observe(spec("w0", max_num_seqs=50), Signal(silent.now, 0, 0, 0))
    assert silent.lease("last", **LONG).held == PROMPT - 1, "who says nothing is believed"


def test_a_session_stays_where_it_was_among_equals_only() -> None:
    bench = fleet(8)
    first = bench.lease("a", session="t\0s")
    bench.settle(first, status=200)
    for number in range(10):
        lease = bench.lease(f"r{number}", session="t\0s")
        assert lease.worker == first.worker
        bench.settle(lease, status=200)
    for number in range(20):
        hashes = tuple(1000 * number + one for one in HASHES)
        bench.lease(f"load-{number}", prompt_tokens=PROMPT, prefix_hashes=hashes, prefix_ends=ENDS, klass=1)
    bench.take(bench.scheduler.drain(first.worker, bench.now))
    assert bench.lease("elsewhere", session="t\0s").worker != first.worker


def test_what_ran_on_an_incarnation_before_says_nothing_of_this_one() -> None:
    bench = fleet(1)
    bench.settle(bench.lease("a", **LONG), status=200)
    old = bench.lease("b", **LONG)
    assert old.claim == PROMPT
    bench.observe(spec("w0", max_num_seqs=50, incarnation="second"), Signal(0.0, 0, 0, 0, prefix_hits=0))
    bench.settle(bench.lease("c", **LONG), status=200)
    bench.take(bench.scheduler.first_token(old, bench.now))
    for number in range(4):
        bench.observe(spec("w0", max_num_seqs=50, incarnation="second"), Signal(number, 0, 0, 0, prefix_hits=0))
    assert bench.lease("d", **LONG).held == PROMPT - 1


def test_answers_in_one_piece_count_and_failures_do_not() -> None:
    for kind, held in ((OutcomeKind.OK, 0), (OutcomeKind.CLIENT_GONE, PROMPT - 1)):
        bench = fleet(1)
        for number in range(200):
            bench.settle(bench.lease(f"r{number}", **LONG), kind)
            bench.now += 1.0
            bench.observe(spec("w0", max_num_seqs=50), Signal(bench.now, 0, 0, 0, prefix_hits=0))
        assert bench.lease("last", **LONG).held == held
