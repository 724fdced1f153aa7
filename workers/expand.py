"""From the text of `workers.yaml` to instances with every value in its place; all faults at once.

An instance's value comes from the first that has it: the instance, its template, `shared.defaults`. Mappings
(`env`, `other_ports`) are joined key by key, everything else is replaced whole. `${name}` stands for a variable:
one given on the command line, the instance's own, its template's, `shared.variables`, or `name` and `index` (from 0)
of the instance; `${name:-text}` has a default, `$${` is a plain `${`. A value that is one variable and nothing else
keeps its type. A fault is told where it was written, in a template or in the defaults if it came from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from workers.instance_checks import check, flags_and_env
from workers.instances import MAX_INSTANCES, Instance, Shared, WorkersFile
from workers.portplan import assign_ports
from workers.yamldoc import MAX_PROBLEMS, Document, Path, WorkersError, closest, read_document, show_value

M = TypeVar("M", bound=BaseModel)

MAX_TEXT: Final = 1 << 20  # characters of one value with its variables filled in

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_.-]*)(?::-([^}]*))?\}")
_FRAME: Final = ("defaults", "templates", "variables")  # of `shared`: used up here
_JOINED: Final = ("env", "other_ports")


@dataclass(slots=True)
class Draft:
    """An instance before its values are checked: values by field, and where each was written."""

    index: int
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)
    incomplete: bool = False  # a layer is missing, which is told already: what it would have set is not

    def origin(self, path: Path) -> Path:
        """Where the value at `path` of this instance stands in the document."""
        for length in range(len(path), 0, -1):
            if (found := self.origins.get(path[:length])) is not None:
                return (*found, *path[length:])
        return ("instances", self.index, *path)


class _Notes:
    """Problems, each once: what is wrong in a template is wrong for all who use it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found = {(one.path, one.message): one for one in document.problems}

    def add(self, path: Path, message: str, suggestion: str | None = None) -> None:
        one = self.document.problem(path, message, suggestion)
        self._found.setdefault((one.path, one.message), one)

    def __len__(self) -> int:
        return len(self._found)

    def done(self, file: WorkersFile | None = None) -> None:
        """Raise if there is anything."""
        if self._found:
            ordered = sorted(self._found.values(), key=lambda one: one.line or 0)
            raise WorkersError(ordered[:MAX_PROBLEMS], file)


def parse_workers(text: str | bytes, variables: Mapping[str, str] | None = None) -> WorkersFile:
    """Read, expand and check the file. Raises WorkersError with everything that is wrong with it."""
    document = read_document(text)
    notes = _Notes(document)
    data = document.data
    if not isinstance(data, dict):
        if not document.problems:
            notes.add((), "is empty" if data is None else "must be a mapping with shared and instances")
        notes.done()
    data = dict(data)
    shared_data = _mapping(data.pop("shared", {}), ("shared",), notes)
    listed = data.pop("instances", None)
    for key in data:
        notes.add((key,), "unknown key", closest(key, ("shared", "instances")))
    frame = {name: _mapping(shared_data.pop(name, {}), ("shared", name), notes) for name in _FRAME}
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_INSTANCES:
        notes.add(("instances",), f"must be a list of 1 to {MAX_INSTANCES} instances, got {show_value(listed)}")
        listed = []
    shared = _validate(Shared, shared_data, notes, lambda path: ("shared", *path))
    drafts = []
    for index, one in enumerate(listed):
        if isinstance(one, dict):
            drafts.append(_draft(index, one, frame, dict(variables or {}), notes))
        else:
            notes.add(("instances", index), f"must be a mapping, got {show_value(one)}")
    _check_unused(frame, notes)
    whole = shared if shared is not None else Shared.model_validate({})
    assign_ports(whole.ports, [draft.values for draft in drafts])
    kept: list[tuple[Draft, Instance]] = []
    for draft in drafts:
        one = _validate(Instance, draft.values, notes, draft.origin, incomplete=draft.incomplete)
        if one is not None:
            kept.append((draft, one))
        else:
            # Values are wrong; that need not hide what is wrong with its flags.
            for fault in flags_and_env(draft.index, draft.values):
                notes.add(draft.origin(fault.path), fault.message)
    file = WorkersFile(shared=whole, instances=tuple(one for _, one in kept))
    sound = not notes
    for fault in check(file):
        notes.add(kept[fault.index][0].origin(fault.path), fault.message, fault.suggestion)
    notes.done(file if sound else None)
    return file


def _mapping(value: object, path: Path, notes: _Notes) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    if value is not None:
        notes.add(path, f"must be a mapping, got {show_value(value)}")
    return {}


