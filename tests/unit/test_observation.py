"""What an agent concludes from what it saw."""

from dataclasses import replace

import pytest

from workers.engines.base import Card, Reading
from workers.histograms import Histogram
from workers.observation import MISSES, AgentTarget, DeviceLoad, Observer
from workers.report import BadReport

TARGET = AgentTarget(id="w1", url="http://127.0.0.1:9001", pool="short-chat")
CARD = Card(models=("tiny",), max_model_len=2048, max_num_seqs=8, kv_tokens=1000, version="1.0")
BUSY = Reading(
    running=3, waiting=1, kv_usage=0.5, prompt_tokens=100, generation_tokens=50, preemptions=2, started="7.5"
)


def observer(target=TARGET, *, sequence=10, first=0):
    names = iter(range(first, first + 100))
    return Observer(target, "vllm", continues=True, sequence=sequence, fresh=lambda: f"random-{next(names)}")


def test_before_the_first_look_a_worker_is_starting():
    report = observer().report
    assert (report.state, report.sequence, report.models, report.incarnation) == ("starting", 10, (), "random-0")
    assert (report.engine, report.pool, report.url) == ("vllm", "short-chat", TARGET.url)
    assert report.supports_continuation
    assert not report.supports_priority


def test_a_look_becomes_the_next_report():
    seen = observer()
    report = seen.observe(replace(BUSY, prefix_queries=9, prefix_hits=4), CARD)
    assert report is seen.report
    assert (report.state, report.sequence, report.models, report.version) == ("ready", 11, ("tiny",), "1.0")
    assert (report.running, report.waiting, report.kv_usage, report.preemptions) == (3, 1, 0.5, 2)
    assert (report.prompt_tokens, report.generation_tokens) == (100, 50)
    assert (report.prefix_queries, report.prefix_hits) == (9, 4)
    assert (report.max_model_len, report.max_num_seqs, report.kv_tokens) == (2048, 8, 1000)
    assert seen.observe(BUSY, CARD).sequence == 12


def test_measured_kv_capacity_comes_before_the_card_and_the_operator_before_both():
    assert observer().observe(replace(BUSY, kv_tokens=500), CARD).kv_tokens == 500
    told = replace(
        TARGET,
        max_model_len=1,
        max_num_seqs=2,
        max_num_batched_tokens=3,
        kv_tokens=4,
        preset="p",
        supports_priority=True,
    )
    report = observer(told).observe(replace(BUSY, kv_tokens=500), CARD)
    assert (report.max_model_len, report.max_num_seqs, report.max_num_batched_tokens, report.kv_tokens) == (1, 2, 3, 4)
    assert report.preset == "p"
    assert report.supports_priority


def test_a_missed_look_repeats_the_report_so_that_it_ages():
    seen = observer()
    report = seen.observe(BUSY, CARD)
    for _ in range(MISSES - 1):
        assert seen.observe_miss(refused=False) == report


def test_after_some_misses_the_worker_is_unreachable_and_says_so_anew_each_time():
    seen = observer()
    seen.observe(BUSY, CARD)
    for _ in range(MISSES - 1):
        seen.observe_miss(refused=False)
    gone = seen.observe_miss(refused=False)
    assert (gone.state, gone.sequence, gone.kv_usage, gone.running) == ("unreachable", 12, None, 3)
    assert seen.observe_miss(refused=False).sequence == 13


def test_a_refused_connection_needs_no_second_look():
    seen = observer()
    seen.observe(BUSY, CARD)
    assert seen.observe_miss(refused=True).state == "unreachable"


def test_an_engine_never_seen_is_still_starting():
    seen = observer()
    assert [seen.observe_miss(refused=True).state for _ in range(5)] == ["starting"] * 5


def test_one_success_forgives_the_misses():
    seen = observer()
    seen.observe(BUSY, CARD)
    for _ in range(3):
        for _ in range(MISSES - 1):
            assert seen.observe_miss(refused=False).state == "ready"
        seen.observe(BUSY, CARD)
    seen.observe_miss(refused=True)
    assert seen.observe(BUSY, CARD).state == "ready"


