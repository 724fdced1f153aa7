"""Files of the state directory that several gateways of one host may write."""

from __future__ import annotations

import fcntl
import os
import secrets
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


def write_whole(path: Path, text: bytes) -> None:
    """Replace a file so that nobody ever sees half of it. Raises `OSError`.

    It is not waited for until the disk has it, which may take many seconds where others write too, and a gateway that
    is to stop would stand still: for what may be forgotten when the power fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
