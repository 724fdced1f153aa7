"""The words of a change: what a value does, told in one line. Where there is no phrase, the field's own description
and unit tell it, so that a new field needs nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policies.document import Policy
from policies.problems import Path, show_path
from policies.sections import ModelPolicy, PoolPolicy, PriorityClass, TenantPolicy

ENTRIES: Final[Mapping[str, tuple[str, type[BaseModel]]]] = {
    "classes": ("class", PriorityClass),
    "tenants": ("tenant", TenantPolicy),
    "models": ("model", ModelPolicy),
    "pools": ("pool", PoolPolicy),
}

PHRASES: Final[Mapping[tuple[str, str], str]] = {
    ("pools", "max_budget_tokens"): "takes token budgets up to {after} instead of {before}",
    ("pools", "min_budget_tokens"): "takes token budgets from {after} instead of {before}",
    ("pools", "may_borrow"): "may borrow workers of {after} instead of {before}",
    ("pools", "endpoints"): "takes {after} instead of {before}",
    ("pools", "max_in_flight_per_worker"): "a worker holds at most {after} requests instead of {before}",
    ("tenants", "weight"): "weighs {after} instead of {before} against others that wait in its class",
    ("tenants", "max_class"): "gets class {after} at most instead of {before}",
    ("tenants", "max_in_flight"): "may run {after} requests at once instead of {before}",
    ("tenants", "max_queued"): "may have {after} requests waiting instead of {before}",
    ("tenants", "requests_per_min"): "may send {after} requests a minute instead of {before}",
    ("tenants", "tokens_per_min"): "may use {after} tokens a minute instead of {before}",
    ("models", "served_as"): "is asked of the engines as {after} instead of {before}",
    ("models", "pools"): "is served by {after} instead of {before}",
    ("models", "canary"): "gives shares of its sessions to {after} instead of to {before}",
    ("classes", "queue_timeout_s"): "waits at most {after} s instead of {before} s",
    ("classes", "floor"): "gets at least {after} of the dispatches instead of {before}",
    ("limits", "max_in_flight_per_worker"): "a worker holds at most {after} requests instead of {before}",
    ("balancing", "algorithm"): "workers are chosen by {after} instead of {before}",
    ("retries", "max_attempts"): "a request is tried {after} times at most instead of {before}",
    ("admission", "max_queued"): "{after} requests may wait instead of {before}",
    ("admission", "kv_watermark"): "{after} of a worker's KV cache may be booked instead of {before}",
}

NOTHING: Final[Mapping[tuple[str, str], str]] = {
    ("pools", "may_borrow"): "no other pool",
    ("pools", "endpoints"): "what generates text",
    ("pools", "min_budget_tokens"): "0",
    ("models", "pools"): "all pools",
    ("models", "canary"): "no pool",
    ("models", "served_as"): "its own name",
    ("tenants", "max_class"): "any",
    ("limits", "refused_fields"): "none",
    ("limits", "max_in_flight_per_worker"): "as many as its engine batches",
    ("pools", "max_in_flight_per_worker"): "the general limit",
}
"""What null, or an empty list, means where it is not simply "any number"."""


def effect_of(path: Path, kind: str, before: Any, after: Any) -> str:
    """One line: what the change at `path` does."""
    section = str(path[0])
    if section == "rules" and len(path) == 2:
        verb, rule = ("is new", after) if before is None else ("is gone", before)
        return f"rule {path[1]} {verb}: {_rule(rule)}"
    if section not in ENTRIES:
        name = str(path[-1])
        told = _phrase(section, name, _field(_section_model(section), name), before, after)
        return f"{show_path(path)}: {told}"
    word, model = ENTRIES[section]
    if len(path) == 1:
        return f"order of {section}: {', '.join(after)} instead of {', '.join(before)}"
    if kind in {"added", "removed"}:
        entry = after if kind == "added" else before
        return f"{word} {path[1]} is {'new' if kind == 'added' else 'gone'}{_brief(section, model, entry)}"
    name = str(path[2])
    return f"{word} {path[1]}: {_phrase(section, name, _field(model, name), before, after)}"


def _phrase(section: str, name: str, field: FieldInfo | None, before: Any, after: Any) -> str:
    phrase = PHRASES.get((section, name))
    if phrase is not None:
        return phrase.format_map({"before": show(section, name, before), "after": show(section, name, after)})
    unit = ""
    if field is not None and isinstance(field.json_schema_extra, dict):
        unit = f" {field.json_schema_extra.get('unit', '')}".rstrip()
    one, other = ("none" if value is None else f"{show(section, name, value)}{unit}" for value in (after, before))
    told = f" ({field.description.rstrip('.')})" if field is not None and field.description else ""
    label = f"{name} is " if section in ENTRIES else ""
    return f"{label}{one} instead of {other}{told}"


def show(section: str, name: str, value: Any) -> str:
    """A value in the middle of a sentence."""
    if value is None or value == []:
        return NOTHING.get((section, name), "any number" if value is None else "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(
            f"{one['pool']} ({one['weight']:g})" if isinstance(one, Mapping) else str(one) for one in value
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _brief(section: str, model: type[BaseModel], entry: Mapping[str, Any]) -> str:
    """What an entry says beyond its defaults."""
    said = [
        f"{key} {show(section, key, value)}"
        for key, value in entry.items()
        if key != "name" and value != _default(model, key)
    ]
    return f": {', '.join(said)}" if said else ""


def _default(model: type[BaseModel], key: str) -> Any:
    field = model.model_fields[key]
    default = field.get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default


def _rule(rule: Mapping[str, Any]) -> str:
    when = [
        f"{key.replace('_', ' ')} {value}" if not isinstance(value, Mapping) else f"headers {dict(value)}"
        for key, value in rule["when"].items()
        if value not in (None, {})
    ]
    then = [f"{key} {value}" for key, value in rule.items() if key != "when" and value is not None]
    return f"{', '.join(when) or 'every request'} -> {', '.join(then)}"


def _section_model(section: str) -> type[BaseModel] | None:
    annotation = Policy.model_fields[section].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _field(model: type[BaseModel] | None, name: str) -> FieldInfo | None:
    return (model or Policy).model_fields.get(name)
