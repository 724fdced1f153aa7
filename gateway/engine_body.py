"""The body as the engine gets it: the client's bytes, save for fields that only the gateway may set."""

from __future__ import annotations

import orjson

from gateway.facts import BodyFacts
from gateway.splice import splice

ENGINE_FIELDS = frozenset(
    {
        "priority",  # orders the engine's own queue
        "kv_transfer_params",  # lets an engine fetch KV blocks from an address of the caller's choice
        "ec_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "routed_dp_rank",
    }
)
"""Body fields that engines obey and only a gateway may set: always taken out."""


def body_for_engine(body: bytes, facts: BodyFacts, served: str, inject_usage: bool) -> list[bytes]:
    """The client's bytes, with the engine's name of the model and without what only we may set."""
    renamed = facts.model is not None and facts.model != served
    if facts.model_span is not None:
        start, end = facts.model_span
        return [body[:start], served.encode(), body[end:]] if renamed else [body]
    if not renamed and not inject_usage and ENGINE_FIELDS.isdisjoint(facts.fields):
        return [body]
    changes: dict[str, bytes | None] = dict.fromkeys(sorted(ENGINE_FIELDS.intersection(facts.fields)))
    if renamed:
        changes["model"] = orjson.dumps(served)
    if inject_usage:
        # Counts on every event, which would come with it, could not be hidden.
        quiet = {"continuous_usage_stats": False} if facts.stream_options else {}
        changes["stream_options"] = orjson.dumps({**(facts.stream_options or {}), **quiet, "include_usage": True})
    return splice(body, changes, facts.fields)