def _draft(
    index: int, own: dict[str, Any], frame: dict[str, dict[str, Any]], given: dict[str, str], notes: _Notes
) -> Draft:
    """Put the layers together, lowest first, and fill in the variables."""
    here: Path = ("instances", index)
    own = dict(own)
    draft = Draft(index)
    own_variables = _mapping(own.pop("variables", {}), (*here, "variables"), notes)
    layers: list[tuple[Path, dict[str, Any]]] = [(("shared", "defaults"), frame["defaults"])]
    template_variables: dict[str, Any] = {}
    wanted = own.pop("template", None)
    if wanted is not None:
        templates = frame["templates"]
        if not isinstance(wanted, str) or wanted not in templates:
            draft.incomplete = True
            hint = closest(wanted, templates)
            notes.add((*here, "template"), f"names no template of shared.templates, got {show_value(wanted)}", hint)
        else:
            at: Path = ("shared", "templates", wanted)
            template = _mapping(templates[wanted], at, notes)
            template_variables = _mapping(template.pop("variables", {}), (*at, "variables"), notes)
            layers.append((at, template))
    layers.append((here, own))
    for at, layer in layers:
        for key, value in layer.items():
            _lay(draft, key, value, (*at, key))
    built_in = {"name": own.get("name"), "index": index}
    known = {**built_in, **frame["variables"], **template_variables, **own_variables, **given}
    for key in draft.values:
        draft.values[key] = _fill(draft.values[key], (key,), draft, known, notes)
    return draft


def _lay(draft: Draft, key: str, value: Any, at: Path) -> None:
    below = draft.values.get(key)
    if key in _JOINED and isinstance(value, dict) and isinstance(below, dict):
        draft.values[key] = {**below, **value}
        draft.origins |= {(key, name): (*at, name) for name in value}
        return
    draft.values[key] = value
    draft.origins = {path: origin for path, origin in draft.origins.items() if path[0] != key}
    draft.origins[key,] = at


def _fill(value: Any, path: Path, draft: Draft, known: Mapping[str, Any], notes: _Notes) -> Any:
    if isinstance(value, dict):
        return {name: _fill(one, (*path, name), draft, known, notes) for name, one in value.items()}
    if isinstance(value, list):
        return [_fill(one, (*path, index), draft, known, notes) for index, one in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _VARIABLE.fullmatch(value)
    if whole is not None and whole[1] in known:
        return known[whole[1]]

    def put(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "${"
        if known.get(name) is not None:
            return str(known[name])
        if default is None:
            notes.add(draft.origin(path), f"${{{name}}} is not a variable here", closest(name, known))
        return default or ""

    return _VARIABLE.sub(put, value)[:MAX_TEXT]


def _check_unused(frame: dict[str, dict[str, Any]], notes: _Notes) -> None:
    """Keys of defaults and templates that no instance has brought to light."""
    fields = set(Instance.model_fields) - {"name"}
    layers: list[tuple[Path, Any, set[str]]] = [(("shared", "defaults"), frame["defaults"], fields)]
    for name, template in frame["templates"].items():
        layers.append((("shared", "templates", name), template, fields | {"variables"}))
    for at, layer, allowed in layers:
        for key in _mapping(layer, at, notes):
            if key == "name":
                notes.add((*at, key), "every instance has a name of its own; leave it out here")
            elif key not in allowed:
                notes.add((*at, key), "unknown key", closest(key, allowed))


def _validate(
    model: type[M],
    data: dict[str, Any],
    notes: _Notes,
    origin: Callable[[Path], Path],
    *,
    incomplete: bool = False,
) -> M | None:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            if incomplete and one["type"] == "missing":
                continue
            path = tuple(part for part in one["loc"] if part != "[key]")
            message, hint = explain(model, one["type"], path, one["msg"], one.get("input"), one.get("ctx", {}))
            notes.add(origin(path), message, hint)
        return None


_WORDS: Final = {
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
    "string_pattern_mismatch": "has characters that are not allowed here, or is empty or too long",
}
_BOUNDS: Final = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}


def explain(
    model: type[BaseModel], kind: str, path: Path, told: str, value: object, context: Mapping[str, Any]
) -> tuple[str, str | None]:
    """One error of pydantic in the words of the file: (message, suggestion)."""
    if kind == "extra_forbidden":
        known = list(_keys(model, path[:-1]))
        return "unknown key", closest(path[-1], [*known, "template", "variables"] if len(path) == 1 else known)
    if kind == "missing":
        return "is required", None
    got = show_value(value)
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind].format_map(context)}, got {got}", None
    if kind == "enum":
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"must be one of {', '.join(known)}, got {got}", closest(value, known)
    if kind == "value_error":
        return f"{context['error']}, got {got}", None
    return f"{_WORDS.get(kind) or told[:1].lower() + told[1:]}, got {got}", None


def _keys(model: type[BaseModel], path: Path) -> Iterator[str]:
    """Keys that the model has at `path`; none where there is no model."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        info = current.model_fields.get(part) if isinstance(current, type) and issubclass(current, BaseModel) else None
        current = next(_models_in(info.annotation), None) if info is not None else None
    if current is not None:
        yield from current.model_fields


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)
