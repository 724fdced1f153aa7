"""Metrics: the right sums, a bounded number of series whatever clients send, and documentation that is current."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import FAMILIES, REDIS_ERRORS, REQUESTS, Metrics, reference
from gateway.records import RequestRecord, Terminal
from gateway.scheduling.model import WorkerState
from gateway.scheduling.snapshot import FleetSnapshot, QueueSnapshot, WorkerSnapshot
from gateway.series import MAX_SERIES, Counts, Family, Histograms, Kind
from policies.document import Policy


def made(**known: object) -> RequestRecord:
    record = RequestRecord("r1", "POST", "/v1/chat/completions", "127.0.0.1")
    usual = {
        "endpoint": "chat",
        "tenant": "acme",
        "class_name": "standard",
        "pool": "short-chat",
        "outcome": Terminal.OK,
        "attempts": 1,
        "status": 200,
    }
    for name, value in {**usual, **known}.items():
        setattr(record, name, value)
    return record


def metrics() -> Metrics:
    counted = Metrics()
    counted.adopt(Policy())
    counted.know_worker("w1")
    return counted


def finished(counted: Metrics, record: RequestRecord) -> None:
    counted.tally(record).finished(record)


def read(counted: Metrics, accept: str = "text/plain") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = counted.expose(accept)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(counted: Metrics, name: str, **labels: str) -> float:
    return read(counted)[(name, tuple(sorted(labels.items())))]


def test_a_retried_request_counts_once():
    """BR-11-05: requests by final outcome, attempts apart, tokens once."""
    counted = metrics()
    counted.attempt("short-chat", "w1", "reset")
    counted.attempt("short-chat", "w1", "reset")
    counted.attempt("short-chat", "w2", "ok")
    finished(counted, made(attempts=3, prompt_tokens=10, output_tokens=5))
    finished(counted, made(attempts=3, outcome=Terminal.UPSTREAM_ERROR))
    finished(counted, made(attempts=0, outcome=Terminal.CANCELLED, pool="", class_name=""))
    labels = {"endpoint": "chat", "pool": "short-chat", "class": "standard"}
    assert value(counted, "headrace_requests_total", **labels, outcome="ok") == 1
    assert value(counted, "headrace_requests_total", **labels, outcome="upstream_error") == 1
    assert sum(v for (name, _), v in read(counted).items() if name == "headrace_requests_total") == 3
    assert value(counted, "headrace_attempts_total", pool="short-chat", worker="w1", result="reset") == 2
    assert value(counted, "headrace_attempts_total", pool="short-chat", worker="other", result="ok") == 1
    assert value(counted, "headrace_retries_total", pool="short-chat") == 4
    tokens = {"pool": "short-chat", "class": "standard"}
    assert value(counted, "headrace_tokens_total", **tokens, direction="prompt") == 10
    assert value(counted, "headrace_tenant_tokens_total", tenant="acme", direction="output") == 5


def test_two_thousand_models_tenants_and_classes_add_a_constant():
    """BR-11-01: no label value comes from a client."""
    counted = metrics()

    def flood(start: int) -> int:
        for number in range(start, start + 2000):
            odd = f'x{number}"\n\\' + "y" * 100
            counted.attempt(odd, odd, "ok")
            counted.itl(odd, odd, 0.01)
            finished(
                counted,
                made(
                    endpoint=odd, tenant=odd, class_name=odd, pool=odd, model=odd, ttft_s=0.1, duration_s=1.0,
                    output_tokens=9, prompt_tokens=9, stream=True, request_id=odd, attempts=2,
                )
            )  # fmt: skip
        return len(read(counted))

    assert flood(0) == flood(2000)
    assert value(counted, "headrace_tenant_tokens_total", tenant="other", direction="prompt") == 4000 * 9
    none = {"endpoint": "other", "pool": "other", "class": "other"}
    assert value(counted, "headrace_requests_total", **none, outcome="ok") == 4000


def test_long_generations_have_their_buckets():
    """BR-11-03: finite buckets to 600 s; count and sum are those of the requests."""
    counted = metrics()
    durations = (0.02, 3.0, 75.0, 130.0, 599.0)
    for seconds in durations:
        finished(counted, made(duration_s=seconds, ttft_s=seconds / 2, queue_s=seconds / 4))
    samples = read(counted)
    found = {dict(labels)["le"]: v for (name, labels), v in samples.items() if name == "headrace_e2e_seconds_bucket"}
    finite = [v for le, v in sorted(found.items(), key=lambda item: float(item[0])) if le != "+Inf"]
    assert finite[-1] == 5
    assert len(set(finite)) == 6
    assert value(counted, "headrace_e2e_seconds_count", pool="short-chat", **{"class": "standard"}) == 5
    total = value(counted, "headrace_e2e_seconds_sum", pool="short-chat", **{"class": "standard"})
    assert total == pytest.approx(sum(durations))
    assert all(family.buckets[-1] >= 600 for family in FAMILIES if family.kind is Kind.HISTOGRAM)


def test_time_per_output_token_is_of_streams_with_more_than_one():
    counted = metrics()
    finished(counted, made(ttft_s=1.0, duration_s=3.0, output_tokens=5, stream=True))
    finished(counted, made(ttft_s=1.0, duration_s=3.0, output_tokens=1, stream=True))
    finished(counted, made(ttft_s=1.0, duration_s=3.0, output_tokens=5, stream=False))
    labels = {"pool": "short-chat", "class": "standard"}
    assert value(counted, "headrace_tpot_seconds_count", **labels) == 1
    assert value(counted, "headrace_tpot_seconds_sum", **labels) == 0.5


def worker(state: WorkerState, incarnation: str, leases: int) -> WorkerSnapshot:
    return WorkerSnapshot(
        id="w1", incarnation=incarnation, pool="short-chat", models=("tiny",), state=state, leases=leases,
        in_flight=leases, limit=8, max_model_len=None, kv_used_tokens=10, kv_capacity_tokens=None,
        booked_prefill_s=0.5, booked_decode_s=1.5, booked_kv_tokens=10, running=None, waiting=None,
        preemptions=None, signal_age_s=None, cooling_s=0, returns_in_s=None, failures=0, slots=None,
    )  # fmt: skip


def test_gauges_show_the_fleet_of_the_moment():
    counted = metrics()
    workers = (worker(WorkerState.GONE, "i1", 2), worker(WorkerState.READY, "i2", 1))
    queues = (
        QueueSnapshot(1, "short-chat", "a", 2, 10, 0.5),
        QueueSnapshot(1, "short-chat", "b", 1, 10, 4.0),
        QueueSnapshot(9, "short-chat", "b", 1, 10, 4.0),
    )
    counted.gauges.fleet = FleetSnapshot(0.0, workers, queues, 4, 40, 3, 4.0, 1.0)
    counted.gauges.classes = ("interactive", "standard")
    on = {"worker": "w1", "pool": "short-chat"}
    assert value(counted, "headrace_worker_leases", **on) == 3
    assert value(counted, "headrace_worker_limit", **on) == 8
    assert value(counted, "headrace_worker_state", **on, state="ready") == 1
    assert value(counted, "headrace_worker_state", **on, state="gone") == 0
    assert value(counted, "headrace_queue_depth", pool="short-chat", **{"class": "standard"}) == 3
    assert value(counted, "headrace_queue_oldest_seconds", pool="short-chat", **{"class": "standard"}) == 4
    assert value(counted, "headrace_queue_depth", pool="short-chat", **{"class": "other"}) == 1
    assert not any(name == "headrace_worker_kv_capacity_tokens" for name, _ in read(counted))


def test_series_of_gone_workers_go():
    counted = metrics()
    counted.attempt("short-chat", "w1", "ok")
    counted.forget_worker("w1")
    counted.attempt("short-chat", "w1", "ok")
    assert value(counted, "headrace_attempts_total", pool="short-chat", worker="other", result="ok") == 1
    assert not any(("worker", "w1") in labels for _, labels in read(counted))


def test_a_family_stops_growing_at_its_bound():
    counts = Counts(Family("headrace_x_total", Kind.COUNTER, "x", ("a", "b")), max_series=3)
    histograms = Histograms(Family("headrace_y", Kind.HISTOGRAM, "y", ("a", "b"), (1.0,)), max_series=3)
    for number in range(10):
        counts.inc((str(number), "b"))
        histograms.at((str(number), "b")).observe(2.0)
    assert len(counts.series) == len(histograms.series) == 4
    assert counts.at(("other", "other")).value == histograms.at(("other", "other")).count == 7
    assert MAX_SERIES > 1000


def test_what_is_looked_up_by_odd_names_is_bounded():
    counted = metrics()
    for number in range(MAX_SERIES + 10):
        counted.attempt("short-chat", f"w{number}x", "ok")
        counted.itl("short-chat", f"c{number}", 0.01)
    assert len(counted._tried) <= MAX_SERIES
    assert len(counted._last_tried) <= MAX_SERIES
    assert len(counted._gaps) <= MAX_SERIES
    assert value(counted, "headrace_attempts_total", pool="short-chat", worker="other", result="ok") == MAX_SERIES + 10


def test_both_text_formats_and_every_name():
    counted = metrics()
    counted.count(REDIS_ERRORS, "timeout")
    counted.overhead(0.0001)
    counted.lag(0.001)
    counted.itl("short-chat", "standard", 0.02)
    plain, plain_type = counted.expose("text/plain")
    openmetrics, type_ = counted.expose("application/openmetrics-text;version=1.0.0")
    assert plain_type.startswith("text/plain")
    assert type_.startswith("application/openmetrics-text")
    assert openmetrics.endswith(b"# EOF\n")
    assert b"process_resident_memory_bytes" in plain
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(name.startswith("headrace_") for name in names)
    assert REQUESTS.name.encode() in plain


def test_the_reference_is_current():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == reference(), "run: python -m gateway.metrics > docs/metrics.md"
