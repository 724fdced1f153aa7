"""The recent requests: bounded, and each with the whole way it went."""

from gateway.recent import MAX_ATTEMPTS, Recent
from gateway.records import RequestRecord, Terminal
from gateway.scheduling.model import Choice, Cost, Lease, Outcome, OutcomeKind, Request, Ticket
from gateway.telemetry import state_of

CHOICE = Choice(0, ["w1", "w2"], [1.0, 2.0], [None, 7.0])


def lease(request_id: str, worker: str, at: float = 1.0) -> Lease:
    request = Request(request_id, "t", 0, "m", ("p",), 1, 1)
    ticket = Ticket(request, None, 0.0, 1.0)
    return Lease(ticket, worker, "p", Cost(1, 0.0, 0.0, 0), at, 0.5, choice=CHOICE)


def test_attempts_in_order_with_their_outcomes():
    recent = Recent()
    first, second = lease("r", "w1", 1.0), lease("r", "w2", 2.0)
    recent.dispatched(first)
    recent.settled(first, Outcome(OutcomeKind.RESET))
    recent.dispatched(second)
    story = recent.find("r")
    assert story is not None
    assert [(each.worker, each.outcome) for each in story.attempts] == [("w1", "reset"), ("w2", None)]
    assert story.attempts[0].choice is CHOICE
    assert story.record is None
    recent.settled(second, Outcome(OutcomeKind.OK))
    record = RequestRecord("r", "POST", "/", "p")
    recent.finished(record)
    assert story.record is record
    assert story.attempts[1].outcome == "ok"


def test_the_oldest_are_forgotten():
    recent = Recent(size=10)
    for number in range(100):
        recent.dispatched(lease(f"r{number}", "w1"))
        recent.finished(RequestRecord(f"x{number}", "POST", "/", "p"))
    assert len(recent) == 10
    assert recent.find("r0") is None
    recent.settled(lease("r0", "w1"), Outcome(OutcomeKind.OK))
    assert len(recent) == 10
    for number in range(100):
        recent.dispatched(lease("same", "w1", float(number)))
    story = recent.find("same")
    assert story is not None
    assert len(story.attempts) == MAX_ATTEMPTS


def test_what_a_request_was_doing_when_its_client_left():
    record = RequestRecord("r", "POST", "/", "p", outcome=Terminal.CANCELLED)
    assert state_of(record) == "queued"
    record.attempts = 1
    assert state_of(record) == "prefill"
    record.ttft_s = 0.1
    assert state_of(record) == "stream"
