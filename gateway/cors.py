"""Lets pages of the origins that the settings name call the data listener from a browser (Fetch standard, CORS).

Only built where there are such origins. Credentials in cookies are never allowed: callers are known by their key.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.admission import Admitted
from gateway.errors import ErrorAnswer
from gateway.local_answers import LocalAnswer
from gateway.routes import ROUTES, route

if TYPE_CHECKING:
    from gateway.http.messages import Gate, RawRequest

MAX_AGE_S = 600
ANY = "*"
EXPOSED = (
    b"x-request-id, retry-after, x-should-retry, x-headrace-pool, x-headrace-worker, x-headrace-class, "
    b"x-headrace-reason, x-headrace-queue-ms, x-headrace-attempts, x-headrace-revision, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_NAMES = re.compile(rb"[A-Za-z0-9, \t-]{0,1024}")


class CorsGate:
    """A gate that answers preflights and tells browsers which pages may read what the gate behind it answers."""

    def __init__(self, gate: Gate, origins: Collection[str]) -> None:
        self._gate = gate
        self._any = ANY in origins
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """As the gate behind it; its answers can be read by pages of an allowed origin."""
        origin = raw.header(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return self._gate.admit(raw, request_id)
        fields = self._fields(origin)
        asked = raw.header(b"access-control-request-method")
        if raw.method == "OPTIONS" and asked is not None and self._known(raw.path, asked):
            names = raw.header(b"access-control-request-headers") or b""
            allowed = names if _NAMES.fullmatch(names) else b""
            fields += (
                (b"access-control-allow-methods", asked),
                (b"access-control-allow-headers", allowed),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            )
            return LocalAnswer(204, "text/plain", b"", fields)
        answer = self._gate.admit(raw, request_id)
        fields += ((b"access-control-expose-headers", EXPOSED),)
        if isinstance(answer, Admitted):
            answer.rate_fields += b"".join(b"%b: %b\r\n" % field for field in fields)
            return answer
        return replace(answer, headers=(*answer.headers, *fields))

    def _fields(self, origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
        allowed = b"*" if self._any else origin
        return ((b"access-control-allow-origin", allowed), (b"vary", b"origin"))

    @staticmethod
    def _known(path: str, method: bytes) -> bool:
        found = ROUTES.get(path) or route("GET", path)
        return not isinstance(found, ErrorAnswer) and method.decode("latin-1") in found.methods
