"""YAML into plain values with the place of each, and problems that name path, line, value and suggestion.

`policies` has a reader of its own, built against hostile documents that come over the network. The worker side may
not import it (the two packages stay apart), and its file is written by who runs this host: the parser of the YAML
library, a bound on size and a bound on expanded aliases are enough.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from workers.instances import WorkersFile

Path = tuple[str | int, ...]

MAX_BYTES: Final = 1 << 20
MAX_NODES: Final = 100_000
MAX_PROBLEMS: Final = 100
_SHOWN: Final = 80
_PLAIN: Final = re.compile(r"[A-Za-z0-9_/:\-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a document. `line` counts from 1; None where there is none to name."""

    path: str
    message: str
    line: int | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        where = f"{self.path}: " if self.path else ""
        hint = f" (did you mean {self.suggestion}?)" if self.suggestion is not None else ""
        return f"{place}{where}{self.message}{hint}"


class WorkersError(ValueError):
    """A workers.yaml that cannot be used; `problems` has everything that is wrong with it, in document order.

    `file`: what it says all the same, where each value is right by itself and only together they are not.
    """

    def __init__(self, problems: Iterable[Problem], file: WorkersFile | None = None) -> None:
        self.problems = tuple(problems)
        self.file = file
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(slots=True)
class Document:
    """Plain data, the line of every path, and what is wrong with the text itself."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """Line of the value at `path`, or of the nearest thing around it that exists."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return None

    def problem(self, path: Path, message: str, suggestion: str | None = None) -> Problem:
        """A problem with its line."""
        return Problem(show_path(path), message, self.line(path), suggestion)


def read_document(text: str | bytes) -> Document:
    """Read one YAML document (or JSON, which is YAML). Never raises for what the text holds."""
    document = Document()
    if len(text) > MAX_BYTES:
        document.problems.append(Problem("", f"is larger than {MAX_BYTES} bytes"))
        return document
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            document.data = _Reader(document).read(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        document.problems.append(
            Problem("", f"is not YAML: {error.problem or error.context}", mark.line + 1 if mark is not None else None)
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        document.problems.append(Problem("", f"is not YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.problems.append(Problem("", "is nested too deeply"))
    return document


class _Reader:
    """Turns the library's nodes into plain values."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_NODES
        # SafeConstructor makes nothing but plain values; only its scalars are used.
        self._scalars: Any = yaml.constructor.SafeConstructor()

    def read(self, node: Any, path: Path) -> Any:
        self._left -= 1
        line = node.start_mark.line + 1
        self._document.lines.setdefault(path, line)
        if self._left < 0:
            if self._left == -1:
                self._note(path, f"has more than {MAX_NODES} values, aliases expanded", line)
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(one, (*path, index)) for index, one in enumerate(node.value) if self._left >= 0]
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError):
            self._note(path, f"cannot be read as {node.tag.rpartition(':')[2]}, got {show_value(node.value)}", line)
            return None
        # Dates and bytes have no place here: what was written is meant as text.
        return value if value is None or isinstance(value, str | bool | int | float) else node.value

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key_node.tag == "tag:yaml.org,2002:merge":
                self._note(path, "keys must be text; templates take the place of merge keys", line)
                continue
            here = (*path, key)
            if key in data:
                self._note(here, f"key given twice, first in line {self._document.lines[here]}", line)
                continue
            self._document.lines[here] = line
            data[key] = self.read(value_node, here)
        return data

    def _note(self, path: Path, message: str, line: int) -> None:
        if len(self._document.problems) < MAX_PROBLEMS:
            self._document.problems.append(Problem(show_path(path), message, line))


def show_path(path: Path) -> str:
    """`instances[1].port`; keys with other characters are quoted: `shared.templates["a.b"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
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


def closest(word: object, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None."""
    found = difflib.get_close_matches(str(word)[:_SHOWN], list(known), n=1, cutoff=0.6)
    return found[0] if found else None
