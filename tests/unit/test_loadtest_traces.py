"""Traces: what is in the files, and what each operation does to times."""

from itertools import pairwise
from random import Random

import pytest

from loadtest.traces import (
    MEASURED,
    TRACES,
    TraceRequest,
    at_rate,
    jitter,
    load,
    load_measured,
    merge,
    rate_per_s,
    window,
)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("azure2023_conv", 19_366),
        ("azure2023_code", 8_819),
        ("mooncake_conversation", 12_031),
        ("servegen_m-mid_sampled", 29_390),
    ],
)
def test_every_trace_loads_whole_and_in_order(name: str, rows: int) -> None:
    trace = load(name)
    assert len(trace) == rows
    assert trace[0].arrival_s == 0.0
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(trace))
    assert all(request.prompt_tokens >= 1 and request.output_tokens >= 1 for request in trace)


def test_mooncake_carries_prefix_hashes_and_servegen_tenants() -> None:
    first, second = load("mooncake_conversation")[:2]
    assert first.hashes == tuple(range(14))
    assert second.hashes == (0, *range(14, 28))
    assert load("servegen_m-mid_sampled")[0].tenant == "14"


def test_an_unknown_trace_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="azure2023_conv"):
        load("azure")
    assert "azure" not in TRACES


@pytest.mark.parametrize("name", MEASURED)
def test_measured_runs_have_their_300_requests(name: str) -> None:
    requests = load_measured(name)
    assert len(requests) == 300
    assert all(request.e2e_s >= request.ttft_s > 0 for request in requests)


def requests_at(*times: float) -> list[TraceRequest]:
    return [TraceRequest(time, 10, 10) for time in times]


def test_at_rate_changes_the_time_axis_only() -> None:
    trace = at_rate(requests_at(10, 12, 14), 1.0)
    assert [request.arrival_s for request in trace] == [0, 1, 2]
    assert rate_per_s(trace) == 1.0


def test_jitter_moves_later_by_less_than_its_width_and_keeps_order() -> None:
    before = requests_at(*[0.0] * 50, *[3.0] * 50)
    after = jitter(before, 3.0, Random(1))
    assert [request.arrival_s for request in after] == sorted(request.arrival_s for request in after)
    assert all(0 <= request.arrival_s < 6 for request in after)
    assert after == jitter(before, 3.0, Random(1)) != jitter(before, 3.0, Random(2))


def test_a_window_counts_from_its_start_and_wraps_at_the_end() -> None:
    trace = requests_at(0, 1, 2, 9, 10)
    assert [request.arrival_s for request in window(trace, 1, 2)] == [0, 1]
    assert [request.arrival_s for request in window(trace, 9, 3)] == [0, 1, 1, 2]


def test_merge_orders_by_arrival() -> None:
    assert [request.arrival_s for request in merge(requests_at(0, 5), requests_at(1, 6))] == [0, 1, 5, 6]
