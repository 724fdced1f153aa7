"""The revisions on this host's disk: the last good one, so that a gateway starts without Redis, and those before it.

One JSON line a revision, appended and synced before the revision becomes current. Every line carries a hash over its
content and over the line before, so a torn or an edited one is seen: what cannot be believed is passed over. Several
processes of one host may share the file.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.files import locked
from policies.revisions import MAX_KEPT, MAX_KEPT_BYTES, History

MAX_LINES = 2 * MAX_KEPT
MAX_FILE_BYTES = 4 * MAX_KEPT_BYTES
MAX_LINE_BYTES = 2 * 1024 * 1024  # a document of the largest size, escaped


class Journal:
    """The journal at `path`; its directory is made when something is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        """Lines that could not be believed when it was read last."""
        self._lines = 0  # there are, as far as this process knows

    def read(self) -> History:
        """What it holds; an empty history where there is no file. Raises `OSError`."""
        history = History()
        self.skipped = self._lines = 0
        try:
            with self.path.open("rb") as file:
                for line in _lines(file):
                    self._lines += 1
                    try:
                        history.add(json.loads(line))
                    except (ValueError, AttributeError):
                        self.skipped += 1
        except (FileNotFoundError, NotADirectoryError):
            pass
        return history

    def append(self, record: Mapping[str, Any], kept: History) -> None:
        """Write one revision (`to_record`) so that it survives a crash. `kept`: what the file should hold when it has
        grown too large and is written anew. Raises `OSError`."""
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        with locked(self.path.parent):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":
                        line = b"\n" + line  # an earlier writer died in the middle of its line
                file.write(line)
                os.fsync(file.fileno())
            self._lines += 1
            if self._lines > MAX_LINES or size + len(line) > MAX_FILE_BYTES:
                self._rewrite(kept)

    def _rewrite(self, kept: History) -> None:
        new = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for each in kept:
                    file.write((json.dumps(each.whole(), separators=(",", ":")) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            self._lines = len(kept)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _lines(file: Any) -> Iterator[bytes]:
    """The lines of a file, at most MAX_LINE_BYTES of each."""
    while line := file.readline(MAX_LINE_BYTES):
        yield line
        while line and not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
            line = file.readline(MAX_LINE_BYTES)
