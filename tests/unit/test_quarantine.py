"""Which bodies are kept from the workers, and for how long."""

from gateway.quarantine import MAX_KEPT, MAX_TOGETHER, QUARANTINE_S, SUSPECT_S, Quarantine

BODY = b'{"prompt":"dies"}'


class Bodies(Quarantine):
    """By bodies instead of by their marks."""

    def __init__(self) -> None:
        super().__init__(b"secret")

    def observe_reset(self, body: bytes, worker: str, now: float) -> tuple[str, ...]:
        return super().observe_reset(self.fingerprint(body), worker, now)

    def convict(self, body: bytes, now: float) -> bool:
        return super().convict(self.fingerprint(body), now)


def test_two_workers_lost_and_one_dead_make_a_quarantine():
    guard = Bodies()
    assert guard.observe_reset(BODY, "w1", 1.0) == ()
    assert guard.observe_reset(BODY, "w1", 1.5) == ()
    assert not guard.convict(BODY, 1.6)
    assert guard.observe_reset(BODY, "w2", 2.0) == ("w1", "w2")
    assert (guard.active, guard.left_s(BODY, 2.0)) == (False, 0.0)
    assert guard.convict(BODY, 3.0)
    assert guard.active
    assert guard.left_s(BODY, 4.0) == QUARANTINE_S - 1
    assert guard.left_s(BODY + b" ", 4.0) == 0.0
    assert guard.left_s(BODY[::-1], 4.0) == 0.0
    assert guard.left_s(BODY, 3.0 + QUARANTINE_S) == 0.0
    assert not guard.active


def test_a_suspicion_fades():
    guard = Bodies()
    guard.observe_reset(BODY, "w1", 0.0)
    assert guard.observe_reset(BODY, "w2", SUSPECT_S + 1) == ()
    assert not guard.convict(BODY, SUSPECT_S + 1)


def test_what_was_never_seen_is_not_convicted():
    assert not Bodies().convict(BODY, 0.0)


def test_many_on_the_same_two_crashes_are_innocent_until_a_third():
    guard = Bodies()
    bodies = [b"%d" % number for number in range(MAX_TOGETHER + 1)]
    for body in bodies:
        guard.observe_reset(body, "w1", 0.0)
    told = [guard.observe_reset(body, "w2", 5.0) for body in bodies]
    assert told == [("w1", "w2")] * MAX_TOGETHER + [()]
    assert not any(guard.convict(body, 6.0) for body in bodies)
    assert guard.observe_reset(bodies[0], "w3", 9.0) == ("w1", "w2", "w3")
    assert guard.convict(bodies[0], 9.0)


def test_what_is_kept_is_bounded():
    guard = Bodies()
    for number in range(MAX_KEPT + 5):
        body = b"%04d" % number
        for worker in ("w1", "w2"):
            guard.observe_reset(body, worker, 10.0 * number)
        assert guard.convict(body, 10.0 * number) is True
        guard.observe_reset(b"other" + body, "w1", 10.0 * number)
    assert len(guard._held) <= MAX_KEPT
    assert len(guard._suspects) <= MAX_KEPT
    again = Bodies()
    for number in range(MAX_KEPT + 5):
        for worker in ("w1", "w2"):
            again.observe_reset(b"%d" % number, worker, number * 0.01)
        again.convict(b"%d" % number, number * 0.01)
    assert len(again._held) <= MAX_KEPT


def test_quarantined_again_counts_anew():
    guard = Bodies()
    for start in (0.0, 100.0):
        guard.observe_reset(BODY, "w1", start)
        guard.observe_reset(BODY, "w2", start)
        assert guard.convict(BODY, start)
    assert guard.left_s(BODY, 100.0) == QUARANTINE_S
