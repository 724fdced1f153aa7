"""The request's own header fields: who asks, and what is asked of the gateway rather than of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gateway.errors import ErrorAnswer, ErrorCode, shown

MAX_SESSION_BYTES = 256
"""Longer session ids are replaced by a digest: affinity needs them equal, not readable."""

MAX_TIMEOUT_DIGITS = 12


@dataclass(slots=True)
class RequestFields:
    """What the header says to the gateway; None or empty where it says nothing."""

    authorization: bytes | None = None
    api_key: bytes | None = None
    content_type: bytes = b""
    content_encoding: bytes = b""
    priority: str | None = None
    tenant: str | None = None
    timeout_ms: int | None = None
    may_queue: bool = True
    session: str = ""
    rule_headers: dict[str, str] = field(default_factory=dict)


def _timeout(fields: RequestFields, value: bytes) -> ErrorAnswer | None:
    if not value.isdigit() or len(value) > MAX_TIMEOUT_DIGITS:
        text = shown(value.decode("latin-1"))
        message = (
            f"X-Headrace-Timeout-Ms has to be a whole number of milliseconds of at most {MAX_TIMEOUT_DIGITS} digits, "
            f"got {text}."
        )
        return ErrorAnswer(ErrorCode.INVALID_VALUE, message, "X-Headrace-Timeout-Ms")
    fields.timeout_ms = int(value)
    return None


def _queue(fields: RequestFields, value: bytes) -> ErrorAnswer | None:
    if value.lower() != b"never":
        text = shown(value.decode("latin-1"))
        message = f"X-Headrace-Queue takes only 'never', got {text}. Leave it out to wait for a place."
        return ErrorAnswer(ErrorCode.INVALID_VALUE, message, "X-Headrace-Queue")
    fields.may_queue = False
    return None


def _session(fields: RequestFields, value: bytes) -> None:
    short = len(value) <= MAX_SESSION_BYTES
    fields.session = value.decode("latin-1") if short else hashlib.sha256(value).hexdigest()


def _authorization(fields: RequestFields, value: bytes) -> None:
    fields.authorization = value


def _api_key(fields: RequestFields, value: bytes) -> None:
    fields.api_key = value


def _content_type(fields: RequestFields, value: bytes) -> None:
    fields.content_type = value


def _content_encoding(fields: RequestFields, value: bytes) -> None:
    fields.content_encoding = value.strip().lower()


def _priority(fields: RequestFields, value: bytes) -> None:
    fields.priority = value.decode("latin-1")


def _tenant(fields: RequestFields, value: bytes) -> None:
    fields.tenant = value.decode("latin-1")


_READERS: dict[bytes, Callable[[RequestFields, bytes], ErrorAnswer | None]] = {
    b"authorization": _authorization,
    b"x-api-key": _api_key,
    b"content-type": _content_type,
    b"content-encoding": _content_encoding,
    b"x-headrace-priority": _priority,
    b"x-headrace-tenant": _tenant,
    b"x-headrace-timeout-ms": _timeout,
    b"x-headrace-queue": _queue,
    b"x-session-id": _session,
}


def read_fields(
    headers: Iterable[tuple[bytes, bytes]], rule_headers: frozenset[bytes] = frozenset()
) -> RequestFields | ErrorAnswer:
    """Read the fields that mean something here. Names are lower-case.

    A field that is sent twice is refused: which of the two counted would differ between us and whoever else reads it.
    `rule_headers` are the names that the policy's rules look at; of those all values count, joined as HTTP joins them.
    """
    fields = RequestFields()
    seen: set[bytes] = set()
    for name, value in headers:
        reader = _READERS.get(name)
        if reader is not None:
            if name in seen:
                return _repeated(name)
            seen.add(name)
            refused = reader(fields, value)
            if refused is not None:
                return refused
    if rule_headers:
        fields.rule_headers = _for_rules(headers, rule_headers)
    return fields


def _repeated(name: bytes) -> ErrorAnswer:
    code = ErrorCode.INVALID_PRIORITY if name == b"x-headrace-priority" else ErrorCode.BAD_REQUEST
    text = name.decode("latin-1").title()
    return ErrorAnswer(code, f"{text} was sent more than once. Send it once.", text)


def _for_rules(headers: Iterable[tuple[bytes, bytes]], wanted: frozenset[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        if name in wanted:
            key, text = name.decode("latin-1"), value.decode("latin-1").strip()
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found
