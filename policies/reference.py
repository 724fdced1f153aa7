"""Makes what is published about the policy from its fields: `docs/policy.md` and `policies/schema.json`.

python -m policies.reference            # write both
python -m policies.reference --check    # exit 1 when one of them is not current
"""

from __future__ import annotations

import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policies.document import Policy, json_schema
from policies.endpoints import Endpoint

_ROOT = Path(__file__).resolve().parent.parent
MARKDOWN = _ROOT / "docs" / "policy.md"
SCHEMA = _ROOT / "policies" / "schema.json"

_INTRO = """\
# Policy reference

Made from `policies/document.py` by `python -m policies.reference`; change it there.

The policy is one YAML document (JSON through the admin API) that can change while traffic flows. Every field has a
default, so `{}` is a valid policy, the shipped one: `policies/default.yaml` spells it out, `policies/examples/` shows
others. Unknown keys, keys given twice, several documents in one file, merge keys and documents over 256 KiB are
refused. All faults are reported at once, each with its path and line.

A document that writes its own `pools` and leaves out `models` or `rules` gets none of the shipped ones, since those
name the shipped pools; the same goes for `classes` and `tenants`.
"""

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
_LENGTHS = (("min_length", "at least"), ("max_length", "at most"))


def reference() -> str:
    """The Markdown reference: a table of the top level, then one for each section."""
    parts = [_INTRO, "## The document\n", _table(Policy)]
    for model, where in _sections():
        parts += [f"## `{where}`\n", f"{_first_paragraph(model)}\n", _table(model)]
    return "\n".join(parts)


def schema_text() -> str:
    """The JSON Schema as it is published."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _sections() -> list[tuple[type[BaseModel], str]]:
    """Every part of the document with its path, in the order in which the document has them."""
    found: list[tuple[type[BaseModel], str]] = []

    def visit(model: type[BaseModel], path: str) -> None:
        for name, info in model.model_fields.items():
            inner, suffix = _entry(info.annotation)
            if inner is not None:
                where = f"{path}{info.alias or name}{suffix}"
                found.append((inner, where))
                visit(inner, f"{where}.")

    visit(Policy, "")
    return found


def _entry(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a field holds, and how a path goes through it: `.<name>` for a mapping, `[]` for a list."""
    arguments = typing.get_args(annotation)
    inner = arguments[-1] if typing.get_origin(annotation) is dict else arguments[0] if arguments else annotation
    if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        return None, ""
    suffixes: dict[Any, str] = {dict: ".<name>", tuple: "[]"}
    return inner, suffixes.get(typing.get_origin(annotation), "")


def _first_paragraph(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


def _table(model: type[BaseModel]) -> str:
    rows = ["| field | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for name, info in model.model_fields.items():
        unit = info.json_schema_extra.get("unit", "") if isinstance(info.json_schema_extra, dict) else ""
        meaning = (info.description or "").replace("|", "\\|")
        kind = f"{_type(info.annotation)}{_bounds(info)}"
        rows.append(f"| `{info.alias or name}` | {kind} | {_default(model, info)} | {unit} | {meaning} |")
    return "\n".join(rows) + "\n"


def _type(annotation: Any) -> str:
    """A type in words: whole number, list of text, one of these."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(one) for one in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping of name to {_type(arguments[1])}"
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if annotation is Endpoint:
        return "endpoint"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _PLAIN[annotation]


_PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "null",
}


def _bounds(info: FieldInfo) -> str:
    said = [f"{sign} {getattr(one, name):,}" for name, sign in _BOUNDS for one in info.metadata if hasattr(one, name)]
    said += [
        f"{words} {getattr(one, name):,} entries"
        for name, words in _LENGTHS
        for one in info.metadata
        if getattr(one, name, None) is not None
    ]
    return f" ({', '.join(said)})" if said else ""


def _default(model: type[BaseModel], info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if model is Policy and isinstance(value, dict | tuple | BaseModel):
        return "see `policies/default.yaml`"
    if isinstance(value, BaseModel):
        return "`{}`"
    return f"`{json.dumps(value)}`"


def main(arguments: list[str]) -> int:
    """Write both files, or check them; the exit status."""
    wanted = {MARKDOWN: reference(), SCHEMA: schema_text()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if "--check" in arguments:
            sys.stderr.write(f"{path.name} is not current: run python -m policies.reference\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], "utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
