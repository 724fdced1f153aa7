"""Reads YAML into plain values and remembers where each of them stood.

Built from parser events instead of PyYAML's composer: no recursion, every duplicate key seen, aliases counted at
their expanded size, and nothing but text, numbers, booleans, null, lists and mappings comes out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from policies.problems import Fault, Path, Problem, show_path, show_value

MAX_BYTES = 256 * 1024
MAX_NODES = 50_000  # values after aliases are expanded
MAX_DEPTH = 32
MAX_PROBLEMS = 100
MAX_INT = 2**63 - 1  # what JSON readers, Redis and Prometheus agree on
MAX_NUMBER_CHARS = 64
TOO_LARGE = f"is too large a number; {MAX_INT} is the largest"

_TAG = "tag:yaml.org,2002:"
_READ_AS_TEXT = frozenset({_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "merge"})
_NUMERIC = frozenset({_TAG + "int", _TAG + "float"})
_CONSTANT = frozenset({_TAG + "bool", _TAG + "null"})
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_COLLECTION = frozenset({None, "!", _TAG + "map", _TAG + "seq"})

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_resolver: Any = yaml.resolver.Resolver()
_constructor: Any = yaml.constructor.SafeConstructor()


class _UnreadableError(Exception):
    """The text can't be read any further."""


