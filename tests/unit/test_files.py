"""Files of the state directory."""

import os

import pytest

from gateway.files import write_whole


def test_a_file_is_replaced_whole_and_nobody_else_may_read_it(tmp_path):
    path = tmp_path / "new" / "state.json"
    write_whole(path, b"one")
    write_whole(path, b"other")
    assert path.read_bytes() == b"other"
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_may_be_forgotten_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    def slow_disk(fd: int) -> None:
        raise AssertionError("a busy disk takes many seconds")

    monkeypatch.setattr(os, "fsync", slow_disk)
    write_whole(tmp_path / "state.json", b"{}")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "state.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "state.json", b"{}")
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
