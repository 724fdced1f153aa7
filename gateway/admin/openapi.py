"""The OpenAPI 3.1 document of the admin plane, made from its table of calls."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.admin.access import LEAST, Need
from gateway.admin.table import ANY_TEXT, CALLS, V1, Call

_PATTERN: Final = re.compile(r"\{(\w+):.*\}(?=/|$)")
_NAME: Final = re.compile(r"\{(\w+)\}")
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_SENT: Final = {
    408: "the body does not come",
    413: "larger than a body may be",
    415: "a body with `Content-Encoding`",
}


def openapi(version: str) -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(plain(call.path), {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace admin API", "version": version},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _error(), "Policy": {"$ref": f"{V1}/policy/schema"}},
        },
    }


def plain(path: str) -> str:
    """The path as OpenAPI writes it: parameters without their patterns."""
    return _PATTERN.sub(r"{\1}", path)


def _error() -> dict[str, Any]:
    words = {name: {"type": "string"} for name in ("message", "type", "code")}
    return {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "object", "required": [*words], "properties": words}},
    }


def _operation(call: Call) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": call.handler.replace(".", "_"),
        "summary": call.summary,
        "parameters": _parameters(call),
        "responses": _responses(call),
    }
    if call.need is not Need.NOTHING:
        operation["security"] = [{"token": []}, *([{}] if call.need is Need.READ else [])]
        operation["description"] = f"Role {LEAST[call.need]}."
    if call.body is not None:
        operation["requestBody"] = {"required": call.body_needed, "content": _content(call)}
    return operation


def _parameters(call: Call) -> list[dict[str, Any]]:
    path = plain(call.path)
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _in_path(name)} for name in _NAME.findall(path)
    ]
    found += [
        {"name": name, "in": "query", "description": one.told, "schema": dict(one.schema), "required": name == "mode"}
        for name, one in call.query.items()
    ]
    if call.method == "PUT":
        tag = "the ETag that its author has seen, or `*`"
        schema = {"type": "string", "minLength": 1}
        found.append({"name": "If-Match", "in": "header", "required": True, "description": tag, "schema": schema})
    return found


def _in_path(name: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0} if name == "number" else {"type": "string", "minLength": 1}


def _content(call: Call) -> dict[str, Any]:
    body = dict(call.body or {})
    if body.get("type") == "object":
        return {"application/json": {"schema": body}}
    if call.body == ANY_TEXT:
        return {"application/yaml": {"schema": body}, "application/json": {"schema": body}}
    words = {"note": {"type": "string"}, "author": {"type": "string"}}
    wrapped = {"type": "object", "required": ["policy"], "properties": {"policy": body, **words}}
    return {"application/yaml": {"schema": body}, "application/json": {"schema": {"anyOf": [body, wrapped]}}}


def _responses(call: Call) -> dict[str, Any]:
    told = dict(call.answers)
    good = 201 if 201 in told else 200
    told.setdefault(good, "done")
    if call.body is not None:
        told = {**_SENT, **told}
    if call.body is not None or call.query:
        told.setdefault(400, "not what can be read here")
    if call.need is not Need.NOTHING:
        told[401] = "no token, or a wrong one"
        told[429] = "too many calls, changes or wrong tokens from this address"
    told[403] = "the token's role is too small, or a page of elsewhere calls" if 401 in told else "of elsewhere"
    told[500] = "a fault of the gateway"
    found: dict[str, Any] = {}
    for status, words in sorted(told.items()):
        found[str(status)] = {"description": words}
        if status == good or (status == 503 and call.path == "/readyz"):
            found[str(status)]["content"] = _given(call)
        elif status >= 400:
            found[str(status)]["content"] = _ERROR
    return found


def _given(call: Call) -> dict[str, Any]:
    if call.gives and "/" in call.gives[0]:
        return {kind: {"schema": {"type": "string"}} for kind in call.gives}
    found: dict[str, Any] = {"application/json": {"schema": {"type": "object", "required": list(call.gives)}}}
    if call.handler in {"policy.get", "policy.revision"}:
        found["application/yaml"] = {"schema": {"type": "string"}}
    return found
