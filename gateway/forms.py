"""The two fields of an audio upload that matter here, found without parsing the sound.

Only the first and the last `WINDOW_BYTES` of a form are searched: clients put the small fields before or behind the
file, and a gateway must not walk through 25 MB of sound for a name.
"""

from __future__ import annotations

import re

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.facts import BodyFacts, flag
from gateway.prompts import AUDIO_BYTES_PER_TOKEN, AUDIO_TOKENS_MAX

WINDOW_BYTES = 64 * 1024
MAX_PARTS = 64
MAX_PART_HEAD_BYTES = 1024
MAX_VALUE_BYTES = 1024

_BOUNDARY = re.compile(
    rb"\s*multipart/form-data\b[^\"]*?;\s*boundary=(?:\"([^\"\r\n]{1,70})\"|([^\s;\",]{1,70}))", re.IGNORECASE
)
_NAME = re.compile(
    rb"^content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name=\"?([A-Za-z0-9_.\-\[\]]{1,64})\"?", re.I | re.M
)


def form_facts(body: bytes, content_type: bytes) -> BodyFacts | ErrorAnswer:
    """Model, stream and a rough size of an audio upload. A field that isn't found is left to the engine."""
    boundary = _BOUNDARY.match(content_type)
    if boundary is None:
        message = "This path takes a file as multipart/form-data with a boundary."
        return ErrorAnswer(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)
    delimiter = b"--" + (boundary[1] or boundary[2])
    facts = BodyFacts(prompt_tokens=max(1, min(AUDIO_TOKENS_MAX, len(body) // AUDIO_BYTES_PER_TOKEN)))
    facts.longest_prompt = facts.prompt_tokens
    fields = _fields(body, delimiter)
    if "model" in fields:
        span = start, stop = fields["model"]
        try:
            facts.model = body[start:stop].decode("utf-8") or None
        except UnicodeDecodeError:
            message = "The form's model is not UTF-8 text."
            return ErrorAnswer(ErrorCode.INVALID_VALUE, message, "model")
        facts.model_span = span if facts.model else None
    if "stream" in fields:
        start, stop = fields["stream"]
        facts.stream = flag(body[start:stop].decode("latin-1"))
    return facts


def _fields(body: bytes, delimiter: bytes) -> dict[str, tuple[int, int]]:
    """Name -> where the value stands, of the form's small fields near its two ends."""
    found: dict[str, tuple[int, int]] = {}
    starts = [0] if len(body) <= 2 * WINDOW_BYTES else [0, len(body) - WINDOW_BYTES]
    for start in starts:
        stop = len(body) if len(starts) == 1 else start + WINDOW_BYTES
        at = body.find(delimiter, start, stop)
        for _ in range(MAX_PARTS):
            if at < 0:
                break
            head = at + len(delimiter)
            blank = body.find(b"\r\n\r\n", head, head + MAX_PART_HEAD_BYTES)
            following = body.find(b"\r\n" + delimiter, head, stop)
            if blank >= 0 and following >= blank + 4 and following - blank - 4 <= MAX_VALUE_BYTES:
                name = _NAME.search(body, head, blank)
                if name is not None:
                    found[name[1].decode("ascii")] = (blank + 4, following)
            at = following + 2 if following >= 0 else -1
    return found
