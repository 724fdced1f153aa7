"""`make compile`: what it says and leaves behind when it is not needed, or a signal ends it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.compiled import build


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The build takes SIGTERM for its process, which is the tests' here."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_what_has_been_compiled_is_not_compiled_again(monkeypatch, capsys):
    monkeypatch.setattr(build, "check", lambda root: None)
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("compiled once more"))
    assert build.main() == 0
    assert "compiled already" in capsys.readouterr().out


def test_a_signal_leaves_nothing_behind_and_what_was_there_in_place(tmp_path, monkeypatch, capsys):
    (tmp_path / build.NAME).mkdir()

    def stopped(root: Path, files: list[str], place: Path, told: build.Told) -> None:
        place.mkdir()
        told(1, 2)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(build, "check", lambda root: "")
    monkeypatch.setattr(build, "build", stopped)
    monkeypatch.setattr(build.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    assert build.main() == 130
    assert "Stopped by a signal" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == [build.NAME]


def test_what_does_not_run_is_taken_away(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "check", lambda root: "ImportError: broken")
    monkeypatch.setattr(build, "build", lambda root, files, place, told: place.mkdir())
    monkeypatch.setattr(build.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    assert build.main() == 1
    assert "what was compiled does not run: ImportError: broken" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
