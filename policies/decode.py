"""Strict decoding of a document into a frozen model: all problems at once, each with its place and a suggestion."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from policies.problems import Fault, Path, PolicyError, Problem, closest, show_path, show_value
from policies.yamltree import MAX_DEPTH, MAX_INT, MAX_NODES, MAX_PROBLEMS, TOO_LARGE, Node, read_yaml

M = TypeVar("M", bound=BaseModel)
Checks = Callable[[Mapping[str, object]], list[Fault]]

ALREADY_CHECKED = "document_faults"
"""Type of the error that a model raises for faults that `Checks` finds too, with a place for each."""

_LIMIT_WORDS = {
    "greater_than": ("must be more than {gt}", "gt"),
    "greater_than_equal": ("must be at least {ge}", "ge"),
    "less_than": ("must be less than {lt}", "lt"),
    "less_than_equal": ("must be at most {le}", "le"),
}
_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": "has characters that are not allowed here, or is too long",
}


def said_of(kind: str, context: Mapping[str, Any]) -> str | None:
    """What a value must be, by the type and the context of pydantic's error; None where its own message has to do."""
    if kind in _LIMIT_WORDS:
        words, name = _LIMIT_WORDS[kind]
        return words.format_map({name: f"{context[name]:g}"})
    return _WORDS.get(kind)


def decode_text(model: type[M], text: str | bytes, checks: Checks) -> M:
    """Read YAML (or JSON, which is YAML) into `model`; raises PolicyError with everything that is wrong."""
    root, problems, faulty = read_yaml(text)
    if root is None:
        # Nothing at all is most often a file that is just being written: never an empty document.
        raise PolicyError(problems or [Problem("", "is empty; write {} for all defaults", 1, 1)])
    if not isinstance(root.value, dict):
        raise PolicyError([*problems, _place(Fault((), "must be a mapping of sections", root.value), root)])
    result, faults = _validate(model, root.value, checks)
    problems += [_place(fault, root) for fault in faults if fault.path not in faulty]
    if problems or result is None:
        raise PolicyError(sorted(problems, key=lambda one: (one.line or 0, one.column or 0))[:MAX_PROBLEMS])
    return result


def decode_mapping(model: type[M], data: Mapping[str, object], checks: Checks) -> M:
    """As `decode_text` for data that was parsed elsewhere, such as a JSON body."""
    faults: list[Fault] = []
    plain = _Copier(faults).copy(data, ())
    if not isinstance(plain, dict):
        raise PolicyError([_place(fault, None) for fault in faults or [Fault((), "must be a mapping of sections")]])
    faulty = {fault.path for fault in faults}
    result, found = _validate(model, plain, checks)
    faults += [fault for fault in found if fault.path not in faulty]
    if faults or result is None:
        raise PolicyError(_place(fault, None) for fault in faults[:MAX_PROBLEMS])
    return result


def _place(fault: Fault, root: Node | None) -> Problem:
    line, column = root.place(fault.path) if root is not None else (None, None)
    return Problem(show_path(fault.path), fault.message, line, column, show_value(fault.value), fault.suggestion)


