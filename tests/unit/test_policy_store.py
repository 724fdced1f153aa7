"""The policy store: compare-and-set, guard rails, the file as a seed, and the last good revision, whatever happens."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.policy_draft import ConflictError, Draft, GuardError
from gateway.policy_journal import Journal
from gateway.policy_store import Current, PolicyStore
from policies.document import Policy, parse_policy
from policies.guards import FleetFacts, WorkerFact
from policies.problems import PolicyError
from policies.revisions import digest

FLEET = FleetFacts((WorkerFact("w1", "short-chat", frozenset({"tiny"}), 16),))


NOBODY = FleetFacts()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Kept:
    """A store, what it adopted and what it refused of its file."""

    def __init__(self, path: Path | None = None, journal: Path | None = None, facts: FleetFacts = NOBODY) -> None:
        self.adopted: list[Current] = []
        self.refused: list[tuple[str, list[str]]] = []
        self.store = PolicyStore(
            path,
            self.adopted.append,
            Clock(),
            journal=Journal(journal) if journal else None,
            facts=lambda: facts,
            on_reject=lambda why, problems: self.refused.append((why, problems)),
        )

    @property
    def number(self) -> int:
        return self.store.current().revision.number

    @property
    def default_class(self) -> str:
        return self.store.current().policy.default_class


def draft(text: str, author: str = "ann") -> Draft:
    return Draft(parse_policy(text), text, author, "because")


BATCH, HIGH = "default_class: batch\n", "default_class: interactive\n"


def test_without_a_file_the_shipped_default_holds():
    kept = Kept()
    current = kept.store.current()
    assert current.policy == Policy()
    assert (current.revision.number, current.revision.author) == (1, "default")
    assert kept.store.current() is current, "one object a revision"
    assert asyncio.run(kept.store.reload()) is False
    assert kept.adopted == []
    assert not kept.store.drift


async def test_a_good_file_becomes_the_next_revision(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(BATCH)
    kept = Kept(path)
    assert kept.default_class == "batch"
    path.write_text("# the same in other words\n{default_class: batch}\n")
    assert await kept.store.reload() is False, "it means the same"
    path.write_text(HIGH)
    assert await kept.store.reload() is True
    assert kept.adopted == [kept.store.current()]
    revision = kept.store.current().revision
    assert (revision.number, revision.source, revision.author) == (2, "file", "file")
    assert revision.text == HIGH


async def test_a_bad_file_changes_nothing(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    kept = Kept(path)
    before = kept.store.current()
    bad = ("", "nonsense: 1\ndefault_class: none\n", "[", "x" * 300_000)
    for text in bad:
        path.write_text(text)
        assert await kept.store.reload() is False
        assert kept.store.seed.rejected
    assert await kept.store.reload() is False
    assert kept.store.seed.rejections == len(kept.refused) == len(bad), "the same fault counts once"
    path.unlink()
    assert await kept.store.reload() is False
    assert "cannot read policy file" in kept.store.seed.rejected
    assert kept.store.current() is before
    assert kept.adopted == []
    path.write_text("{}\n")
    assert await kept.store.reload() is False
    assert kept.store.seed.rejected is None


def test_a_bad_file_at_the_start_is_all_its_problems(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("nonsense: 1\nother: 2\n")
    with pytest.raises(PolicyError) as caught:
        Kept(path)
    assert len(caught.value.problems) == 2


async def test_a_change_is_compared_with_what_its_author_has_seen():
    kept = Kept()
    seen = kept.store.current().revision.etag
    applied = await kept.store.apply(draft(BATCH), seen)
    assert applied.changed
    assert (applied.before.number, applied.revision.number) == (1, 2)
    assert (applied.revision.author, applied.revision.note, applied.revision.source) == ("ann", "because", "api")
    with pytest.raises(ConflictError) as caught:
        await kept.store.apply(draft(HIGH), seen)
    assert caught.value.current is kept.store.current().revision
    assert kept.default_class == "batch"
    assert (await kept.store.apply(draft(HIGH), "2")).revision.number == 3
    assert (await kept.store.apply(draft(BATCH), "*")).revision.number == 4


async def test_what_means_the_same_is_no_change():
    kept = Kept()
    applied = await kept.store.apply(draft("# nothing\n{}"), "*")
    assert not applied.changed
    assert (kept.number, kept.adopted) == (1, [])


async def test_of_many_writers_with_one_view_exactly_one_wins():
    kept = Kept()
    seen = kept.store.current().revision.etag
    drafts = [draft(f"admission: {{max_queued: {number}}}") for number in range(20)]
    results = await asyncio.gather(*(kept.store.apply(one, seen) for one in drafts), return_exceptions=True)
    assert sum(isinstance(one, ConflictError) for one in results) == 19
    assert kept.number == 2


async def test_guard_rails_hold_until_forced():
    kept = Kept(facts=FLEET)
    wanted = draft("pools: {elsewhere: {}}")
    with pytest.raises(GuardError) as caught:
        await kept.store.apply(wanted, "*")
    assert [guard.rule for guard in caught.value.guards] == ["empties_pool", "drops_capacity"]
    assert kept.number == 1
    applied = await kept.store.apply(wanted, "*", force=True)
    assert applied.changed
    assert len(applied.guards) == 2


async def test_a_file_that_breaks_a_guard_rail_waits_for_force(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    kept = Kept(path, facts=FLEET)
    path.write_text("pools: {elsewhere: {}}\n")
    assert await kept.store.reload() is False
    assert kept.store.seed.guarded
    assert kept.refused[0][0] == "policy_guard"
    assert kept.store.drift
    assert (await kept.store.apply(draft(path.read_text()), "*", force=True)).changed
    assert not kept.store.drift


async def test_the_api_overrides_the_file_until_the_file_changes_its_meaning(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    kept = Kept(path, tmp_path / "journal")
    await kept.store.apply(draft(BATCH), "*")
    path.write_text("# touched\n{}\n")
    assert await kept.store.reload() is False
    assert kept.default_class == "batch"
    assert kept.store.drift
    again = Kept(path, tmp_path / "journal")
    assert (again.number, again.default_class) == (2, "batch"), "and over a restart"
    path.write_text(HIGH)
    assert await again.store.reload() is True
    assert again.default_class == "interactive"
    assert not again.store.drift


async def test_br_08_07_two_sources_end_with_the_latest_good_value(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    kept = Kept(path)
    path.write_text("default_class: nobody\n")
    await kept.store.reload()
    await kept.store.apply(draft(BATCH), "*")
    assert (kept.default_class, kept.store.seed.rejections) == ("batch", 1)
    path.write_text(HIGH)
    assert await kept.store.reload() is True
    assert kept.default_class == "interactive"
    assert kept.store.seed.rejected is None
    assert [kept.number, len(kept.refused)] == [3, 1]


async def test_br_08_05_a_change_with_one_fault_changes_nothing(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    kept = Kept(path)
    before = kept.store.current()
    path.write_text("limits: {max_in_flight_per_worker: 2}\npools: {a: {max_budget_tokens: 0}}\n")
    assert await kept.store.reload() is False
    assert kept.store.current() is before


async def test_the_journal_brings_back_the_last_good_revision_and_its_history(tmp_path):
    journal = tmp_path / "state" / "policy.jsonl"
    kept = Kept(journal=journal)
    await kept.store.start()
    await kept.store.apply(draft(BATCH), "*")
    await kept.store.apply(draft(HIGH), "*")
    assert journal.stat().st_mode & 0o777 == 0o600
    again = Kept(journal=journal)
    await again.store.start()
    assert again.store.current().revision == kept.store.current().revision
    assert [one.number for one in again.store.history] == [1, 2, 3]
    assert again.store.history.broken_at() is None
    assert again.store.revision(2).policy.default_class == "batch"
    assert again.store.revision(77) is None
    assert len(journal.read_text().splitlines()) == 3, "starting writes nothing twice"


async def test_a_torn_line_costs_that_line_only(tmp_path):
    journal = tmp_path / "policy.jsonl"
    kept = Kept(journal=journal)
    await kept.store.start()
    await kept.store.apply(draft(BATCH), "*")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[1][:50])
    again = Kept(journal=journal)
    assert (again.number, again.default_class) == (2, "batch")
    await again.store.apply(draft(HIGH), "*")
    assert [one.number for one in Journal(journal).read()] == [1, 2, 3]


async def test_an_edited_line_is_not_believed(tmp_path):
    journal = tmp_path / "policy.jsonl"
    kept = Kept(journal=journal)
    await kept.store.start()
    await kept.store.apply(draft(BATCH), "*")
    lines = journal.read_text().splitlines()
    edited = {**json.loads(lines[1]), "author": "mallory"}
    journal.write_text(f"{lines[0]}\n{json.dumps(edited)}\nnull\n[]\n")
    reading = Journal(journal)
    assert [one.number for one in reading.read()] == [1]
    assert reading.skipped == 3
    assert Kept(journal=journal).number == 1


async def test_a_file_changed_while_the_gateway_was_down_is_a_change(tmp_path):
    path, journal = tmp_path / "policy.yaml", tmp_path / "policy.jsonl"
    path.write_text("{}\n")
    kept = Kept(path, journal)
    await kept.store.start()
    path.write_text(BATCH)
    again = Kept(path, journal)
    assert (again.number, again.default_class) == (2, "batch")
    await again.store.start()
    third = Kept(path, journal)
    assert third.store.current().revision == again.store.current().revision


async def test_a_disk_that_keeps_nothing_does_not_stop_a_change(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    kept = Kept()
    kept.store._journal = Journal(blocker / "policy.jsonl")
    applied = await kept.store.apply(draft(BATCH), "*")
    assert applied.changed
    assert "File exists" in kept.store.journal_error


async def test_the_journal_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.policy_journal.MAX_LINES", 20)
    journal = tmp_path / "policy.jsonl"
    kept = Kept(journal=journal)
    kept.store.history._max_kept = 10
    await kept.store.start()
    for number in range(50):
        await kept.store.apply(draft(f"admission: {{max_queued: {number}}}"), "*")
        assert len(journal.read_text().splitlines()) <= 20
    again = Journal(journal).read()
    assert next(reversed(again)).number == 51
    assert len(again) >= 10
    assert list(tmp_path.iterdir()) == [journal]


def test_a_digest_of_a_draft_is_the_documents():
    assert digest(draft(BATCH).policy) == digest(parse_policy("{default_class: batch}"))
