"""What the gateway answers by itself on the data listener: the models there are, and whether it lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from gateway.errors import ErrorAnswer, ErrorCode, shown
from gateway.routes import Local, model_in
from policies.document import Policy

Fleet = Callable[[], Mapping[str, int | None]]
"""Models that healthy workers serve now, by their names at the engines -> longest context in tokens, if known."""


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """An answer of our own. To HEAD it goes out without its body."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def answer_locally(
    target: Local,
    path: str,
    fleet: Mapping[str, int | None],
    ready: Callable[[], tuple[bool, str]],
    policy: Policy,
    created: int,
) -> LocalAnswer | ErrorAnswer:
    """Answer one of the local routes. `created`: what model cards say, seconds since the epoch."""
    if target is Local.LIVEZ:
        return _json(200, {"status": "ok"})
    if target is Local.READYZ:
        is_ready, detail = ready()
        return _json(200 if is_ready else 503, {"status": "ready" if is_ready else "not ready", "detail": detail})
    models = public_models(policy, fleet)
    if target is Local.MODELS:
        return _json(200, {"object": "list", "data": [_card(name, models[name], created) for name in models]})
    name = model_in(path)
    if name is None or name not in models:
        message = f"There is no model {shown(name)} now. GET /v1/models lists those that exist."
        return ErrorAnswer(ErrorCode.MODEL_NOT_FOUND, message, "model")
    return _json(200, _card(name, models[name], created))


def public_models(policy: Policy, fleet: Mapping[str, int | None]) -> dict[str, int | None]:
    """Every name that a request may use now -> longest context: the policy's aliases, then the engines' own names."""
    models: dict[str, int | None] = {}
    for name, entry in policy.models.items():
        served = name if entry.served_as is None else entry.served_as
        if served in fleet:
            models[name] = fleet[served]
    for name in sorted(fleet):
        models.setdefault(name, fleet[name])
    return models


def _card(name: str, max_model_len: int | None, created: int) -> dict[str, object]:
    card: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": "headrace"}
    if max_model_len is not None:
        card["max_model_len"] = max_model_len
    return card


def _json(status: int, content: object) -> LocalAnswer:
    return LocalAnswer(status, "application/json", orjson.dumps(content), ((b"cache-control", b"no-store"),))
