"""Makes one HTML page of what suites printed with `--json`: `headrace report`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final

from loadtest.report_lines import MAX_LINE_BYTES, LineError, Source, read, totals
from loadtest.report_page import page

STDIN: Final = "-"


class ReportError(RuntimeError):
    """What was read is good, and the page cannot be written; says in one line why."""


def make_report(names: Sequence[str], output: Path, *, force: bool = False) -> tuple[int, int]:
    """Read all of these, then write the page; (figures, those that fall short).

    `-` is the standard input. Raises LineError for what cannot be read or used, with nothing written; ReportError where
    the page cannot be written.
    """
    if not force and output.exists():
        raise LineError(f"{output} exists; give --force to write over it, or another --output")
    sources: list[Source] = []
    lines = 0
    for name in names:
        if name != STDIN and output.exists() and Path(name).exists() and output.samefile(name):
            raise LineError(f"{output} is what the report is made from; give another --output")
        source, lines = _source(name, lines)
        sources.append(source)
    text = page(sources, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", metadata.version("headrace"))
    try:
        _write(text, output, force)
    except OSError as error:
        raise ReportError(f"{output} cannot be written: {error.strerror or error}") from error
    return totals(sources)


def _source(name: str, lines: int) -> tuple[Source, int]:
    if name == STDIN:
        return read("standard input", _lines(sys.stdin.buffer), lines)
    try:
        with Path(name).open("rb") as file:
            return read(name, _lines(file), lines)
    except OSError as error:
        raise LineError(f"{name}: cannot be read: {error.strerror or error}") from None


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines, none of them longer than is looked at: without a bound a file of zeros would be one line in memory."""
    while line := file.readline(MAX_LINE_BYTES + 2):
        yield line


def _write(text: str, output: Path, force: bool) -> None:
    """All or nothing: who reads the file meanwhile finds the old one or the new one."""
    if not force:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
        return
    with NamedTemporaryFile("w", encoding="utf-8", dir=output.parent, prefix=f".{output.name}-", delete=False) as file:
        written = Path(file.name)
        try:
            file.write(text)
            file.close()
            written.chmod(0o644)
            written.replace(output)
        except OSError:
            with suppress(OSError):
                written.unlink()
            raise
