"""Reads the few samples an agent needs out of Prometheus text: quickly, in bounded memory, whatever the text is.

An engine writes 50-75 KB of it and is asked once a second, so lines nobody asked for are skipped by the regular
expression engine and never become objects. The text is not trusted: an agent may be pointed at anything.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text 0.0.4 and 1.0.0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_SCRAPE_BYTES = 4 * 1024 * 1024
MAX_SAMPLES = 4096  # of wanted names, in one text
MAX_LABELS_BYTES = 16 * 1024  # of one sample; vLLM's cache_config_info has 1.2 KB

_NUMBER = re.compile(rb"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,4})?")
_LABEL = re.compile(rb'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(?:,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One finite value and its labels."""

    labels: Mapping[str, str]
    value: float


class Scraper:
    """Finds the samples of a fixed set of names. Made once for an engine kind, used every second."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        # Longest first, so that no name hides behind another that begins like it.
        choices = b"|".join(re.escape(name.encode()) for name in sorted(self.names, key=len, reverse=True))
        self._lines = re.compile(rb"\n[ \t]*(" + choices + rb")(?=[ \t{])([^\n]*)")

    def read(self, text: bytes) -> dict[str, list[Sample]]:
        """The samples of each wanted name that has any, in the order of the text.

        A line that is not a sample with a finite value is skipped, as are samples past `MAX_SAMPLES`: an agent
        must be able to live with what is missing anyway. Raises `ValueError` for more than `MAX_SCRAPE_BYTES`.
        """
        if len(text) > MAX_SCRAPE_BYTES:
            raise ValueError(f"metrics text of {len(text)} bytes, at most {MAX_SCRAPE_BYTES} are read")
        found: dict[str, list[Sample]] = {}
        for count, line in enumerate(self._lines.finditer(b"\n" + text)):
            if count == MAX_SAMPLES:
                break
            sample = _sample(line[2])
            if sample is not None:
                found.setdefault(line[1].decode(), []).append(sample)
        return found


def _sample(rest: bytes) -> Sample | None:
    """What follows the name: labels in braces or none, a value, perhaps a timestamp."""
    rest = rest.strip()
    labels: dict[str, str] = {}
    position = 0
    if rest.startswith(b"{"):
        position = 1
        while label := _LABEL.match(rest, position, MAX_LABELS_BYTES):
            labels[label[1].decode()] = _unescaped(label[2])
            position = label.end()
        position = _skip_blank(rest, position)
        if rest[position : position + 1] != b"}":
            return None
        position += 1
    number = _NUMBER.match(rest, _skip_blank(rest, position))
    if number is None or rest[number.end() : number.end() + 1] not in (b"", b" ", b"\t"):
        return None
    value = float(number[0])
    return Sample(labels, value) if math.isfinite(value) else None


def _skip_blank(text: bytes, position: int) -> int:
    while text[position : position + 1] in (b" ", b"\t"):
        position += 1
    return position


def _unescaped(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if "\\" in text else text
