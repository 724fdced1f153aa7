"""The body as the engine gets it: the client's bytes, save for fields that only the gateway may set."""

from __future__ import annotations

import orjson

from gateway.body_fields import ENGINE, ENGINE_FIELDS
from gateway.facts import BodyFacts
from gateway.splice import splice


def body_for_engine(body: bytes, facts: BodyFacts, served: str, inject_usage: bool) -> list[bytes]:
    """The client's bytes, with the engine's name of the model and without what only we may set."""
    renamed = facts.model is not None and facts.model != served
    if facts.model_span is not None:
        start, end = facts.model_span
        return [body[:start], served.encode(), body[end:]] if renamed else [body]
    if not renamed and not inject_usage and not facts.marks & ENGINE:
        return [body]
    changes: dict[str, bytes | None] = dict.fromkeys(sorted(ENGINE_FIELDS.intersection(facts.fields)))
    if renamed:
        changes["model"] = orjson.dumps(served)
    if inject_usage:
        # Counts on every event, which would come with it, could not be hidden.
        quiet = {"continuous_usage_stats": False} if facts.stream_options else {}
        changes["stream_options"] = orjson.dumps({**(facts.stream_options or {}), **quiet, "include_usage": True})
    return splice(body, changes, facts.fields)
