"""Files of the state directory that several gateways of one host may write."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """The directory to ourselves among this host's processes; made if it is not there. Raises `OSError`.

    A lock of the directory itself leaves no lock file behind. What was renamed in it is on disk when this ends.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)
    finally:
        os.close(fd)
