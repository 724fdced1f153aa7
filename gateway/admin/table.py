"""Every call of the admin plane: path, what it needs, what it does. Routes, roles and the OpenAPI document
(`openapi.py`) come from this table, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.admin.access import Need
from gateway.keys import MAX_NOTE_CHARS as MAX_KEY_NOTE_CHARS
from gateway.orders import MAX_CAP
from policies.revisions import MAX_AUTHOR_CHARS, MAX_NOTE_CHARS

V1: Final = "/admin/v1"

Schema = Mapping[str, Any]
DOCUMENT: Final[Schema] = {"$ref": "#/components/schemas/Policy"}  # a policy, as YAML or JSON
ANY_TEXT: Final[Schema] = {}  # to be judged, whatever it is


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the query: what it says, and which values it has."""

    told: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `handler` is `group.method` of the handlers that `server.py` builds. `answers`: statuses beside 200 and
    those that every call may have. `body`: what may be sent. `gives`: members of the JSON object that is answered, or
    the media types of an answer that is none."""

    method: str
    path: str
    need: Need
    handler: str
    summary: str
    query: Mapping[str, Param] = field(default_factory=dict)
    body: Schema | None = None
    answers: Mapping[int, str] = field(default_factory=dict)
    gives: tuple[str, ...] = ()
    body_needed: bool = True


_CHANGE: Final = {
    409: "guard rails stand against it; `force=1` applies it all the same",
    412: "`If-Match` is not the current revision",
    503: "Redis does not answer",
}
_FAULTY: Final = {413: "larger than a policy may be", 422: "a document with faults: `problems` has all of them"}
_WHOLE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_TIME: Final[Schema] = {"type": "string", "enum": ["1", "true", "0", "false"]}
_WORDS: Final = {
    "note": Param("why, for the history", {"type": "string", "maxLength": MAX_NOTE_CHARS}),
    "author": Param("who, for the history", {"type": "string", "maxLength": MAX_AUTHOR_CHARS}),
}
_SAID: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "note": {"type": "string", "maxLength": MAX_NOTE_CHARS},
        "author": {"type": "string", "maxLength": MAX_AUTHOR_CHARS},
    },
}
_BACK: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**_SAID["properties"], "to": {"type": "integer", "minimum": 1}},
}
_CAP: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"max_in_flight": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_CAP}},
    "required": ["max_in_flight"],
}
_KEY: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "tenant": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.\\-]{0,63}$"},
        "trusted": {"type": "boolean"},
        "note": {"type": "string", "maxLength": MAX_KEY_NOTE_CHARS},
    },
    "required": ["tenant"],
}
_NO_WORKER: Final = {404: "no such worker"}
_WORKER: Final = {**_NO_WORKER, 503: "Redis does not answer"}
_NO_KEY: Final = {404: "no such key", 409: "it is revoked, or no keys are kept here"}
_FORCE: Final = {"force": Param("1: apply it although guard rails stand against it", _TIME)}
_OLD: Final = {404: "not in the history"}

# Members of answers.
_OF_WORKER: Final = ("id", "pool", "state", "leases", "in_flight", "limit", "models", "operator")
_OF_CHANGE: Final = ("changed", "revision", "changes", "lines", "guards")
_OF_KEY: Final = ("id", "tenant", "trusted", "note", "created", "revoked", "shared")
_OF_FLEET: Final = ("fleet", "version", "ready", "why", "revision", "pools", "workers", "queues", "queue", "in_flight")
_TEXT: Final = ("text/plain",)

# The actions on a worker come after its id, which may have colons of its own.
_WORKER_ID: Final = "{id:[^/]+(?<!:drain)(?<!:undrain)(?<!:cap)(?<!:eject)(?<!:readmit)}"

_N, _R, _O, _A = Need.NOTHING, Need.READ, Need.OPERATE, Need.ADMINISTER

CALLS: Final = (
    Call("GET", "/livez", _N, "health.livez", "The process lives", gives=_TEXT),
    Call("GET", "/readyz", _N, "health.readyz", "Whether it takes traffic, and why not", answers={503: "not ready"},
         gives=_TEXT),
    Call("GET", "/metrics", _N, "health.metrics", "Prometheus metrics",
         gives=("text/plain", "application/openmetrics-text")),
    Call("GET", "/dashboard", _N, "page.index", "The dashboard: a page that makes the calls below",
         answers={304: "as it was"}, gives=("text/html",)),
    Call("GET", "/dashboard/{name}", _N, "page.part", "Its scripts and styles",
         answers={304: "as it was", 404: "no such part"},
         gives=("text/javascript", "text/css", "text/html", "image/svg+xml")),
    Call("GET", "/admin/openapi.json", _R, "health.openapi", "This description", gives=("openapi", "paths")),
    Call("GET", f"{V1}/whoami", _R, "health.whoami", "The role of the token that is sent", gives=("role",)),
    Call("GET", f"{V1}/fleet", _R, "health.fleet", "One snapshot of everything", gives=_OF_FLEET),
    Call("GET", f"{V1}/history", _R, "health.history", "Latencies by class over the last 15 minutes, in steps of 10 s",
         gives=("step_s", "steps")),
    Call("GET", f"{V1}/pools", _R, "workers.pools", "The pools: workers, load, queue", gives=("pools",)),
    Call("GET", f"{V1}/workers", _R, "workers.workers", "The workers: state, load, limit, KV", gives=("workers",)),
    Call("GET", f"{V1}/workers/{_WORKER_ID}", _R, "workers.worker", "One worker", answers=_NO_WORKER, gives=_OF_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:drain", _O, "workers.drain", "Nothing new for a worker", answers=_WORKER,
         gives=_OF_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:undrain", _O, "workers.undrain", "Work for it again", answers=_WORKER,
         gives=_OF_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:cap", _O, "workers.cap", "At most so many places", body=_CAP, answers=_WORKER,
         gives=_OF_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:eject", _O, "workers.eject", "Out of rotation", answers=_WORKER,
         gives=_OF_WORKER),
    Call("POST", f"{V1}/workers/{{id}}:readmit", _O, "workers.readmit", "In rotation again", answers=_WORKER,
         gives=_OF_WORKER),
    Call("GET", f"{V1}/advice", _R, "workers.advice", "What stands out in the workers' reports, and what to change",
         gives=("advice",)),
    Call("GET", f"{V1}/tenants", _R, "workers.tenants", "The tenants: limits, running, waiting, served",
         gives=("tenants",)),
    Call("GET", f"{V1}/requests/{{id}}", _R, "health.explain", "Why a request went where it went",
         answers={404: "not among the recent ones"}, gives=("request_id", "finished", "request", "attempts")),
    Call("GET", f"{V1}/events", _R, "events.events", "What happens, as server-sent events",
         {"types": Param("policy,worker,request,state,audit: only these; all where nothing is said")},
         answers={503: "too many listen already"}, gives=("text/event-stream",)),
    Call("GET", f"{V1}/policy", _R, "policy.get", "The current document, with its ETag; YAML where `Accept` wants it",
         answers={304: "`If-None-Match` names it"}, gives=("revision", "policy", "state")),
    Call("PUT", f"{V1}/policy", _O, "policy.put", "Make a document current", {**_FORCE, **_WORDS}, DOCUMENT,
         {**_CHANGE, **_FAULTY, 428: "no `If-Match`"}, _OF_CHANGE),
    Call("POST", f"{V1}/policy:check", _R, "policy.check", "Whether a document could be applied", body=ANY_TEXT,
         gives=("ok", "digest", "problems", "guards")),
    Call("POST", f"{V1}/policy:diff", _R, "policy.diff", "What a document, or a revision, would change",
         {"from": Param("a revision instead of the current one", _WHOLE),
          "to": Param("a revision instead of a body", _WHOLE)},
         ANY_TEXT, _OLD, ("ok", "problems", "different", "changes", "lines", "text", "guards"), body_needed=False),
    Call("POST", f"{V1}/policy:simulate", _O, "policy.simulate", "What recorded traffic would have met under it",
         {"last": Param("seconds of recorded traffic, 3600 where nothing is said", _WHOLE)}, DOCUMENT,
         {409: "another one runs, or there is nothing to replay", **_FAULTY},
         ("requests", "seconds", "took_s", "moved", "moves", "before", "after", "notes")),
    Call("POST", f"{V1}/policy:rollback", _O, "policy.rollback", "Bring an earlier revision's content back", _FORCE,
         _BACK, {**_CHANGE, **_FAULTY, **_OLD}, _OF_CHANGE, body_needed=False),
    Call("POST", f"{V1}/policy:try", _O, "trials.begin", "Try a document beside the one in force",
         {"mode": Param("how", {"type": "string", "enum": ["canary", "shadow"]}),
          "share": Param("of the requests, for a canary: 0.1 or 10%", {"type": "string", "default": "0.1"}), **_WORDS},
         DOCUMENT,
         {409: "it says the same", 412: "another revision became current meanwhile", 413: _FAULTY[413],
          422: "faults, or it changes what holds for all requests at once", 503: "Redis does not answer"},
         ("trial", "replaced")),
    Call("GET", f"{V1}/policy/trial", _R, "trials.get", "What is being tried, compared with the rest",
         gives=("trial", "pending")),
    Call("POST", f"{V1}/policy:promote", _O, "trials.promote", "Make what is tried the current revision", _FORCE,
         _SAID, {**_CHANGE, 409: "guard rails stand against it, or nothing is tried"}, _OF_CHANGE, body_needed=False),
    Call("POST", f"{V1}/policy:withdraw", _O, "trials.withdraw", "Try it no more", answers={409: "nothing is tried"},
         gives=("trial", "ended", "pending")),
    Call("GET", f"{V1}/policy/schema", _R, "policy.schema", "JSON Schema of the document", gives=("$schema",)),
    Call("GET", f"{V1}/policy/state", _R, "policy.state", "Sources, replicas, lag",
         gives=("revision", "etag", "file", "store", "lag_s", "latest", "converged", "replicas", "history_verified")),
    Call("GET", f"{V1}/policy/revisions", _R, "policy.revisions", "The history, the newest first",
         {"limit": Param("how many", _WHOLE), "before": Param("only numbers below", _WHOLE)},
         gives=("revisions", "more")),
    Call("GET", f"{V1}/policy/revisions/{{number:[0-9]{{1,15}}}}", _R, "policy.revision", "One revision",
         answers=_OLD, gives=("revision", "policy", "text")),
    Call("GET", f"{V1}/keys", _A, "keys.list", "Client keys, without their secrets", gives=("keys",)),
    Call("POST", f"{V1}/keys", _A, "keys.create", "Make a key; it is shown once", body=_KEY,
         answers={201: "made", 409: "no keys are kept here"}, gives=(*_OF_KEY, "key")),
    Call("POST", f"{V1}/keys/{{id}}:rotate", _A, "keys.rotate", "A new secret for a key", answers=_NO_KEY,
         gives=(*_OF_KEY, "key")),
    Call("POST", f"{V1}/keys/{{id}}:revoke", _A, "keys.revoke", "End a key", answers=_NO_KEY, gives=_OF_KEY),
    Call("GET", f"{V1}/audit", _A, "events.audit", "The last changes, and whether the log is whole",
         {"limit": Param("how many", _WHOLE)}, gives=("entries", "verified", "fault")),
)  # fmt: skip
