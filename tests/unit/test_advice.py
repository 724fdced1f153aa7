"""Advice about workers: each rule at its threshold, and what it takes to say anything."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import advice
from gateway.advice import ENOUGH, KEPT, RULES, SAMPLE_S, Advice, History, Sample, advise, sample_of
from workers.report import WorkerReport


def samples(count: int = ENOUGH, **fields: Any) -> list[Sample]:
    """So many samples; a list gives a field a value for each of them."""
    return [
        Sample(
            **{
                "at": SAMPLE_S * number,
                "running": 4,
                "waiting": 0,
                "preemptions": 0,
                "kv_usage": 0.5,
                "max_num_seqs": 8,
                "utilization": 0.5,
                "memory": 0.9,
                "ttft_p95_s": 0.2,
                **{name: value[number] if isinstance(value, list) else value for name, value in fields.items()},
            }
        )
        for number in range(count)
    ]


def found(count: int = ENOUGH, **fields: Any) -> list[str]:
    return [one.rule for one in advise("w", "p", samples(count, **fields))]


def test_a_worker_that_is_well_gets_none() -> None:
    assert found() == []
    assert found(KEPT) == []
    assert advise("w", "p", []) == []


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"utilization": 0.29}, ["device_idle"]),
        ({"utilization": 0.31}, []),
        ({"utilization": 0.29, "running": 0}, []),
        ({"utilization": 0.86}, ["device_busy"]),
        ({"utilization": 0.84}, []),
        ({"utilization": None}, []),
        ({"memory": 0.93, "waiting": [0, 0, 0, 1, 2, 3]}, ["memory_full_queue_grows"]),
        ({"memory": 0.93, "waiting": [0, 0, 0, 1, 2, 2]}, []),
        ({"memory": 0.91, "waiting": [0, 0, 0, 1, 2, 3]}, []),
        ({"memory": None, "waiting": [0, 0, 0, 1, 2, 3]}, []),
        ({"waiting": [0, 0, 0, 9, 9, 9]}, ["engine_queue_long"]),
        ({"waiting": [9, 9, 9, 9, 8, 9]}, []),
        ({"waiting": 9, "max_num_seqs": None}, []),
        ({"kv_usage": 0.19}, ["kv_always_low"]),
        ({"kv_usage": [0.1, 0.1, 0.2, 0.1, 0.1, 0.1]}, []),
        ({"kv_usage": 0.0, "running": 0}, []),
        ({"kv_usage": 0.96}, ["kv_always_full"]),
        ({"kv_usage": [1, 1, 1, 1, 1, 0.95]}, []),
        ({"kv_usage": None}, []),
        ({"ttft_p95_s": 2.1, "utilization": 0.2, "running": 0}, ["not_warmed"]),
        ({"ttft_p95_s": 2.1, "utilization": 0.2, "running": 0, "waiting": 1}, []),
        ({"ttft_p95_s": 2.1}, []),
        ({"ttft_p95_s": None, "utilization": 0.2, "running": 0}, []),
        ({"preemptions": [3, 3, 3, 3, 3, 4]}, ["preemptions"]),
        ({"preemptions": 3}, []),
    ],
)
def test_rules_at_their_thresholds(fields: dict[str, Any], rule: list[str]) -> None:
    assert found(**fields) == rule


def test_little_has_been_seen_little_is_said() -> None:
    assert found(ENOUGH - 1, utilization=0.1, kv_usage=0.99) == []
    assert found(2, waiting=9, ttft_p95_s=9.0, utilization=0.1, memory=0.99) == []


def test_an_instance_that_never_uses_its_share() -> None:
    assert found(KEPT, running=1, max_num_seqs=10) == ["unused"]
    assert found(KEPT, running=2, max_num_seqs=10) == []
    assert found(KEPT - 1, running=1, max_num_seqs=10) == []
    assert found(KEPT, running=1, max_num_seqs=None) == []


def test_advice_has_measured_values_threshold_and_change() -> None:
    (one,) = advise("w1", "short-chat", samples(preemptions=[0, 0, 0, 0, 0, 7]))
    assert one == Advice(
        "w1",
        "short-chat",
        "preemptions",
        "7 requests lost their KV and were computed anew in 50 s",
        {"preemptions": 7, "seconds": 50.0},
        {"preemptions": 0},
        "lower max_num_seqs or admission.kv_watermark, or give it more KV memory",
    )
    (waiting,) = advise("w1", "p", samples(utilization=0.1, waiting=1))
    assert "although requests wait" in waiting.message


def test_every_rule_can_speak() -> None:
    spoken = {
        rule
        for fields in (
            {"utilization": 0.1, "kv_usage": 0.1, "ttft_p95_s": 9.0, "running": 1, "max_num_seqs": 10},
            {"utilization": 0.9, "kv_usage": 0.99, "memory": 0.99, "waiting": list(range(10, 10 + KEPT))},
            {"preemptions": list(range(KEPT))},
        )
        for rule in found(KEPT, **fields)
    }
    assert spoken == set(RULES)


def report(worker: str = "w", **fields: Any) -> WorkerReport:
    plain: dict[str, Any] = {
        "id": worker,
        "incarnation": "i1",
        "sequence": 1,
        "url": "http://127.0.0.1:1",
        "engine": "vllm",
        "pool": "p",
        "models": ("m",),
        "max_num_seqs": 8,
    }
    return WorkerReport(**plain | fields)


def test_samples_are_taken_from_reports() -> None:
    full = report(device_used_bytes=90, device_bytes=100, device_utilization=0.4, kv_usage=0.3, running=2)
    assert sample_of(full, 5.0) == Sample(5.0, 2, 0, 0, 0.3, 8, 0.4, 0.9, None)
    assert sample_of(report(device_used_bytes=90), 5.0).memory is None
    assert sample_of(report(device_used_bytes=90, device_bytes=0), 5.0).memory is None


def observed(history: History, seconds: int, **fields: Any) -> None:
    for second in range(seconds):
        history.observe(report(**fields), float(second))


def test_history_thins_reports_out_and_is_bounded() -> None:
    history = History()
    observed(history, 51, kv_usage=0.99)
    assert [one.rule for one in history.advice()] == ["kv_always_full"]
    short = History()
    observed(short, 50, kv_usage=0.99)
    assert short.advice() == []


def test_a_new_incarnation_begins_anew_and_the_gone_are_forgotten() -> None:
    history = History()
    observed(history, 51, kv_usage=0.99)
    history.observe(report(incarnation="i2"), 60.0)
    assert history.advice() == []
    observed(history, 51, worker="x", kv_usage=0.99)
    assert [one.worker for one in history.advice()] == ["x"]
    history.forget("x")
    history.forget("never seen")
    assert history.advice() == []


def test_only_ready_workers_count() -> None:
    history = History()
    observed(history, 100, kv_usage=0.99, state="draining")
    assert history.advice() == []


def test_no_more_workers_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "MAX_WORKERS", 1)
    history = History()
    observed(history, 51, worker="a", kv_usage=0.99)
    observed(history, 51, worker="b", kv_usage=0.99)
    assert [one.worker for one in history.advice()] == ["a"]
