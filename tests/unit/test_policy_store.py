"""The policy store: the last good revision holds, whatever the file says meanwhile."""

from pathlib import Path

import pytest

from gateway.policy_store import Current, PolicyStore
from policies.document import Policy
from policies.problems import PolicyError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def stored(path: Path | None) -> tuple[PolicyStore, list[Current]]:
    adopted: list[Current] = []
    return PolicyStore(path, adopted.append, Clock()), adopted


def test_without_a_file_the_shipped_default_holds():
    store, adopted = stored(None)
    current = store.current()
    assert current.policy == Policy()
    assert (current.revision.number, current.revision.author) == (1, "default")
    assert store.current() is current, "one object a revision"
    assert store.reload() is False
    assert adopted == []


def test_a_good_file_becomes_the_next_revision(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("default_class: batch\n")
    store, adopted = stored(path)
    assert store.current().policy.default_class == "batch"
    path.write_text("# the same in other words\n{default_class: batch}\n")
    assert store.reload() is False, "it means the same"
    path.write_text("default_class: interactive\n")
    assert store.reload() is True
    assert adopted == [store.current()]
    revision = store.current().revision
    assert (revision.number, revision.policy.default_class) == (2, "interactive")
    assert revision.text == "default_class: interactive\n"


def test_a_bad_file_changes_nothing(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    store, adopted = stored(path)
    before = store.current()
    for bad in ("", "nonsense: 1\ndefault_class: none\n", "[", "x" * 300_000):
        path.write_text(bad)
        with pytest.raises(PolicyError):
            store.reload()
        assert store.rejected
    path.unlink()
    with pytest.raises(PolicyError, match="cannot read policy file"):
        store.reload()
    assert store.current() is before
    assert adopted == []
    path.write_text("{}\n")
    assert store.reload() is False
    assert store.rejected is None


def test_a_bad_file_at_the_start_is_all_its_problems(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("nonsense: 1\nother: 2\n")
    with pytest.raises(PolicyError) as caught:
        stored(path)
    assert len(caught.value.problems) == 2
