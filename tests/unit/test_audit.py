"""The audit log: chained, bounded, and an edit shows."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import AuditLog, tail, verify


def noted(path: Path | None, count: int = 4, **more: Any) -> tuple[AuditLog, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    log = AuditLog(path, now=lambda: 1000.0, **more)
    for number in range(count):
        entry = log.note("ann", "operator", "127.0.0.1", "worker.drain", f"w{number}", "ok", {"number": number})
        seen.append(dict(entry))
    return log, seen


def test_entries_are_chained(tmp_path):
    path = tmp_path / "state" / "audit.jsonl"
    _, seen = noted(path)
    assert path.stat().st_mode & 0o777 == 0o600
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["sequence"] for entry in entries] == [1, 2, 3, 4]
    assert all(after["previous"] == before["hash"] for before, after in pairwise(entries))
    assert seen == entries
    assert verify(path).whole
    assert verify(path).entries == 4
    assert [entry["target"] for entry in tail(path, 2)] == ["w3", "w2"]
    noted(path, 1)
    assert verify(path).entries == 5, "another process goes on"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda lines: [lines[0], lines[1].replace("w1", "w9"), *lines[2:]], "line 2: was changed"),
        (lambda lines: [lines[0], *lines[2:]], "line 2: does not follow entry 1"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2: does not follow entry 1"),
        (lambda lines: lines[1:], "line 1: is entry 2: those before it are missing"),
        (lambda lines: [*lines, "nonsense"], "line 5: is not JSON"),
        (lambda lines: [*lines, "{}"], "line 5: is not an entry"),
        (lambda lines: [*lines, "[]"], "line 5: is not an entry"),
    ],
)
def test_s36_an_edit_shows(tmp_path, edit, told):
    path = tmp_path / "audit.jsonl"
    noted(path)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    verdict = verify(path)
    assert not verdict.whole
    assert told in (verdict.fault or "")


def test_a_full_file_makes_room_and_the_chain_goes_on(tmp_path):
    path = tmp_path / "audit.jsonl"
    noted(path, 40, max_bytes=4000)
    old = tmp_path / "audit.jsonl.1"
    assert sorted(tmp_path.iterdir()) == [path, old]
    assert path.stat().st_size + old.stat().st_size < 10_000
    assert verify(path).whole
    old.write_text(old.read_text().rpartition("{")[0])
    assert not verify(path).whole, "the last line of the full one is missing"


def test_a_torn_line_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "audit.jsonl"
    noted(path, 2)
    with path.open("a") as file:
        file.write('{"sequence": 3, "at"')
    noted(path, 1)
    assert [entry["sequence"] for entry in tail(path, 9)] == [3, 2, 1]
    assert "line 3: is not JSON" in (verify(path).fault or "")


def test_without_a_file_entries_are_only_told(tmp_path):
    log, seen = noted(None, 2)
    assert len(seen) == 2
    assert log.error is None
    assert tail(tmp_path / "none", 5) == []
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none")


def test_a_disk_that_keeps_nothing_is_told_and_stops_nobody(tmp_path):
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    log, seen = noted(blocker / "audit.jsonl", 1)
    assert len(seen) == 1
    assert "File exists" in (log.error or "")


def test_details_are_bounded(tmp_path):
    path = tmp_path / "audit.jsonl"
    AuditLog(path).note("a", "b", "c", "d", "e", "ok", {"text": "x" * 100_000})
    (entry,) = tail(path, 1)
    assert len(json.dumps(entry)) < 5000
    assert verify(path).whole


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_s36_a_cut_off_end_shows_to_who_wrote_it_and_later_to_everybody(tmp_path, kept):
    path = tmp_path / "audit.jsonl"
    log, _ = noted(path)
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines[:kept]))
    assert verify(path).whole, "the chain alone does not show it"
    assert log.verify().fault == "entry 4 is missing, which this gateway wrote"
    log.note("bob", "admin", "", "key.create", "k", "ok", {})
    told = "missing" if kept else "is entry 5: those before it are missing"
    assert told in (verify(path).fault or "")
    assert json.loads(path.read_text().splitlines()[-1])["sequence"] == 5


def test_a_log_that_is_gone(tmp_path):
    path = tmp_path / "audit.jsonl"
    log, _ = noted(path)
    assert log.verify().entries == 4
    path.unlink()
    assert log.verify().fault == "audit.jsonl is gone"
    assert AuditLog(path).verify().whole, "nothing was ever written"
    assert AuditLog(None).verify().whole
