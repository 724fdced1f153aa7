"""Recorded traffic as it is to be sent: parts, rates, files."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import recorded
from loadtest.recorded import DEFAULT_SECONDS, MAX_REQUESTS, at_rate, at_scale, laps, read_trace
from loadtest.traces import TraceRequest
from loadtest.workload import Workload, WorkloadError

TRACE = Workload("t", tuple(TraceRequest(float(at), 10 + at, 5) for at in range(11)))  # one a second, 0 … 10


def test_at_the_recorded_pace() -> None:
    seconds, found = at_scale(TRACE, 1.0, seconds=5.0)
    assert (seconds, [one.arrival_s for one in found]) == (5.0, [0.0, 1.0, 2.0, 3.0, 4.0])


def test_a_multiple_of_it() -> None:
    _, found = at_scale(TRACE, 2.0, seconds=3.0)
    assert [one.arrival_s for one in found] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


def test_all_of_a_short_trace_or_a_minute_of_a_long_one() -> None:
    seconds, found = at_scale(TRACE, 1.0, seconds=None)
    assert len(found) == 11
    assert seconds == pytest.approx(10.0)
    seconds, _ = at_scale(read_trace("azure2023_conv"), 1.0, seconds=None)
    assert seconds == DEFAULT_SECONDS


def test_a_trace_that_is_too_short_goes_on_at_its_beginning() -> None:
    _, found = at_scale(TRACE, 1.0, seconds=25.0)
    assert [one.arrival_s for one in found] == [float(at) for at in range(25)]
    assert [one.prompt_tokens for one in found] == [10 + at % 11 for at in range(25)]


def test_the_beginning_is_left_out() -> None:
    _, found = at_scale(TRACE, 1.0, seconds=2.0, skip_s=3.0)
    assert [(one.arrival_s, one.prompt_tokens) for one in found] == [(0.0, 13), (1.0, 14)]


@pytest.mark.parametrize("skip_s", [10.0, 11.0, -1.0])
def test_not_all_of_it_can_be_left_out(skip_s: float) -> None:
    with pytest.raises(WorkloadError, match="t is 10 s long"):
        next(laps(TRACE, skip_s))


def test_a_part_without_requests() -> None:
    with pytest.raises(WorkloadError, match=r"no request in 0\.1 s from its second 3\.5 on"):
        at_scale(TRACE, 1.0, seconds=0.1, skip_s=3.5)


def test_as_many_as_asked_for() -> None:
    seconds, found = at_scale(TRACE, 1.0, seconds=9.0, limit=3)
    assert (seconds, len(found)) == (3.0, 3)
    seconds, found = at_rate(TRACE, 2.0, seconds=9.0, limit=3)
    assert (seconds, len(found)) == (1.5, 3)
    assert len(at_rate(TRACE, 2.0, seconds=2.0, limit=300)[1]) == 4


@given(st.floats(0.01, 50), st.floats(1, 60))
def test_a_rate_is_exact_whatever_the_trace(per_s: float, seconds: float) -> None:
    lasts, found = at_rate(TRACE, per_s, seconds=seconds)
    assert lasts == seconds
    assert len(found) == max(1, round(per_s * seconds))
    times = [one.arrival_s for one in found]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] < seconds


def test_a_higher_rate_has_the_same_requests_and_more() -> None:
    few, many = (at_rate(TRACE, per_s, seconds=4.0)[1] for per_s in (1.0, 3.0))
    assert [one.prompt_tokens for one in many][: len(few)] == [one.prompt_tokens for one in few]


def test_requests_of_one_moment_come_at_even_distances() -> None:
    burst = Workload("b", (*(TraceRequest(0.0, 1, 1) for _ in range(9)), TraceRequest(5.0, 1, 1)))
    assert [one.arrival_s for one in at_rate(burst, 2.0, seconds=2.0)[1]] == [0.0, 0.5, 1.0, 1.5]


def test_more_than_can_be_remembered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkloadError, match=f"more than {MAX_REQUESTS} requests"):
        at_rate(TRACE, 1e5, seconds=100.0)
    monkeypatch.setattr(recorded, "MAX_REQUESTS", 5)
    with pytest.raises(WorkloadError, match="more than 5 requests; ask for fewer seconds"):
        at_scale(TRACE, 1.0, seconds=9.0)


def test_the_traces_bring_their_prefixes() -> None:
    found = list(islice(laps(read_trace("mooncake_conversation"), 0.0), 100))
    assert all(one.hashes for one in found)


def lines(tmp_path: Path, *rows: object, name: str = "t.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def row(at_ms: int, **more: object) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": 600, "output_length": 3, **more}


def test_json_lines_as_mooncake_has_them(tmp_path: Path) -> None:
    found = read_trace(lines(tmp_path, row(3000, hash_ids=[4, 5]), "", row(1000, session_id="x"))).recorded
    assert [(one.arrival_s, one.hashes, one.session) for one in found] == [(0.0, (), "x"), (2.0, (4, 5), "")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: needs numbers for timestamp"),
        ("[]", "line 2: needs numbers"),
        ({"timestamp": 0}, "line 2: needs numbers"),
        (row(-5), "line 2: timestamp from 0"),
        (row(5, input_length=0), "line 2: timestamp from 0, lengths from 1"),
        (row(5, hash_ids=[1, 2, 3]), "line 2: at most 2 hash_ids for a prompt of 600 tokens, got 3"),
        (row(5, hash_ids=["x"]), "line 2: needs numbers"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, bad: object, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read_trace(lines(tmp_path, row(0), bad))


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_ROWS", 2)
    with pytest.raises(WorkloadError, match="more than 2 lines"):
        read_trace(lines(tmp_path, row(0), row(1), row(2)))
    monkeypatch.setattr(recorded, "MAX_LINE_CHARS", 10)
    with pytest.raises(WorkloadError, match="line 1: is longer than 10"):
        read_trace(lines(tmp_path, row(0), row(1)))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="at least two requests"):
        read_trace(lines(tmp_path, row(0)))
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_trace(str(binary))
    with pytest.raises(WorkloadError, match="is no file and no trace"):
        read_trace(str(tmp_path / "none.jsonl"))


HEAD = "arrival_s,input_tokens,output_tokens,session,hash_runs_blk512"


def test_a_csv_file_may_say_what_prompts_have_in_common(tmp_path: Path) -> None:
    found = read_trace(lines(tmp_path, HEAD, "0,600,3,a,", "1,1200,3,,0 14-15", name="t.csv")).recorded
    assert [(one.session, one.hashes) for one in found] == [("a", ()), ("", (0, 14, 15))]


@pytest.mark.parametrize("runs", ["x", "5-4", "0-9", "1 2 3", "0-1000000000", "5-1000000000 1000000000-0"])
def test_faulty_blocks_are_named(tmp_path: Path, runs: str) -> None:
    with pytest.raises(WorkloadError, match="line 2: hash_runs_blk512: must be ids such as 0 14-16"):
        read_trace(lines(tmp_path, HEAD, f"0,600,3,,{runs}", "1,600,3,,", name="t.csv"))