@dataclass(slots=True)
class Node:
    """A value, its place (from 1) and, for lists and mappings, its parts by index or key."""

    value: Any
    line: int
    column: int
    size: int = 1
    parts: dict[str | int, Node] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: Path) -> tuple[int, int]:
        """Line and column of the value at `path`, or of the nearest thing around it that exists."""
        node, place = self, (self.line, self.column)
        for part in path:
            if part in node.keys:
                place = node.keys[str(part)]
            elif part in node.parts:
                place = (node.parts[part].line, node.parts[part].column)
            if part not in node.parts:
                break
            node = node.parts[part]
        return place


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet. `key`: waiting for its value; None: a key comes next."""

    node: Node
    path: Path
    is_mapping: bool
    anchor: str | None
    key: str | None = None


def read_yaml(text: str | bytes) -> tuple[Node | None, list[Problem], set[Path]]:
    """The document's tree (None when it can't be read), what is wrong so far, and the paths that is about."""
    reader = _Reader()
    try:
        reader.read(_as_text(text, reader))
    except _UnreadableError:
        return None, reader.problems, reader.faulty
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        told = error.problem or error.context or "can't be read"
        reader.add(Fault((), f"not valid YAML: {told}"), mark)
        return None, reader.problems, reader.faulty
    except yaml.YAMLError as error:
        reader.add(Fault((), f"not valid YAML: {str(error).splitlines()[0]}"), None)
        return None, reader.problems, reader.faulty
    return reader.root, reader.problems, reader.faulty


def _as_text(text: str | bytes, reader: _Reader) -> str:
    """Decode and bound the size, in this order: a huge document is never looked into."""
    try:
        if len(text) > MAX_BYTES:
            size = len(text)
        else:
            decoded = text.decode() if isinstance(text, bytes) else text
            size = len(decoded.encode())
            if size <= MAX_BYTES:
                return decoded.removeprefix("\ufeff")
    except UnicodeError as error:
        # Bytes that don't decode, or text with half of a surrogate pair.
        reader.add(Fault((), f"not UTF-8 text: {error.reason} at offset {error.start}"), None)  # type: ignore[attr-defined]
        raise _UnreadableError from error
    reader.add(Fault((), f"larger than {MAX_BYTES // 1024} KiB: {size} bytes or more"), None)
    raise _UnreadableError


class _Reader:
    """Builds the tree from the parser's events."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self.faulty: set[Path] = set()
        self._open: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}
        self._nodes = 0

    def read(self, text: str) -> None:
        for event in yaml.parse(text, Loader=_Loader):
            match event:
                case yaml.ScalarEvent():
                    self._attach(self._scalar(event), event.anchor, event)
                case yaml.AliasEvent():
                    self._attach(self._alias(event), None, event)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._begin(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    done = self._open.pop()
                    self._attach(done.node, done.anchor, event)
                case yaml.DocumentStartEvent() if self.root is not None:
                    self.add(Fault((), "holds more than one YAML document"), event.start_mark)
                    raise _UnreadableError

    def add(self, fault: Fault, mark: Any) -> None:
        """Note a problem; too many end the reading."""
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        shown = show_value(fault.value) if fault.value is not None else None
        self.problems.append(Problem(show_path(fault.path), fault.message, line, column, shown, fault.suggestion))
        self.faulty.add(fault.path)
        if len(self.problems) >= MAX_PROBLEMS:
            raise _UnreadableError

    def _path(self) -> Path:
        """Where the value that comes next belongs."""
        if not self._open:
            return ()
        top = self._open[-1]
        if not top.is_mapping:
            return (*top.path, len(top.node.value))
        return top.path if top.key is None else (*top.path, top.key)

    def _begin(self, event: Any) -> None:
        if len(self._open) >= MAX_DEPTH:
            self.add(Fault(self._path(), f"nested deeper than {MAX_DEPTH} levels"), event.start_mark)
            raise _UnreadableError
        if event.tag not in _COLLECTION:
            self.add(Fault(self._path(), f"tag {event.tag[:80]} is not allowed"), event.start_mark)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        mark = event.start_mark
        node = Node({} if is_mapping else [], mark.line + 1, mark.column + 1)
        if event.anchor:
            self._anchors[event.anchor] = None  # known, but not complete before its end
        self._open.append(_Open(node, self._path(), is_mapping, event.anchor))

    def _attach(self, node: Node, anchor: str | None, event: Any) -> None:
        """Put a complete value where it belongs."""
        if anchor:
            self._anchors[anchor] = node
        self._nodes += node.size if isinstance(event, yaml.AliasEvent) else 1
        if self._nodes > MAX_NODES:
            self.add(Fault(self._path(), f"more than {MAX_NODES} values once aliases are expanded"), event.start_mark)
            raise _UnreadableError
        if not self._open:
            self.root = node
            return
        top = self._open[-1]
        if top.is_mapping and top.key is None:
            self._take_key(top, node, event)
            return
        top.node.size += node.size
        if top.key is not None:
            top.node.value[top.key] = node.value
            top.node.parts[top.key] = node
            top.key = None
        else:
            top.node.parts[len(top.node.value)] = node
            top.node.value.append(node.value)

    def _take_key(self, top: _Open, node: Node, event: Any) -> None:
        key = node.value
        if not isinstance(key, str):
            scalar = isinstance(event, yaml.ScalarEvent)
            written = event.value[:80] if scalar else show_value(key)
            hint = f'"{written}"' if scalar else None
            key = written
            self.add(Fault((*top.path, key), "keys must be text; put it in quotes", key, hint), event.start_mark)
        elif key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self.add(Fault((*top.path, key), "merge keys are not supported; write the entries out"), event.start_mark)
        elif key in top.node.value:
            first = top.node.keys[key][0]
            self.add(Fault((*top.path, key), f"key given twice, first in line {first}"), event.start_mark)
        top.key = key
        top.node.keys[key] = (node.line, node.column)

    def _alias(self, event: Any) -> Node:
        """The value an alias stands for; its place is the alias's own."""
        mark = event.start_mark
        known = self._anchors.get(event.anchor)
        if known is None:
            self_made = "refers to itself" if event.anchor in self._anchors else "names no anchor before it"
            self.add(Fault(self._path(), f"alias *{event.anchor[:80]} {self_made}"), mark)
            return Node(None, mark.line + 1, mark.column + 1)
        return Node(known.value, mark.line + 1, mark.column + 1, known.size, known.parts, known.keys)

    def _scalar(self, event: Any) -> Node:
        mark = event.start_mark
        node = Node(None, mark.line + 1, mark.column + 1)
        tag = event.tag if event.tag != "!" else _TAG + "str"
        if tag is None:
            tag = _resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        try:
            node.value = _construct(tag, event.value)
        except ValueError as error:
            self.add(Fault(self._path(), str(error), event.value), mark)
        return node


def _construct(tag: str, text: str) -> str | int | float | bool | None:
    """The plain value of a scalar; raises ValueError that says what is wrong with it."""
    if tag in _READ_AS_TEXT:
        return text
    if tag not in _NUMERIC | _CONSTANT:
        raise ValueError(f"tag {tag[:80]} is not allowed")
    if tag in _NUMERIC:
        _refuse_surprises(text)
    try:
        # Not `construct_object`: that keeps every node it has ever seen.
        construct = _constructor.yaml_constructors[tag]
        value: int | float | bool | None = construct(_constructor, yaml.ScalarNode(tag, text))
    except (ValueError, LookupError, OverflowError):
        raise ValueError(f"is not a number or constant that can be read: {show_value(text)}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise ValueError(TOO_LARGE)
    return value


def _refuse_surprises(text: str) -> None:
    """Raise for numbers that YAML 1.1 reads as hardly anybody means them, and for endless ones."""
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(TOO_LARGE)
    if ":" in text:
        raise ValueError("is a number of base 60 in YAML (1:30 is 90); write it out, or put it in quotes")
    if _OCTAL.fullmatch(text):
        raise ValueError("begins with 0, which makes it a number of base 8 in YAML; leave the 0 out")
