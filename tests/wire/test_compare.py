"""What `headrace loadtest compare` measures is really done, and nothing of it is left behind."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.compare import KINDS, Bench, CompareError, Contender, Kind
from loadtest.processes import _measure
from loadtest.streams import _visit


def test_every_kind_of_load_costs_something_and_all_processes_end(tmp_path: Path):
    with ExitStack() as stack:
        bench = Bench(stack, tmp_path)
        contenders = [bench.headrace()]
        nginx = shutil.which("nginx")
        if nginx is not None:
            contenders.append(bench.nginx(nginx))
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
