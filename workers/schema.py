"""`python -m workers.schema` writes `workers/schema.json`: what editors check a `workers.yaml` with.

Made from the models, for the file as it is written: in layers, and with variables where values will be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from workers.instances import MAX_INSTANCES, WorkersFile

SCHEMA: Final = Path(__file__).with_name("schema.json")
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


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
