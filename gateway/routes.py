"""The paths that clients may use: an allowlist. Everything else, spelling variants included, does not exist.

Engines serve more than is meant for clients (`/pause`, `/update_weights`, `/invocations`, adapters, metrics), and
some of it without a key, so a path is looked up as it was written: no decoding, no normalising, no prefix match.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import ErrorAnswer, ErrorCode, dialect_of, shown
from policies.endpoints import Endpoint


class Local(StrEnum):
    """What the gateway answers by itself."""

    MODELS = "models"
    MODEL = "model"
    LIVEZ = "livez"
    READYZ = "readyz"


@dataclass(frozen=True, slots=True)
class Route:
    """What a path stands for: an endpoint that engines serve, or something of our own."""

    target: Endpoint | Local
    methods: tuple[str, ...]


_POST = ("POST",)
_GET = ("GET", "HEAD")

ROUTES: dict[str, Route] = {
    "/v1/chat/completions": Route(Endpoint.CHAT, _POST),
    "/v1/completions": Route(Endpoint.COMPLETIONS, _POST),
    "/v1/responses": Route(Endpoint.RESPONSES, _POST),
    "/v1/messages": Route(Endpoint.MESSAGES, _POST),
    "/v1/embeddings": Route(Endpoint.EMBEDDINGS, _POST),
    "/v1/rerank": Route(Endpoint.RERANK, _POST),
    "/rerank": Route(Endpoint.RERANK, _POST),
    "/v1/score": Route(Endpoint.SCORE, _POST),
    "/score": Route(Endpoint.SCORE, _POST),
    "/classify": Route(Endpoint.CLASSIFY, _POST),
    "/pooling": Route(Endpoint.POOLING, _POST),
    "/tokenize": Route(Endpoint.TOKENIZE, _POST),
    "/detokenize": Route(Endpoint.DETOKENIZE, _POST),
    "/v1/audio/transcriptions": Route(Endpoint.TRANSCRIPTIONS, _POST),
    "/v1/audio/translations": Route(Endpoint.TRANSLATIONS, _POST),
    "/v1/models": Route(Local.MODELS, _GET),
    "/livez": Route(Local.LIVEZ, _GET),
    "/readyz": Route(Local.READYZ, _GET),
}

MODEL_PREFIX = "/v1/models/"
MODEL_ROUTE = Route(Local.MODEL, _GET)
MAX_MODEL_CHARS = 256
"""As in the policy: no model's public name is longer."""


def route(method: str, path: str) -> Route | ErrorAnswer:
    """What `path` (without its query) stands for; 404 where it is nothing, 405 with `Allow` for another method."""
    found = ROUTES.get(path)
    if found is None:
        if not path.startswith(MODEL_PREFIX) or not model_in(path):
            message = f"There is no {shown(path)} here; the paths are those of the OpenAI API, such as /v1/models."
            return ErrorAnswer(ErrorCode.NOT_FOUND, message, dialect=dialect_of(path))
        found = MODEL_ROUTE
    if method not in found.methods:
        allow = ", ".join(found.methods)
        message = f"{path[:MAX_MODEL_CHARS]} does not take {shown(method)}; it takes {allow}."
        return ErrorAnswer(
            ErrorCode.METHOD_NOT_ALLOWED, message, headers=((b"allow", allow.encode()),), dialect=dialect_of(path)
        )
    return found


def model_in(path: str) -> str | None:
    """The model that `/v1/models/{id}` names; None where it cannot be one.

    Names have slashes (`org/model`), and clients differ in whether they encode them, so `%2F` is read as one; nothing
    else is decoded. The name is only ever looked up among the known ones.
    """
    name = path[len(MODEL_PREFIX) :].replace("%2F", "/").replace("%2f", "/")
    if not name or name[0] == "/" or len(name) > MAX_MODEL_CHARS or not name.isprintable():
        return None
    return name
