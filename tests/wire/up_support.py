"""A running `headrace up` for tests, and what is left of it afterwards."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 30.0  # for a machine that is busy with other things
ANY_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def parents() -> dict[int, int]:
    """Parent of every process that has not ended."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if fields[0] != "Z":
            found[int(stat.parent.name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    tree = parents()
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in tree.items() if parent in fresh} - found
        found |= fresh
    return found


async def wait_until(what: str, holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.01)


def files_below(directory: Path) -> list[str]:
    """What is left there but the admin tokens: the command line finds them in the state directory."""
    return [str(path) for path in directory.rglob("*") if path.suffix != ".token" and path != directory / "headrace"]


def is_free(url: str) -> bool:
    where = urlsplit(url)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.hostname, where.port))
        except OSError:
            return False
    return True


class Up:
    """A running `headrace up`, its home and temporary directory kept apart so that every file it leaves is seen."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        self.process = process
        self.home = home
        self.urls: dict[str, str] = {}
        self.family: set[int] = set()

    @classmethod
    async def start(cls, home: Path, *words: str) -> "Up":
        private = {"HOME": str(home), "TMPDIR": str(home), "XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "headrace", "up", *ANY_PORTS, *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **private},
            cwd=home,
        )
        return cls(process, home)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stdout.readline()).decode()

    async def ready(self) -> "Up":
        """Wait for the ready line of `--json`."""
        event = json.loads(await self.line())
        assert event.keys() == {"event", "data", "admin", "dashboard", "redis"}
        assert event["event"] == "ready"
        self.urls = event
        self.family = descendants(self.process.pid)
        return self

    async def ended(self) -> tuple[int, str, str]:
        """Wait for the end; exit status and what was still printed."""
        async with asyncio.timeout(PATIENCE_S):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()

    async def nothing_left(self) -> None:
        await wait_until("every process has ended", lambda: not self.family & parents().keys())
        assert is_free(self.urls["data"])
        assert is_free(self.urls["admin"])
        assert files_below(self.home) == []
