"""`python -m workers.schema` writes what is published about `workers.yaml`, from its models.

`workers/schema.json` is what editors check a file with, as it is written: in layers, and with variables where values
will be. `docs/workers-yaml.md` is the reference for people.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from workers.instances import MAX_INSTANCES, DeviceSpec, Instance, MemoryPool, PortPool, PortRange, Shared, WorkersFile

SCHEMA: Final = Path(__file__).with_name("schema.json")
REFERENCE: Final = SCHEMA.parent.parent / "docs" / "workers-yaml.md"
VARIABLE: Final = {"type": "string", "pattern": r"\$\{", "description": "A value with variables: ${name}."}
VARIABLES: Final = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number", "boolean"]},
    "description": "Variables for ${name}.",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file as it is written."""
    schema = WorkersFile.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    fields = {name: _or_variable(one) for name, one in definitions["Instance"]["properties"].items()}
    name = fields.pop("name")
    layer = {"$ref": "#/$defs/Fields", "unevaluatedProperties": False}
    definitions["Fields"] = {"type": "object", "properties": fields}
    definitions["Instance"] = {
        **layer,
        "description": definitions["Instance"]["description"],
        "properties": {
            "name": name,
            "template": {"type": "string", "description": "Template of shared.templates that it takes values from."},
            "variables": VARIABLES,
        },
        # All else may come from a template, or from the defaults.
        "required": ["name"],
    }
    definitions["Shared"]["properties"] |= {
        "variables": VARIABLES,
        "defaults": {**layer, "description": "Values of instances that do not set them."},
        "templates": {
            "type": "object",
            "description": "Values of the instances that name the template.",
            "additionalProperties": {**layer, "properties": {"variables": VARIABLES}},
        },
    }
    schema["properties"]["instances"] |= {"minItems": 1, "maxItems": MAX_INSTANCES}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "workers.yaml", **_rest(schema)}


def _rest(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "title"}


def _or_variable(field: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {name: field[name] for name in ("description", "default") if name in field}
    bare = {name: value for name, value in field.items() if name not in described}
    return {**described, "anyOf": [*(bare.get("anyOf") or [bare]), {key: VARIABLE[key] for key in ("type", "pattern")}]}


def schema_text() -> str:
    """The file's content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


GIVEN_OUT: Final = ("port", "internal_ports")
SECTIONS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("shared", Shared),
    ("shared.devices[]", DeviceSpec),
    ("shared.memory", MemoryPool),
    ("shared.ports", PortPool),
    ("instances[]", Instance),
    ("instances[].internal_ports", PortRange),
)
INTRODUCTION: Final = """\
# workers.yaml

Made from `workers/instances.py` by `python -m workers.schema`; change it there.

The engine instances of one host, for `headrace worker run`. `workers/schema.json` lets editors check it. All faults are
reported at once, each with its path and line, and a fault in a template where the template has it.

```yaml
shared:
  devices: [{id: 0, memory: 80GiB}]
  memory: {mode: partitioned, reserve: 0.05}
  variables: {models: /srv/models}
  defaults: {engine: vllm, device: 0, max_num_seqs: 64}
  templates:
    chat:
      model_path: ${models}/chat
      served_name: chat
      priority_scheduling: true
instances:
  - {name: short-0, template: chat, pool: short-chat, max_model_len: 4096, memory_share: 0.35}
  - {name: long-0, template: chat, pool: long-context, max_model_len: 32768, memory_share: 0.6}
```

- **Layers.** A value comes from the first that has it: the instance, its template, `shared.defaults`. `env` and
  `other_ports` are joined key by key, everything else is replaced whole.
- **Variables.** `${name}` is one given with `--set`, the instance's own, its template's, one of `shared.variables`, or
  `name` and `index` (from 0) of the instance. `${name:-text}` has a default; `$${` is a plain `${`.
- **Ports** that nobody names are given out around those that are named: one for the API, a range for engines that count
  upwards by themselves. Two that want the same port are refused, with both owners.
- **Memory.** An instance takes a share of each of its devices or a KV size beside its weights. One instance of a device
  may have neither: it gets what the others leave. Sums above 1 − reserve are refused in `partitioned` mode and told in
  `shared` mode. A `max_model_len` that does not fit into the KV cache is refused, with the largest that does.
- **Flags** of the engine that a field sets are refused in `extra_flags`, and so are variables in `env`.
"""


def reference() -> str:
    """The reference for people: a table for each section."""
    parts = [INTRODUCTION]
    for path, model in SECTIONS:
        parts += [f"## `{path}`\n", "| field | default | meaning |", "|---|---|---|"]
        for name, info in model.model_fields.items():
            default = "required" if info.is_required() else f"`{_written(info.default)}`"
            if model is Instance and name in GIVEN_OUT:
                default = "given out"
            parts.append(f"| `{name}` | {default} | {info.description} |")
        parts.append("")
    return "\n".join(parts)


def _written(value: object) -> str:
    """A default as the file would have it; nothing and sections as what they amount to."""
    if isinstance(value, BaseModel):
        return "{}"
    return json.dumps(value if value != () else [])


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    REFERENCE.write_text(reference())
