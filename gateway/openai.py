"""The API that clients see, as far as a gateway has to understand it: what a request says and what an answer used.

`routes` knows the paths, `body_guard` decodes safely, `facts` reads each endpoint's fields, `forms` those of audio
uploads, `usage` the counts in an answer. Bodies are read, never rewritten: `splice` changes single fields in place.
"""

from __future__ import annotations

from typing import Final

from gateway.body_guard import read_object
from gateway.errors import ErrorAnswer
from gateway.facts import EXTRACT, BodyFacts, BodyLimits, BodyRefused, body_limits, chat, common
from gateway.forms import form_facts
from gateway.hollow import LONG_BYTES
from gateway.usage import Usage, usage_from, usage_of
from policies.endpoints import Endpoint
from policies.tokens import LongText

__all__ = ["BodyFacts", "BodyLimits", "Usage", "body_limits", "parse_facts", "usage_from", "usage_of"]

FORM_ENDPOINTS: Final = frozenset({Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS})
_CHAT: Final = Endpoint.CHAT


def parse_facts(
    endpoint: Endpoint, body: bytes, limits: BodyLimits, content_type: bytes = b""
) -> BodyFacts | ErrorAnswer:
    """What `body` says, or the answer that refuses it. Never raises, whatever the bytes are.

    `content_type` is needed for audio uploads only: it names the boundary between the fields of the form.
    """
    talk = endpoint is _CHAT  # nearly all are: neither looked up nor called by a table
    if not talk and endpoint in FORM_ENDPOINTS:
        return form_facts(body, content_type)
    long: dict[str, LongText] | None = {} if len(body) > LONG_BYTES else None
    value = read_object(body, limits.json_depth, long)
    if isinstance(value, ErrorAnswer):
        return value
    try:
        facts = common(value, limits, long or None)
        if talk:
            chat(value, facts, limits)
        else:
            EXTRACT[endpoint](value, facts, limits)
    except BodyRefused as refused:
        return refused.answer
    return facts
