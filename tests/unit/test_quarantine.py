"""Which bodies are kept from the workers, and for how long."""

from gateway.quarantine import MAX_KEPT, MAX_TOGETHER, MAX_WORKERS, QUARANTINE_S, SUSPECT_S, Quarantine, Sighting

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


def test_what_another_gateway_lost_counts_with_what_was_lost_here():
    one, other = Bodies(), Bodies()
    mark = one.fingerprint(BODY)
    assert one.observe_reset(BODY, "w1", 1.0) == ()
    assert one.sightings() == [Sighting(mark, "w1", 1.0)]
    assert other.hear(one.sightings(), 2.0) == ([], [])
    assert other.hear(one.sightings(), 2.0) == ([], []), "heard before"
    assert other.observe_reset(BODY, "w2", 3.0) == ("w1", "w2")
    assert one.hear(other.sightings(), 4.0) == ([], [mark]), "suspect by what was heard: somebody has to look"
    assert one.workers_of(mark) == ("w1", "w2")
    assert one.convict(BODY, 5.0)
    assert one.workers_of(mark) == ()
    assert other.hear(one.sightings(), 105.0) == ([mark], [])
    assert other.left_s(BODY, 105.0) == QUARANTINE_S - 100.0, "from when it was quarantined, not from when it was heard"
    assert other.hear([Sighting(mark, "w3", 104.0), *one.sightings()], 106.0) == ([], []), "it is settled"


def test_of_what_is_heard_the_times_decide():
    guard = Bodies()
    mark = guard.fingerprint(BODY)
    guard.observe_reset(BODY, "w2", 10.0)
    assert guard.hear([Sighting(mark, "w3", 12.0), Sighting(mark, "w1", 5.0)], 13.0) == ([], [mark])
    assert guard.workers_of(mark) == ("w1", "w2", "w3")
    later = 13.0 + SUSPECT_S
    stale = [Sighting(mark, "", later - QUARANTINE_S), Sighting(mark, "w4", later - SUSPECT_S - 1)]
    assert guard.hear(stale, later) == ([], [])
    assert guard.left_s(BODY, later) == 0.0
    earlier = [Sighting(guard.fingerprint(b"%d" % at), "", float(at)) for at in (500, 100, 300)]
    assert len(guard.hear(earlier, 600.0)[0]) == 3
    assert [guard.left_s(b"%d" % at, 750.0) for at in (500, 100, 300)] == [350.0, 0.0, 150.0]


def test_many_that_others_saw_on_the_same_crash_are_innocent_too():
    guard = Bodies()
    bodies = [b"%d" % number for number in range(MAX_TOGETHER + 1)]
    heard = [
        Sighting(guard.fingerprint(body), worker, at) for body in bodies for worker, at in (("w1", 0.0), ("w2", 5.0))
    ]
    assert guard.hear(heard, 6.0) == ([], [])
    assert not any(guard.convict(body, 6.0) for body in bodies)


def test_workers_of_one_body_are_bounded():
    guard = Bodies()
    for number in range(2 * MAX_WORKERS):
        guard.observe_reset(BODY, f"w{number}", float(number))
    assert guard.workers_of(guard.fingerprint(BODY)) == tuple(f"w{n}" for n in range(MAX_WORKERS, 2 * MAX_WORKERS))


def test_the_fleets_key_leaves_what_is_quarantined_as_it_is():
    guard = Bodies()
    for worker in ("w1", "w2"):
        guard.observe_reset(BODY, worker, 0.0)
    guard.convict(BODY, 0.0)
    guard.observe_reset(b"suspect", "w1", 0.0)
    guard.use_key(b"secret")
    assert guard.sightings(), "its own: nothing changes"
    guard.use_key(b"the fleet's")
    assert guard.sightings() == [], "the others could not tell what these are"
    assert guard.active
    assert guard.left_s(BODY, 10.0) == QUARANTINE_S - 10.0
    for worker in ("w1", "w2"):
        guard.observe_reset(b"another", worker, 20.0)
    assert guard.convict(b"another", 20.0)
    assert (guard.left_s(b"another", 30.0), guard.left_s(BODY, 30.0)) == (QUARANTINE_S - 10.0, QUARANTINE_S - 30.0)
    assert guard.left_s(BODY, QUARANTINE_S) == 0.0
    assert guard.left_s(b"another", 2 * QUARANTINE_S) == 0.0
    assert not guard.active
