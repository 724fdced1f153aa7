"""Replaying recorded traffic: both policies meet the same requests, and what differs is told."""

from typing import Any

import orjson
import pytest

from gateway import traffic as record
from loadtest import what_if
from loadtest.hour import an_hour
from loadtest.what_if import InputError, read_traffic, replay
from policies.endpoints import Endpoint

WORKERS = [
    {
        "id": "s1",
        "pool": "short-chat",
        "models": ["tiny"],
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "kv_tokens": 65536,
    },
    {"id": "l1", "pool": "long-context", "models": ["tiny"], "max_model_len": 32768, "max_num_seqs": 8},
]
POOLS = "pools: {short-chat: {max_budget_tokens: 1000}, long-context: {}}\n"


def line(at: float, **changes: Any) -> bytes:
    usual: dict[str, Any] = {
        "at": at,
        "tenant": "acme",
        "asked_class": None,
        "class": "standard",
        "pool": "short-chat",
        "model": "tiny",
        "endpoint": "chat",
        "stream": True,
        "prompt_tokens": 500,
        "max_output_tokens": 100,
        "sequences": 1,
        "output_tokens": 50,
        "session": "",
        "prefix": [],
        "outcome": "ok",
        "ttft_s": 0.1,
        "duration_s": 1.0,
    }
    return orjson.dumps([{**usual, **changes}[name] for name in what_if.FIELDS])


def what(after: str, lines: list[bytes], before: str = POOLS) -> dict[str, Any]:
    return replay({"before": before, "after": after, "workers": WORKERS}, lines)


def test_the_fields_are_those_that_the_gateway_writes():
    assert what_if.FIELDS == record.FIELDS


def test_the_same_policy_changes_nothing():
    lines = [line(100.0 + number / 5) for number in range(50)]
    found = what(POOLS, lines)
    assert (found["requests"], found["moved"], found["moves"]) == (50, 0, [])
    assert found["before"] == found["after"]
    assert found["before"]["all"]["goodput"] == 1.0
    assert found["seconds"] == pytest.approx(9.8)
    assert found["recorded"]["ttft_p50_s"] == 0.1
    assert found["notes"]


def test_requests_that_move_are_counted_by_where_they_went():
    lines = [line(100.0 + number) for number in range(10)]
    found = what("pools: {short-chat: {max_budget_tokens: 500}, long-context: {}}\n", lines)
    assert found["moves"] == [{"from": "short-chat", "to": "long-context", "requests": 10}]
    assert set(found["after"]["pools"]) == {"long-context"}
    assert found["after"]["kv_peak"]["short-chat"] == 0.0


def test_requests_that_nobody_takes_any_more():
    found = what("pools: {elsewhere: {}}\n", [line(1.0), line(2.0)])
    assert found["after"]["rejects"] == {"no_healthy_worker": 2}
    assert found["after"]["all"]["goodput"] == 0.0
    assert found["moves"][0]["to"] == "rejected: no_healthy_worker"


def test_a_class_that_is_gone_is_refused():
    after = POOLS + "classes: [{name: standard}]\ntenants: {}\n"
    found = what(after, [line(1.0, asked_class="batch"), line(2.0)])
    assert found["after"]["rejects"] == {"invalid_priority": 1}
    assert set(found["after"]["classes"]) == {"standard", "none"}


def test_a_class_without_a_success_has_no_latencies():
    found = what("pools: {elsewhere: {}}\n", [line(1.0)])
    before, after = (found[side]["classes"]["standard"] for side in ("before", "after"))
    assert (before["ttft_p50_s"] > 0, before["rejected"]) == (True, 0)
    assert (after["ttft_p50_s"], after["ttft_p99_s"], after["tpot_p50_s"], after["rejected"]) == (None, None, None, 1)


def test_figures_by_class_and_tenant():
    lines = [line(1.0, tenant="a"), line(2.0, tenant="b", asked_class="interactive"), line(3.0, endpoint="embeddings")]
    found = what(POOLS, lines)
    assert set(found["before"]["tenants"]) == {"a", "b", "acme"}
    assert set(found["before"]["classes"]) == {"standard", "interactive"}


def test_what_is_no_request_is_left_out():
    odd = [b"", b"null", b"[1]", b'{"x": 1}', line(1.0, endpoint="none"), line(1.0, prompt_tokens="x")]
    assert len(read_traffic([*odd, line(2.0)])) == 1
    with pytest.raises(InputError, match="no recorded traffic"):
        what(POOLS, odd)
    with pytest.raises(InputError, match="no workers"):
        replay({"before": POOLS, "after": POOLS, "workers": []}, [line(1.0)])


def test_a_header_says_which_fields_there_are():
    fields = [*what_if.FIELDS, "new"]
    header = orjson.dumps({"headrace_traffic": 2, "fields": fields})
    longer = orjson.dumps([*orjson.loads(line(7.0)), "more"])
    (found,) = read_traffic([header, longer, line(8.0)])
    assert (found.arrival_s, found.endpoint) == (0.0, Endpoint.CHAT)


def test_outputs_that_were_not_recorded_are_the_tenants_usual():
    lines = [line(1.0, output_tokens=10), line(2.0, output_tokens=30), line(3.0, output_tokens=20)]
    lines += [line(4.0, output_tokens=None), line(5.0, output_tokens=None, tenant="new", max_output_tokens=7)]
    assert [one.output_tokens for one in read_traffic(lines)] == [10, 30, 20, 20, 7]


def test_requests_are_replayed_by_arrival_and_bounded(monkeypatch):
    monkeypatch.setattr(what_if, "MAX_REQUESTS", 3)
    lines = [line(5.0), line(3.0), line(4.0), line(1.0)]
    assert [one.arrival_s for one in read_traffic(lines)] == [0.0, 1.0, 2.0]


def test_the_hour_that_is_measured_is_traffic_like_the_gateways():
    """`make bench` says what an hour costs; here a few seconds of it, which both policies must really have replayed."""
    spent, found = an_hour(20.0)
    assert spent > 0
    assert 300 < found["requests"] < 500
    assert 0 < found["moved"] < found["requests"]
    assert found["before"]["rejects"] == {}
    assert set(found["before"]["classes"]) == {"interactive", "standard", "batch"}


@pytest.mark.parametrize(
    "odd",
    [
        {"output_tokens": 10**9, "max_output_tokens": None},
        {"prompt_tokens": 10**18},
        {"prompt_tokens": 65_536},
        {"prompt_tokens": -5},
        {"sequences": 10**9},
        {"prefix": "x"},
        {"tenant": [1]},
        {"model": None},
    ],
    ids=str,
)
def test_one_odd_record_does_not_end_the_simulation(odd):
    """A record of a fleet with more memory, or one that somebody wrote by hand."""
    for workers in (WORKERS, [{**one, "max_model_len": None} for one in WORKERS]):
        head = {"before": POOLS, "after": POOLS, "workers": workers}
        assert replay(head, [line(1.0), line(2.0, **odd), line(3.0)])["requests"] >= 2


@pytest.mark.parametrize("at", [1e308, 1e12, -1e18, 86_500.0])
def test_a_record_of_ages_is_refused(at):
    with pytest.raises(InputError, match="1 is the most that is replayed"):
        what(POOLS, [line(1.0), line(at)])
