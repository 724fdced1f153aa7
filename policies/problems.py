"""What is wrong with a document, said so that its author finds and fixes it: path, place, value, suggestion."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_/:\-]+")
_SHOWN = 80  # characters of a value that a message repeats


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `line` and `column` count from 1 and are None where the document was not text."""

    path: str
    message: str
    line: int | None = None
    column: int | None = None
    value: str | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        where = f"{self.path}: " if self.path else ""
        hint = f" (did you mean {self.suggestion}?)" if self.suggestion is not None else ""
        return f"{place}{where}{self.message}{hint}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault before its place in the text is known."""

    path: Path
    message: str
    value: object = None
    suggestion: str | None = None


class PolicyError(ValueError):
    """A document that can't be used; `problems` holds everything that is wrong with it, in document order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def show_path(path: Path) -> str:
    """`pools.short-chat.may_borrow[0]`; keys with other characters are quoted: `models["a.b"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part[:_SHOWN])}]"
    return text


def show_value(value: object) -> str:
    """A value as the document would write it, cut to a length that fits a line."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    by_folded = {one.casefold(): one for one in known}
    match = difflib.get_close_matches(word[:_SHOWN].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[match[0]] if match else None
