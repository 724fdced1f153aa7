"""What `headrace loadtest compare` measures is really done, and nothing of it is left behind."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.compare import KINDS, Bench, CompareError, Contender, Kind, verdicts
from loadtest.peers import PEERS, find
from loadtest.processes import _measure
from loadtest.streams import _visit


def test_every_kind_of_load_costs_something_and_all_processes_end(tmp_path: Path):
    with ExitStack() as stack:
        bench = Bench(stack, tmp_path)
        contenders = [bench.headrace()]
        for peer in PEERS:
            command = find(peer, {})
            if command is not None:
                contenders.append(bench.peer(peer, command))
        for contender in contenders:
            for kind in KINDS:
                few = Kind(kind.name, 4, kind.body_bytes, kind.stream, kind.per, kind.most)
                assert bench.cost(few, contender, 0.5) > 0
        # A contender that refuses is no contender.
        with pytest.raises(CompareError):
            bench.cost(KINDS[0], Contender(contenders[0].pid, contenders[0].port, "hr_wrong"), 0.2)
    for contender in contenders:
        with pytest.raises(ProcessLookupError):
            os.kill(contender.pid, 0)


def test_two_processes_are_measured_with_their_spread(tmp_path: Path):
    with ExitStack() as stack:
        run = _measure(stack, tmp_path, 2, 0.5)
    assert run.per_s > 0
    assert run.cpu_s > 0
    assert 0.5 <= run.most < 1.0, "both of them worked"


def test_a_visitor_times_requests_and_counts_chunks_and_faults(tmp_path: Path):
    with ExitStack() as stack:
        bench = Bench(stack, tmp_path)
        ours = bench.headrace()
        for to in (Contender(0, bench.engine), ours):
            paced = _visit(bench, to, 1.0, per_s=40.0)
            assert paced["faults"] == 0
            assert 20 <= paced["answers"] <= 40
            assert 0 < paced["p50_ms"] <= paced["p99_ms"]
            held = _visit(bench, to, 1.0, streams=5, opening_s=0.1)
            assert held["faults"] == 0
            assert held["answers"] == 5
            assert held["chunks_per_s"] > 0
        assert held["resident_bytes"] > 0
        assert _visit(bench, Contender(0, ours.port, "hr_wrong"), 0.5, streams=2)["faults"] >= 2


def test_a_request_must_cost_at_most_twice_nginx_and_less_than_any_router():
    requests, chunks = KINDS[0], KINDS[2]
    least = {"headrace": 3.0, "nginx": 1.4, "envoy": 2.9, "vllm-router": 4.0}
    assert verdicts(requests, least)[0] == ("headrace", 3.0, "s CPU; at most 2.8000, 2.0 x nginx", False)
    assert verdicts(requests, {**least, "nginx": 1.6})[0] == ("headrace", 3.0, "s CPU; at most 2.9000, envoy", False)
    assert verdicts(requests, {**least, "headrace": 2.8})[0][3]
    assert verdicts(chunks, {**least, "headrace": 1.5})[0] == (
        "headrace", 1.5, "s CPU; at most 1.6800, 1.2 x nginx", True
    )  # fmt: skip
    assert verdicts(chunks, {"headrace": 9.0, "envoy": 1.0}) == [
        ("headrace", 9.0, "s CPU", True),
        ("envoy", 1.0, "s CPU", True),
    ]


def test_a_peer_that_nobody_knows_or_that_cannot_be_run_is_refused():
    from click.testing import CliRunner

    from loadtest.cli import loadtest

    done = CliRunner().invoke(loadtest, ["compare", "--peer", "haproxy=/bin/true"])
    assert done.exit_code == 2
    assert "'haproxy=/bin/true' is none of nginx=COMMAND, envoy=COMMAND" in done.output
    done = CliRunner().invoke(loadtest, ["compare", "--peer", "envoy=/nowhere/envoy"])
    assert done.exit_code == 2
    assert "envoy: '/nowhere/envoy' is no command that can be run" in done.output
