"""Watching the policy file: what counts is the content, once it has settled. Time is the test's."""

import os
from pathlib import Path

import pytest

from gateway.policy_file import SETTLE_S, PolicyFile
from policies.problems import PolicyError


class Watched:
    """A file, and a clock that the test moves from one look to the next."""

    def __init__(self, path: Path) -> None:
        self.file = PolicyFile(path)
        self.file.notice(self.file.read())
        self.now = 0.0

    def look(self, after_s: float = 0.0) -> bytes | None:
        self.now += after_s
        return self.file.changed(self.now)

    def settled(self) -> bytes | None:
        """What a change has become once it stands still."""
        assert self.look(0.25) is None, "not at first sight"
        return self.look(SETTLE_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"one")
    return path


def test_nothing_new_is_nothing(path):
    assert Watched(path).settled() is None


def test_br_08_03_a_rename_over_it(path):
    watched = Watched(path)
    other = path.with_name("new")
    other.write_bytes(b"two")
    other.replace(path)
    assert watched.settled() == b"two"


def test_br_08_03_b_kubernetes_swaps_a_symlink(tmp_path):
    for number, text in (("1", "one"), ("2", "two")):
        (tmp_path / f"..ts{number}").mkdir()
        (tmp_path / f"..ts{number}" / "config").write_text(text)
    (tmp_path / "..data").symlink_to("..ts1")
    (tmp_path / "config").symlink_to("..data/config")
    watched = Watched(tmp_path / "config")
    (tmp_path / "..new").symlink_to("..ts2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    (tmp_path / "..ts1" / "config").unlink()
    assert watched.settled() == b"two"


def test_br_08_03_c_half_of_a_file_never_counts(path):
    watched = Watched(path)
    with path.open("wb") as file:
        file.write(b"first half, ")
        file.flush()
        assert watched.look(0.25) is None
        assert watched.look(0.3) is None
        file.write(b"second half")
        file.flush()
    assert watched.look(0.25) is None
    assert watched.look(0.3) is None, "it has changed since"
    assert watched.look(SETTLE_S) == b"first half, second half"


def test_br_08_03_d_the_same_time_stamp_and_size(path):
    status = path.stat()
    watched = Watched(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert watched.settled() == b"two"


def test_br_08_03_e_gone_and_back(path):
    watched = Watched(path)
    path.unlink()
    assert watched.look(0.25) is None
    assert watched.file.gone
    assert watched.look(2.0) is None
    path.write_bytes(b"two")
    assert watched.settled() == b"two"
    assert not watched.file.gone


def test_gone_and_back_as_it_was_is_no_change(path):
    watched = Watched(path)
    path.unlink()
    watched.look(0.25)
    path.write_bytes(b"one")
    assert watched.settled() is None


def test_a_content_is_offered_until_it_is_noticed(path):
    watched = Watched(path)
    path.write_bytes(b"two")
    assert watched.settled() == b"two"
    assert watched.look(0.25) == b"two", "nobody took notice"
    watched.file.notice(b"two")
    assert watched.look(0.25) is None


def test_of_many_changes_the_last_one_counts(path):
    watched = Watched(path)
    for number in range(20):
        path.write_bytes(b"%d" % number)
        assert watched.look(0.05) is None
    assert watched.look(SETTLE_S) == b"19"


def test_what_is_no_file_does_not_keep_us(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(PolicyError, match="cannot read policy file"):
            PolicyFile(place).read()


def test_no_more_is_read_than_a_policy_may_have(path):
    path.write_bytes(b"x" * 1_000_000)
    assert len(PolicyFile(path).read()) == 256 * 1024 + 1