def test_a_silence_does_not_make_a_new_incarnation():
    seen = observer()
    before = seen.observe(BUSY, CARD).incarnation
    seen.observe_miss(refused=True)
    assert not seen.is_new_start(BUSY)
    assert seen.observe(BUSY, CARD).incarnation == before


def test_another_start_time_is_another_incarnation_and_the_same_one_the_same():
    seen = observer()
    assert seen.is_new_start(BUSY)
    first = seen.observe(BUSY, CARD).incarnation
    later = replace(BUSY, started="8.5")
    assert seen.is_new_start(later)
    assert seen.observe(later, CARD).incarnation != first
    # Another agent beside the same start of the engine gives it the same name.
    assert observer(first=50).observe(BUSY, CARD).incarnation == first
    assert observer(replace(TARGET, id="w2")).observe(BUSY, CARD).incarnation != first


@pytest.mark.parametrize("total", ["prompt_tokens", "generation_tokens", "preemptions"])
@pytest.mark.parametrize("started", ["", "7.5"])
def test_a_total_that_goes_back_is_another_incarnation(total, started):
    seen = observer()
    first = seen.observe(replace(BUSY, started=started), CARD).incarnation
    grown = replace(BUSY, started=started, **{total: 200})
    assert seen.observe(grown, CARD).incarnation == first
    fallen = replace(grown, **{total: 0})
    assert seen.is_new_start(fallen)
    assert seen.observe(fallen, CARD).incarnation.startswith("random-")


def test_what_no_reader_would_believe_is_not_remembered():
    seen = observer()
    good = seen.observe(BUSY, CARD)
    with pytest.raises(BadReport, match="models"):
        seen.observe(replace(BUSY, started="9"), replace(CARD, models=("a\nb",)))
    assert seen.report is good
    assert seen.is_new_start(replace(BUSY, started="9"))


# === what a supervisor and a driver add ===


def test_a_supervisor_says_starting_and_draining_of_an_engine_that_looks_ready():
    seen = observer()
    assert seen.tell("starting", "short-chat").sequence == 10  # nothing seen yet: nothing changes
    assert seen.observe(BUSY, CARD).state == "starting"
    ready = seen.tell(None, "short-chat")
    assert (ready.state, ready.sequence) == ("ready", 12)
    assert seen.tell(None, "short-chat") is ready
    draining = seen.tell("draining", "short-chat")
    assert (draining.state, draining.sequence) == ("draining", 13)
    assert seen.observe(BUSY, CARD).state == "draining"


def test_a_supervisor_moves_it_to_another_pool():
    seen = observer()
    seen.observe(BUSY, CARD)
    assert seen.tell(None, "canary").pool == "canary"
    assert seen.observe(BUSY, CARD).pool == "canary"


def test_an_unreachable_engine_stays_so_whatever_is_said():
    seen = observer()
    seen.observe(BUSY, CARD)
    seen.observe_miss(refused=True)
    assert seen.tell("draining", "short-chat").state == "unreachable"
    assert seen.observe(BUSY, CARD).state == "draining"


def test_device_load_weights_and_adapters_are_reported():
    seen = observer(replace(TARGET, weights="abc"))
    assert seen.report.weights == "abc"
    seen.observe_devices(DeviceLoad(0.5, 7, 10, "550.1"))
    report = seen.observe(BUSY, replace(CARD, adapters=("tiny",)))
    assert (report.device_utilization, report.device_used_bytes, report.device_bytes) == (0.5, 7, 10)
    assert (report.driver, report.adapters, report.weights) == ("550.1", ("tiny",), "abc")


def test_percentiles_are_those_of_the_window_and_of_one_start():
    seen = observer()
    buckets = (0.1, 1.0, float("inf"))

    def look(fast, slow, started="7.5"):
        histogram = Histogram(buckets, (float(fast), float(fast + slow), float(fast + slow)))
        return seen.observe(replace(BUSY, ttft=histogram, itl=histogram, started=started), CARD)

    assert look(0, 100).ttft_p50_s is None  # what was before the first look is not known to be now
    report = look(100, 100)
    assert report.ttft_p50_s == pytest.approx(0.05)
    assert report.itl_p95_s == pytest.approx(0.095)
    assert look(1, 0, started="8.5").ttft_p95_s is None
