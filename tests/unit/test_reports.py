"""The report book: new, silent and bad reports, with ages that no outage and no foreign clock can change."""

from dataclasses import replace

from gateway.reports import MAX_POLL_GAP_S, SILENT_OUT_S, ReportBook
from workers.report import WorkerReport, encode

REPORT = WorkerReport("w", "i1", 1, "http://127.0.0.1:1", "vllm", "p", ("tiny",))


def at(sequence: int, incarnation: str = "i1") -> dict[str, bytes]:
    return {"w": encode(replace(REPORT, sequence=sequence, incarnation=incarnation))}


def test_a_report_is_new_once():
    book = ReportBook()
    assert [report.sequence for report in book.poll(at(1), 0.0).fresh] == [1]
    assert book.poll(at(1), 0.5).fresh == []
    assert [report.sequence for report in book.poll(at(2), 1.0).fresh] == [2]
    assert [report.sequence for report in book.poll(at(1, "i2"), 1.5).fresh] == [1]
    assert book.poll(at(1, "i2"), 2.0).fresh == []
    report = book.report("w")
    assert report is not None
    assert report.incarnation == "i2"
    assert book.silent_s("w") == 0.5


def test_silence_ends_a_worker_and_only_while_redis_answers():
    book = ReportBook()
    book.poll(at(1), 0.0)
    now = 0.0
    while now < SILENT_OUT_S - 1:
        now += 0.5
        assert book.poll({}, now).gone == []
    # Redis is gone for an hour and comes back empty: that adds one poll's worth of silence, no more.
    now += 3600
    assert MAX_POLL_GAP_S > 1
    assert book.poll({}, now).gone == ["w"]
    assert book.report("w") is None
    assert book.silent_s("w") is None
    assert book.poll({}, now + 1).gone == []


def test_an_outage_alone_does_not_end_a_worker():
    book = ReportBook()
    book.poll(at(1), 0.0)
    assert book.poll({}, 3600.0).gone == []
    assert book.silent_s("w") == MAX_POLL_GAP_S
    assert book.poll(at(2), 3600.5).fresh != []
    assert book.silent_s("w") == 0.0


def test_bad_reports_are_counted_each_time_and_told_once():
    book = ReportBook()
    for value in (b"", b"{", b"[]", b'{"id":"w"}', b"x" * 100_000, encode(replace(REPORT, id="other"))):
        changes = book.poll({"w": value}, 0.0)
        assert len(changes.invalid) == 1
        assert changes.fresh == []
    first = ReportBook()
    assert len(first.poll({"w": b"{"}, 0.0).newly_invalid) == 1
    assert len(first.poll({"w": b"{"}, 0.5).newly_invalid) == 0
    assert len(first.poll(at(1), 1.0).newly_invalid) == 0
    assert len(first.poll({"w": b"{"}, 1.5).newly_invalid) == 1
    assert first.report("w") is not None, "the last good report stays until it is too old"
