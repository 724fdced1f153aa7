"""Traffic for plans: traces, files, percentiles, rates."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import workload
from loadtest.workload import (
    Percentiles,
    WorkloadError,
    from_percentiles,
    named_or_file,
    parse_percentiles,
    rate_of_concurrency,
)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "traffic.csv"
    path.write_text(text)
    return str(path)


def test_a_file_is_a_trace(tmp_path: Path) -> None:
    found = named_or_file(
        written(tmp_path, "arrival_s,input_tokens,output_tokens,more\n2,30,4,x\n0,10,2,x\n1,20,3,x\n")
    )
    assert found.lengths == [(10, 2), (20, 3), (30, 4)]
    assert found.own_per_s == pytest.approx(1.0)
    assert len(found.sample(2.0, 10.0)) >= 20


def test_a_recorded_trace_has_a_rate_of_its_own_and_any_other() -> None:
    found = named_or_file("mooncake_conversation")
    assert found.own_per_s == pytest.approx(3.4, rel=0.05)
    assert len(found.lengths) <= workload.SAMPLES * 2
    assert len(found.sample(10.0, 60.0)) == pytest.approx(600, rel=0.3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "line 2: needs numbers for arrival_s, input_tokens, output_tokens"),
        ("arrival_s,input_tokens,output_tokens\nx,1,1\n", "line 2: needs numbers"),
        ("arrival_s,input_tokens,output_tokens\n1,0,1\n", "line 2: arrival_s from 0, tokens from 1 to 10000000"),
        ("arrival_s,input_tokens,output_tokens\nnan,1,1\n", "line 2: arrival_s from 0"),
        ("arrival_s,input_tokens,output_tokens\n1,1,1\n", "needs at least two requests at different times"),
        ("\0", "traffic.csv"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(WorkloadError, match=told):
        named_or_file(written(tmp_path, text))


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MAX_ROWS", 2)
    text = "arrival_s,input_tokens,output_tokens\n" + "1,1,1\n" * 3
    with pytest.raises(WorkloadError, match="has more than 2 rows"):
        named_or_file(written(tmp_path, text))


def test_bytes_that_are_no_text_and_names_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadError, match="cannot be read"):
        named_or_file(str(tmp_path / "x.csv"))
    with pytest.raises(WorkloadError, match="is no file and no trace; there are azure2023_conv"):
        named_or_file("nothing")


@given(
    st.lists(st.integers(1, 100_000), min_size=3, max_size=3).map(sorted),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_percentiles_are_met_and_lengths_rise(points: list[int], one: float, two: float) -> None:
    found = Percentiles(*points)
    assert [found.at(share) for share in (0.5, 0.9, 0.99)] == pytest.approx(points, abs=1)
    low, high = sorted((one, two))
    assert 1 <= found.at(low) <= found.at(high) <= max(1, points[2])


def test_drawn_traffic_has_its_percentiles() -> None:
    found = from_percentiles(Percentiles(1000, 3000, 8000), Percentiles(100, 400, 900), Random(1))
    prompts = sorted(prompt for prompt, _ in found.lengths)
    assert prompts[len(prompts) // 2] == pytest.approx(1000, rel=0.1)
    assert prompts[len(prompts) * 9 // 10] == pytest.approx(3000, rel=0.1)
    assert found.own_per_s == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("text", ["", "1,2", "1,2,x", "0,1,2", "3,2,1", "1,2,3,4", "-1,2,3"])
def test_percentiles_that_are_none(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse_percentiles(text)
    assert parse_percentiles("1, 2,3") == Percentiles(1, 2, 3)


def test_a_rate_from_how_many_are_in_flight() -> None:
    assert rate_of_concurrency([(10, 100), (10, 300)], 44, 2.0, 0.1) == pytest.approx(2.0)