class _Copier:
    """Copies data into dicts, lists and plain scalars, within bounds; notes what it can't copy."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._left = MAX_NODES

    def copy(self, value: object, path: Path) -> object:
        """The plain copy; None where there is a fault."""
        self._left -= 1
        message = self._refuse(value, path)
        if message is not None:
            if len(self._faults) < MAX_PROBLEMS:
                self._faults.append(Fault(path, message))
            return None
        if isinstance(value, Mapping):
            copied: dict[str, object] = {}
            for key, item in value.items():
                if self._left < 0:
                    break
                if isinstance(key, str) and _is_unicode(key):
                    copied[key] = self.copy(item, (*path, key))
                elif len(self._faults) < MAX_PROBLEMS:
                    self._faults.append(Fault((*path, show_value(key)), "keys must be text"))
            return copied
        if isinstance(value, list | tuple):
            # One more than fits is enough to find out that it does not fit.
            return [self.copy(item, (*path, place)) for place, item in enumerate(value[: max(1, self._left + 1)])]
        return value

    def _refuse(self, value: object, path: Path) -> str | None:
        if self._left < 0:
            return f"more than {MAX_NODES} values"
        if len(path) > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if isinstance(value, int) and abs(value) > MAX_INT:
            return TOO_LARGE
        if isinstance(value, str) and not _is_unicode(value):
            return "is not valid Unicode text"
        if value is None or isinstance(value, str | int | float | Mapping | list | tuple):
            return None
        return f"values of type {type(value).__name__} are not allowed"


def _is_unicode(text: str) -> bool:
    """False for text with half of a surrogate pair: it can't be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _validate(model: type[M], data: dict[str, object], checks: Checks) -> tuple[M | None, list[Fault]]:
    faults = checks(data)
    try:
        return model.model_validate(data), faults
    except ValidationError as error:
        found = [
            _explain(model, one["type"], _path(one["loc"]), one["msg"], one.get("input"), one.get("ctx", {}))
            # Thousands of faults take as long to put into words as nobody would read them.
            for one in error.errors(include_url=False)[: 4 * MAX_PROBLEMS]
            if one["type"] != ALREADY_CHECKED and not _echo(one)
        ]
        return None, [*found, *faults]


def _echo(error: Mapping[str, Any]) -> bool:
    """A list whose items are all refused is reported as too short as well."""
    return bool(error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"])


def _path(loc: tuple[int | str, ...]) -> Path:
    """pydantic marks an error of a key by a last part `[key]`."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _explain(
    model: type[BaseModel], kind: str, path: Path, told: str, value: object, context: Mapping[str, Any]
) -> Fault:
    """One error of pydantic in the words of the document."""
    if kind == "extra_forbidden":
        name = str(path[-1])
        return Fault(path, "unknown key", value, closest(name, _fields_at(model, path[:-1])))
    if kind == "missing":
        return Fault(path, "is required", None)
    got = show_value(value)
    if kind in _LIMIT_WORDS:
        return Fault(path, f"{said_of(kind, context)}, got {got}", value)
    if kind in ("enum", "literal_error"):
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        hint = closest(value, known) if isinstance(value, str) else None
        return Fault(path, f"must be one of {', '.join(known)}, got {got}", value, hint)
    if kind in ("too_long", "too_short"):
        bound = (
            f"at most {context.get('max_length')}" if kind == "too_long" else f"at least {context.get('min_length')}"
        )
        return Fault(path, f"must have {bound} entries", value)
    if kind in _WORDS:
        return Fault(path, f"{_WORDS[kind]}, got {got}", value, _unquoted(kind, value))
    return Fault(path, f"{told[:1].lower()}{told[1:]}, got {got}", value)


def _unquoted(kind: str, value: object) -> str | None:
    """The number or constant that was probably meant by text in its place."""
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if kind.startswith("bool"):
        return {"on": "true", "yes": "true", "true": "true", "off": "false", "no": "false", "false": "false"}.get(text)
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return str(int(number)) if number == int(number) else str(number)


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """Keys that the model allows in the mapping at `path`; none where there is no model."""
    current: Any = model
    for part in path:
        current = _part_of(_bare(current), part)
    current = _bare(current)
    return list(_fields(current)) if _is_model(current) else []


def _part_of(annotation: Any, part: str | int) -> Any:
    """The type of an entry of a model, a list or a mapping; None where there is none."""
    if _is_model(annotation):
        return _fields(annotation).get(str(part))
    arguments = typing.get_args(annotation)
    # tuple[X, ...] or dict[str, X]
    return arguments[0 if isinstance(part, int) else -1] if arguments else None


def _bare(annotation: Any) -> Any:
    """The type inside `Annotated[X, ...]` and `X | None`."""
    if typing.get_origin(annotation) in (typing.Annotated, types.UnionType, typing.Union):
        return _bare(typing.get_args(annotation)[0])
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _fields(model: Any) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}
