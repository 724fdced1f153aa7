"""The audit log: who changed what, from where, and how it ended; refused changes too.

JSON lines, each with the hash of the one before, so that an edit, a removal and a swap show (`verify`). The newest
hash is in the event log as well: whoever can write this file could otherwise make the whole chain anew. The file is
bounded: a full one is renamed to `.1` and the next begins with the hash of its last line.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.files import locked

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_DETAIL_CHARS = 4000
MAX_LINE_BYTES = 64 * 1024
START = "0" * 64
ROLL = "audit.roll"  # the first entry of a file that follows a full one
FIELDS = ("sequence", "at", "who", "role", "peer", "action", "target", "result", "detail", "previous")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an audit log is whole: its entries, and what is wrong with the first one that is not as written."""

    entries: int
    fault: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing was changed."""
        return self.fault is None


class AuditLog:
    """Writes to `path`; None keeps nothing."""

    def __init__(
        self,
        path: Path | None,
        *,
        now: Callable[[], float] = time.time,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self.path = path
        self._now = now
        self._max_bytes = max_bytes
        self._newest: tuple[int, str] | None = None  # number and hash of the last entry that we wrote
        self.error: str | None = None
        """Why the last entry is not on disk; None while it is."""

    def note(
        self, who: str, role: str, peer: str, action: str, target: str, result: str, detail: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """One change, or one that was refused; its entry. Never raises: why it could not be written is in `error`."""
        entry: dict[str, Any] = {
            "sequence": 1,
            "at": self._now(),
            "who": who,
            "role": role,
            "peer": peer,
            "action": action,
            "target": target,
            "result": result,
            "detail": _bounded(detail),
            "previous": START,
        }
        try:
            if self.path is not None:
                self._append(self.path, entry)
                self._newest = entry["sequence"], entry["hash"]
                self.error = None
        except OSError as error:
            self.error = f"{self.path}: {error.strerror or error}"
        return entry

    def verify(self) -> Verdict:
        """As the function, and whether what this process wrote last is still there: a chain does not show that its
        end was cut off. Raises `OSError`; of a log that was never written all is well."""
        if self.path is None or (self._newest is None and not self.path.exists()):
            return Verdict(0)
        try:
            return verify(self.path, self._newest)
        except FileNotFoundError:
            return Verdict(0, f"{self.path.name} is gone")

    def _append(self, path: Path, entry: dict[str, Any]) -> None:
        with locked(path.parent):
            if _write(path, entry, self._newest) > self._max_bytes:
                path.replace(path.with_name(path.name + ".1"))
                # The next file begins where this one ended.
                _write(path, {**_rolled(entry, self._now()), "previous": entry["hash"]})


def _write(path: Path, entry: dict[str, Any], newest: tuple[int, str] | None = None) -> int:
    """Add an entry after the last one, chained to it; the file's size. `newest`: number and hash of an entry that is
    there already. Where it is not, its end was cut off: the new one is chained to what is missing, so that it shows."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        last = _last_line(file)
        if newest is not None and (last is None or last[0] <= newest[0]):
            last = newest[0] + 1, newest[1]
        if last is not None:
            entry["sequence"], entry["previous"] = last
        entry["hash"] = _hash(entry)
        file.write((json.dumps(entry, separators=(",", ":")) + "\n").encode())
        os.fsync(file.fileno())
        return file.seek(0, os.SEEK_END)


def _rolled(entry: Mapping[str, Any], at: float) -> dict[str, Any]:
    return {
        "sequence": entry["sequence"] + 1,
        "at": at,
        "who": "headrace",
        "role": "",
        "peer": "",
        "action": ROLL,
        "target": "",
        "result": "ok",
        "detail": {},
    }


def verify(path: Path, newest: tuple[int, str] | None = None) -> Verdict:
    """Read the log, the full one before it included, and check every hash. `newest`: number and hash of an entry that
    must be among them, if the log goes back that far. Raises `OSError`."""
    before: Mapping[str, Any] | None = None
    count, first, seen = 0, 1, newest is None
    for file in (path.with_name(path.name + ".1"), path):
        if file == path or file.exists():
            for number, line in enumerate(_lines_of(file), 1):
                fault = _fault(line, before)
                if isinstance(fault, str):
                    return Verdict(count, f"{file.name}, line {number}: {fault}")
                if before is None:
                    first = fault["sequence"]
                before = fault
                count += 1
                seen = seen or newest == (fault["sequence"], fault["hash"])
    if newest is not None and not seen and first <= newest[0]:
        return Verdict(count, f"entry {newest[0]} is missing, which this gateway wrote")
    return Verdict(count)


def _fault(line: bytes, before: Mapping[str, Any] | None) -> str | Mapping[str, Any]:
    """What is wrong with a line, or its entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return "is not JSON"
    if not isinstance(entry, dict) or any(name not in entry for name in (*FIELDS, "hash")):
        return "is not an entry"
    if entry["hash"] != _hash(entry):
        return "was changed after it was written"
    if before is None and entry["sequence"] != 1 and entry["action"] != ROLL:
        return f"is entry {entry['sequence']}: those before it are missing"
    if before is not None and entry["previous"] != before["hash"]:
        return f"does not follow entry {before['sequence']}: entries are missing, or were put in"
    return entry


def tail(path: Path, count: int) -> list[Mapping[str, Any]]:
    """The last entries, newest first; lines that are no entries are left out."""
    lines: deque[bytes] = deque(maxlen=count)
    try:
        lines.extend(_lines_of(path))
    except FileNotFoundError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _last_line(file: Any) -> tuple[int, str] | None:
    """(next sequence, hash) of the last entry; a torn one is closed and counts as the end of the chain."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return None
    file.seek(max(0, size - MAX_LINE_BYTES))
    block = file.read(MAX_LINE_BYTES)
    if not block.endswith(b"\n"):
        file.write(b"\n")
    for line in reversed(block.splitlines()):
        try:
            entry = json.loads(line)
            return int(entry["sequence"]) + 1, str(entry["hash"])
        except (ValueError, TypeError, KeyError):
            continue
    return None


def _hash(entry: Mapping[str, Any]) -> str:
    content = json.dumps([entry[name] for name in FIELDS], ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _bounded(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    text = json.dumps(detail, ensure_ascii=True, default=str)
    if len(text) > MAX_DETAIL_CHARS:
        return {"cut": text[:MAX_DETAIL_CHARS]}
    plain: Mapping[str, Any] = json.loads(text)
    return plain
