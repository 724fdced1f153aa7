"""The policy file, watched by reading it: in-place writes, renames over it and swapped symlinks all look the same.

Time stamps and sizes are not trusted (both may stay the same while the content changes), nor are notifications, which
network file systems and bind mounts lose. A content counts once it has been the same for `SETTLE_S`, so that a file
that is just being written is not half applied, even where its first half would be a valid document.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from policies.problems import PolicyError, Problem
from policies.yamltree import MAX_BYTES

POLL_S = 0.25
SETTLE_S = 0.7


class PolicyFile:
    """The file at `path`: what it holds, and which of its contents have been taken notice of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gone = False
        """Whether it could not be read last time; what was read before still holds."""
        self._noticed = b""  # hash of the content that was given out last
        self._seen = b""  # hash of what was read last
        self._since = 0.0  # when that was first there

    def read(self) -> bytes:
        """The content, at most one byte more than a policy may have. Raises `PolicyError`."""
        try:
            raw = _read(self.path)
        except OSError as error:
            self.gone = True
            message = f"cannot read policy file {self.path}: {error.strerror or error}"
            raise PolicyError([Problem("", message)]) from error
        self.gone = False
        return raw

    def notice(self, raw: bytes) -> None:
        """This content is known: `changed` gives it out no more."""
        self._noticed = self._seen = hashlib.sha256(raw).digest()

    def changed(self, now: float) -> bytes | None:
        """The content if it is not the one noticed last and has settled; None otherwise, also while there is no file.

        `now`: seconds, monotonic. Whoever gets a content calls `notice` when it has been dealt with.
        """
        try:
            raw = self.read()
        except PolicyError:
            self._seen = b""
            return None
        seen = hashlib.sha256(raw).digest()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if seen == self._noticed or now - self._since < SETTLE_S:
            return None
        return raw


def _read(path: Path) -> bytes:
    # A pipe in the file's place must not keep us waiting for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("not a regular file")
        return file.read(MAX_BYTES + 1)
