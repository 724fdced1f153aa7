"""Every call of the admin plane: path, what it needs, what it does. Routes, roles and the OpenAPI document come from
this table, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.admin.access import LEAST, Need

V1: Final = "/admin/v1"
DOCUMENT: Final = "document"  # a policy, as YAML or JSON
OBJECT: Final = "object"  # a small JSON object


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `handler` is `group.method` of the handlers that `server.py` builds; `answers` are statuses beside
    200 and those that every call may have."""

    method: str
    path: str
    need: Need
    handler: str
    summary: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    answers: Mapping[int, str] = field(default_factory=dict)


_CHANGE: Final = {
    400: "not readable as a document",
    409: "guard rails stand against it; `force=1` applies it all the same",
    412: "`If-Match` is not the current revision",
    503: "Redis does not answer",
}
_WORDS: Final = {"note": "why, for the history", "author": "who, for the history"}
_WORKER: Final = {404: "no such worker", 503: "Redis does not answer"}
_FORCE: Final = {"force": "1: apply it although guard rails stand against it"}

_N, _R, _O, _A = Need.NOTHING, Need.READ, Need.OPERATE, Need.ADMINISTER

CALLS: Final = (
    Call("GET", "/livez", _N, "health.livez", "The process lives"),
    Call("GET", "/readyz", _N, "health.readyz", "Whether it takes traffic, and why not", answers={503: "not ready"}),
    Call("GET", "/metrics", _N, "health.metrics", "Prometheus metrics"),
    Call("GET", "/dashboard", _N, "page.index", "The dashboard: a page that makes the calls below"),
    Call("GET", "/dashboard/{name}", _N, "page.part", "Its scripts and styles", answers={404: "no such part"}),
    Call("GET", "/admin/openapi.json", _R, "health.openapi", "This description"),
    Call("GET", f"{V1}/whoami", _R, "health.whoami", "The role of the token that is sent"),
    Call("GET", f"{V1}/fleet", _R, "health.fleet", "One snapshot of everything"),
    Call("GET", f"{V1}/history", _R, "health.history", "Latencies by class over the last 15 minutes, in steps of 10 s"),
    Call("GET", f"{V1}/pools", _R, "workers.pools", "The pools: workers, load, queue"),
    Call("GET", f"{V1}/workers", _R, "workers.workers", "The workers: state, load, limit, KV"),
    Call("GET", f"{V1}/workers/{{id}}", _R, "workers.worker", "One worker", answers={404: "no such worker"}),
    Call("POST", f"{V1}/workers/{{id}}:drain", _O, "workers.drain", "Nothing new for a worker", answers=_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:undrain", _O, "workers.undrain", "Work for it again", answers=_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:cap", _O, "workers.cap", "At most so many places", body=OBJECT, answers=_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:eject", _O, "workers.eject", "Out of rotation", answers=_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:readmit", _O, "workers.readmit", "In rotation again", answers=_WORKER),
    Call("GET", f"{V1}/advice", _R, "workers.advice", "What stands out in the workers' reports, and what to change"),
    Call("GET", f"{V1}/tenants", _R, "workers.tenants", "The tenants: limits, running, waiting, served"),
    Call("GET", f"{V1}/requests/{{id}}", _R, "health.explain", "Why a request went where it went",
         answers={404: "not among the recent ones"}),
    Call("GET", f"{V1}/events", _R, "events.events", "What happens, as server-sent events",
         {"types": "policy,worker,request,state,audit: only these"}),
    Call("GET", f"{V1}/policy", _R, "policy.get", "The current document, with its ETag; YAML where `Accept` wants it"),
    Call("PUT", f"{V1}/policy", _O, "policy.put", "Make a document current", {**_FORCE, **_WORDS}, DOCUMENT,
         {**_CHANGE, 413: "too large", 422: "a document with faults", 428: "no `If-Match`"}),
    Call("POST", f"{V1}/policy:check", _R, "policy.check", "Whether a document could be applied", body=DOCUMENT),
    Call("POST", f"{V1}/policy:diff", _R, "policy.diff", "What a document, or a revision, would change",
         {"from": "a revision instead of the current one", "to": "a revision instead of a body"}, DOCUMENT),
    Call("POST", f"{V1}/policy:simulate", _O, "policy.simulate", "What recorded traffic would have met under it",
         {"last": "seconds of recorded traffic, 3600 where nothing is said"}, DOCUMENT,
         {409: "another one runs, or there is nothing to replay", 422: "a document with faults"}),
    Call("POST", f"{V1}/policy:rollback", _O, "policy.rollback", "Bring an earlier revision's content back", _FORCE,
         OBJECT, {**_CHANGE, 404: "not in the history"}),
    Call("POST", f"{V1}/policy:try", _O, "trials.begin", "Try a document beside the one in force",
         {"mode": "canary or shadow", "share": "of the requests: 0.1 or 10%", **_WORDS}, DOCUMENT,
         {409: "it says the same", 422: "faults, or it changes what holds for all requests at once",
          503: "Redis does not answer"}),
    Call("GET", f"{V1}/policy/trial", _R, "trials.get", "What is being tried, compared with the rest"),
    Call("POST", f"{V1}/policy:promote", _O, "trials.promote", "Make what is tried the current revision", _FORCE,
         OBJECT, _CHANGE),
    Call("POST", f"{V1}/policy:withdraw", _O, "trials.withdraw", "Try it no more", answers={409: "nothing is tried"}),
    Call("GET", f"{V1}/policy/schema", _R, "policy.schema", "JSON Schema of the document"),
    Call("GET", f"{V1}/policy/state", _R, "policy.state", "Sources, replicas, lag"),
    Call("GET", f"{V1}/policy/revisions", _R, "policy.revisions", "The history, the newest first",
         {"limit": "how many", "before": "only numbers below"}),
    Call("GET", f"{V1}/policy/revisions/{{number:[0-9]{{1,15}}}}", _R, "policy.revision", "One revision",
         answers={404: "not in the history"}),
    Call("GET", f"{V1}/keys", _A, "keys.list", "Client keys, without their secrets"),
    Call("POST", f"{V1}/keys", _A, "keys.create", "Make a key; it is shown once", body=OBJECT, answers={201: "made"}),
    Call("POST", f"{V1}/keys/{{id}}:rotate", _A, "keys.rotate", "A new secret for a key", answers={404: "no such key"}),
    Call("POST", f"{V1}/keys/{{id}}:revoke", _A, "keys.revoke", "End a key", answers={404: "no such key"}),
    Call("GET", f"{V1}/audit", _A, "events.audit", "The last changes, and whether the log is whole",
         {"limit": "how many"}),
)  # fmt: skip


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these calls."""
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(_plain(call.path), {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace admin API", "version": version},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["message", "type", "code"],
                            "properties": {name: {"type": "string"} for name in ("message", "type", "code")},
                        }
                    },
                },
                "Policy": {"$ref": f"{V1}/policy/schema"},
            },
        },
    }


def _plain(path: str) -> str:
    """The path as OpenAPI writes it: parameters without their patterns."""
    return path.replace("{number:[0-9]{1,15}}", "{number}")


def _operation(call: Call) -> dict[str, Any]:
    path = _plain(call.path)
    parameters = [
        {"name": part.split("}")[0], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("{")[1:]
    ]
    parameters += [
        {"name": name, "in": "query", "description": told, "schema": {"type": "string"}}
        for name, told in call.query.items()
    ]
    if call.method == "PUT":
        tag = "the ETag that its author has seen, or `*`"
        parameters.append(
            {"name": "If-Match", "in": "header", "required": True, "description": tag, "schema": {"type": "string"}}
        )
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: dict[str, Any] = {} if 201 in call.answers else {"200": {"description": "done"}}
    for status, told in sorted(call.answers.items()):
        answers[str(status)] = {"description": told} if status < 300 else {"description": told, "content": error}
    operation: dict[str, Any] = {
        "operationId": call.handler.replace(".", "_"),
        "summary": call.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if call.need is not Need.NOTHING:
        operation["security"] = [{"token": []}, *([{}] if call.need is Need.READ else [])]
        operation["description"] = f"Role {LEAST[call.need]}."
        answers["401"] = {"description": "no token, or a wrong one", "content": error}
        answers["403"] = {"description": "the token's role is too small", "content": error}
    if call.body == DOCUMENT:
        policy = {"schema": {"$ref": "#/components/schemas/Policy"}}
        operation["requestBody"] = {"content": {"application/yaml": policy, "application/json": policy}}
    elif call.body == OBJECT:
        operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return operation
