"""Revisions: numbers that only grow, digests that tell what documents mean."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies.document import Policy, parse_policy
from policies.revisions import (
    History,
    Revision,
    digest,
    first_revision,
    from_record,
    matches,
    next_revision,
    to_record,
)


def test_the_first_one() -> None:
    one = first_revision(Policy(), "{}", 12.5)
    assert (one.number, one.text, one.author, one.note, one.created) == (1, "{}", "file", "", 12.5)
    assert one.digest == digest(Policy())


def test_a_rollback_is_a_new_number_with_old_content() -> None:
    one = first_revision(Policy(), "{}", 1.0)
    two = next_revision(one, parse_policy("redis_loss: open"), "redis_loss: open", "ann", "try", 2.0)
    three = next_revision(two, one.policy, one.text, "ann", "back", 3.0)
    assert [one.number, two.number, three.number] == [1, 2, 3]
    assert (two.author, two.note, two.created) == ("ann", "try", 2.0)
    assert three.digest == one.digest != two.digest


def test_digests_are_short_hex() -> None:
    assert len(digest(Policy())) == 16
    int(digest(Policy()), 16)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{}", "# a comment\nredis_loss: local_share\nbalancing: {beta: 0.1}"),
        ("tenants: {a: {weight: 2}, b: {}}", "tenants: {b: {}, a: {weight: 2.0}}"),
        ("models: {a: {}, b: {}}", "models: {b: {}, a: {}}"),
    ],
)
def test_what_means_the_same_has_the_same_digest(one: str, other: str) -> None:
    assert digest(parse_policy(one)) == digest(parse_policy(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pools: {a: {}, b: {}}", "pools: {b: {}, a: {}}"),
        ("{}", "retries: {max_attempts: 4}"),
        ("rules: [{class: batch}, {class: standard}]", "rules: [{class: standard}, {class: batch}]"),
    ],
)
def test_what_differs_has_another(one: str, other: str) -> None:
    assert digest(parse_policy(one)) != digest(parse_policy(other))


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=2, unique=True))
def test_every_number_counts(values: list[int]) -> None:
    one, other = (digest(parse_policy(f"admission: {{max_queued: {value}}}")) for value in values)
    assert one != other


def a_chain(count: int) -> list[Revision]:
    found = [first_revision(Policy(), "{}", 1.0)]
    for number in range(1, count):
        text = f"admission: {{max_queued: {number}}}"
        found.append(next_revision(found[-1], parse_policy(text), text, "ann", f"step {number}", float(number)))
    return found


def test_a_revision_survives_its_record() -> None:
    for revision in a_chain(3):
        record = json.loads(json.dumps(to_record(revision)))
        assert from_record(record) == revision


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "{ }"),
        ("author", "bob"),
        ("number", 7),
        ("previous", "00"),
        ("created", 2),
        ("note", None),
        ("source", "x"),
        ("reverts", 1),
    ],
)
def test_an_edited_record_is_not_believed(name: str, value: object) -> None:
    record = {**to_record(a_chain(2)[1]), name: value}
    with pytest.raises(ValueError, match="revision"):
        from_record(record)


def test_what_writers_may_have_seen() -> None:
    (one,) = a_chain(1)
    assert one.etag == f"1-{one.digest}"
    for seen, right in (("*", True), (one.etag, True), ("1", True), ("2", False), (one.digest, False), ("", False)):
        assert matches(one, seen) is right


def test_long_notes_are_cut() -> None:
    two = next_revision(a_chain(1)[0], Policy(), "{}", "a" * 999, "n" * 9999, 2.0)
    assert (len(two.author), len(two.note)) == (128, 1000)


def test_the_history_is_bounded_in_number() -> None:
    history = History(max_kept=5)
    for revision in a_chain(12):
        history.add(to_record(revision))
    assert [kept.number for kept in history] == [8, 9, 10, 11, 12]
    assert history.find(7) is None
    assert history.find(99) is None
    found = history.find(9)
    assert found is not None
    assert found.text == "admission: {max_queued: 8}"
    assert from_record(found.whole()).policy.admission.max_queued == 8
    assert history.broken_at() is None


def test_the_history_is_bounded_in_bytes() -> None:
    history = History(max_bytes=200)
    for revision in a_chain(50):
        history.add(to_record(revision))
    assert history.bytes <= 200
    assert next(reversed(history)).number == 50
    one_that_is_too_large = History(max_bytes=1)
    one_that_is_too_large.add(to_record(a_chain(1)[0]))
    assert len(one_that_is_too_large) == 1, "the newest is always kept"


def test_another_replicas_revision_replaces_ours() -> None:
    one, two, three = a_chain(3)
    other = next_revision(one, Policy(), "{}", "bob", "", 9.0)
    history = History()
    for revision in (one, two, three, other):
        history.add(to_record(revision))
    assert [kept.record["author"] for kept in history] == ["file", "bob"]
    history.add(to_record(three))
    assert history.broken_at() == 3
    assert history.missing == 0


def test_what_a_replica_was_not_there_for_is_missing_and_not_forged() -> None:
    history = History()
    assert history.missing == 0
    for revision in (one for one in a_chain(9) if one.number not in (3, 4, 7)):
        history.add(to_record(revision))
    assert (history.broken_at(), history.missing) == (None, 3)


class Editors(RuleBasedStateMachine):
    """Editors read a revision, and later try to replace it; the store compares and sets."""

    def __init__(self) -> None:
        super().__init__()
        self.current = first_revision(Policy(), "{}", 0.0)
        self.history = History()
        self.history.add(to_record(self.current))
        self.seen: dict[int, str] = {}
        self.wrote = [self.current]

    @rule(editor=st.integers(0, 3))
    def read(self, editor: int) -> None:
        self.seen[editor] = self.current.etag

    @rule(editor=st.integers(0, 3), size=st.integers(0, 5), tag=st.sampled_from(["etag", "number"]))
    def write(self, editor: int, size: int, tag: str) -> None:
        if editor not in self.seen:
            return
        expected = self.seen[editor] if tag == "etag" else self.seen[editor].partition("-")[0]
        before = self.current
        if not matches(before, expected):
            assert self.seen[editor] != before.etag, "refused though nobody wrote in between"
            return
        text = f"admission: {{max_queued: {size}}}"
        self._take(next_revision(before, parse_policy(text), text, f"editor {editor}", "", before.created + 1))
        assert self.seen[editor] == before.etag, "nobody's change was overwritten unseen"

    @rule(back=st.integers(0, 5))
    def roll_back(self, back: int) -> None:
        kept = list(self.history)[-1 - min(back, len(self.history) - 1)]
        old = from_record(kept.whole())
        new = next_revision(
            self.current, old.policy, old.text, "ann", "", self.current.created, source="rollback", reverts=old.number
        )
        assert new.digest == old.digest
        self._take(new)

    def _take(self, revision: Revision) -> None:
        self.current = revision
        self.history.add(to_record(revision))
        self.wrote.append(revision)

    @invariant()
    def numbers_only_grow_and_the_chain_holds(self) -> None:
        assert [each.number for each in self.wrote] == list(range(1, len(self.wrote) + 1))
        assert [kept.number for kept in self.history] == [each.number for each in self.wrote]
        assert self.history.broken_at() is None
        assert from_record(list(self.history)[-1].whole()) == self.current


TestEditors = Editors.TestCase
TestEditors.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
