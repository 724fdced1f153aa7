"""Which header fields cross the gateway, in both directions; everything else stays where it came from.

Towards the engine end-to-end fields cross, but nothing that an engine would obey or that names us or the network in
between. Towards the client an allowlist crosses: an engine must not be able to set cookies or claim our own fields.
Names are lower-case everywhere; values have been checked by the parser (no control characters but tab).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.utils import mktime_tz, parsedate_tz

from gateway.decimals import digits

from .answer_fields import UNKNOWN, Fields

_REQUEST_NEVER_EXACT = frozenset(
    # framing and this hop (RFC 9110 7.6.1); what goes upstream is made here
    b"host content-length transfer-encoding te trailer connection keep-alive upgrade expect http2-settings"
    b" content-encoding early-data max-forwards via forwarded"
    # would change what comes back into something other than the answer
    b" range if-match if-none-match if-modified-since if-unmodified-since if-range"
    # who the caller is elsewhere, and where it says it comes from
    b" cookie cookie2 api-key x-goog-api-key origin referer from x-real-ip x-client-ip x-cluster-client-ip"
    b" true-client-ip cf-connecting-ip fastly-client-ip"
    # orders that engines or what stands before them obey; of the request id ours is sent
    b" priority x-request-id x-method-override".split()
)
_REQUEST_NEVER = (
    b"proxy-",
    b"sec-",
    b"access-control-",
    b"x-headrace-",
    b"x-vllm-",  # x-vllm-priority overrides the body's priority
    b"x-data-parallel-",  # picks an engine rank behind our back
    b"x-sglang-",
    b"x-smg-",
    b"x-prefiller-",  # llm-d: where an engine fetches KV blocks from
    b"x-decoder-",
    b"x-encoder-",
    b"x-kv-",
    b"x-llm-d-",
    b"x-gateway-",
    b"x-envoy-",
    b"l5d-",
    b"x-amz",
    b"x-tenant",
    b"x-priority",
    b"x-forwarded",
    b"x-original-",  # the path overrides of some frameworks
    b"x-rewrite-",
    b"x-http-method",
)

_TRACE_NAMES = frozenset({b"traceparent", b"tracestate"})
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})

_RESPONSE_EXACT = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"content-disposition",
        b"retry-after",
        b"date",
        b"cache-control",
        b"expires",
        b"etag",
        b"last-modified",
        b"vary",
        b"allow",
        b"www-authenticate",
    }
)
_RESPONSE_PREFIXES = (b"openai-", b"anthropic-")

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


def named_in_connection(fields: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Names that the `Connection` fields declare to be for this hop only."""
    named: set[bytes] = set()
    for name, value in fields:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named)


def request_id_of(value: bytes | None) -> str | None:
    """The client's own request id if it is one that may go into logs and headers, else None."""
    if value is None or _REQUEST_ID.fullmatch(value) is None:
        return None
    return value.decode("ascii")


def valid_traceparent(value: bytes) -> bool:
    """Whether a `traceparent` is well-formed by W3C Trace Context; version 00 has exactly four parts."""
    return _TRACEPARENT.fullmatch(value) is not None and (value[:2] != b"00" or len(value) == 55)


_STAYS, _CROSSES, _TRACE, _CREDENTIAL, _CONNECTION = range(5)

_kinds: dict[bytes, int] = {}
"""What is done with a name, as seen so far: clients use few, so each is looked at once."""
_KINDS_MAX = 4096


def _kind_of(name: bytes) -> int:
    if name == b"connection":
        kind = _CONNECTION
    elif name in _CREDENTIALS:
        kind = _CREDENTIAL
    elif name in _TRACE_NAMES:
        kind = _TRACE
    elif name in _REQUEST_NEVER_EXACT or name.startswith(_REQUEST_NEVER):
        kind = _STAYS
    else:
        kind = _CROSSES
    if len(_kinds) < _KINDS_MAX:
        _kinds[name] = kind
    return kind


def forwarded_request_fields(fields: Fields, *, authorization: bool) -> Fields:
    """The client's fields that go to the engine; its credentials only when `authorization`.

    A trace context crosses whole or not at all: `tracestate` means nothing beside a `traceparent` that was dropped,
    and of two `traceparent` none is valid.
    """
    kept: Fields = []
    hop: frozenset[bytes] = frozenset()
    traced = False
    for field in fields:
        name = field[0]
        kind = _kinds.get(name)
        if kind is None:
            kind = _kind_of(name)
        if kind == _STAYS:
            continue
        if kind == _CROSSES or (kind == _CREDENTIAL and authorization):
            kept.append(field)
        elif kind == _TRACE:
            traced = True
        elif kind == _CONNECTION and field[1] != b"keep-alive" and not hop:
            hop = named_in_connection(fields)
    if traced:
        parents = [value for name, value in fields if name == b"traceparent"]
        if len(parents) == 1 and valid_traceparent(parents[0]):
            kept += [field for field in fields if field[0] in _TRACE_NAMES]
    return [field for field in kept if field[0] not in hop] if hop else kept


def request_head(
    start: bytes,
    fields: Fields,
    *,
    request_id: bytes,
    authorization: bytes | None,
    forward_authorization: bool,
    length: int,
    forwarded: list[bytes | None] | None = None,
    body: bytes = b"",
) -> bytes:
    """The head that goes upstream: request line, `Host` and framing are made here, never copied.

    `start` is the request line and `Host` as the worker's connections give them (`UpstreamPool.start_of`).
    `authorization` is the worker's own and takes the client's place; the client's goes through only when
    `forward_authorization` and there is none. `length` UNKNOWN: a request without a body. `forwarded` keeps the lines
    that depend on `fields` alone, without and with the client's credentials, for requests with the same ones.
    `body`: what follows at once, in the same bytes.
    """
    pass_client = forward_authorization and authorization is None
    lines = None if forwarded is None else forwarded[1] if pass_client else forwarded[0]
    if lines is None:
        lines = b"".join(
            [b"\r\n%b: %b" % field for field in forwarded_request_fields(fields, authorization=pass_client)]
        )
        if forwarded is not None:
            forwarded[pass_client] = lines
    if authorization is not None:
        lines += b"\r\nauthorization: " + authorization
    if length == UNKNOWN:
        return b"%b%b\r\nx-request-id: %b\r\n\r\n" % (start, lines, request_id)
    return b"%b%b\r\nx-request-id: %b\r\ncontent-length: %b\r\n\r\n%b" % (
        start, lines, request_id, digits(length), body,
    )  # fmt: skip


def forwarded_response_fields(fields: Fields) -> Fields:
    """The engine's fields that go to the client, in a list of their own."""
    kept = [f for f in fields if f[0] in _RESPONSE_EXACT or f[0].startswith(_RESPONSE_PREFIXES)]
    for name, value in fields:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            hop = named_in_connection(fields)
            return [field for field in kept if field[0] not in hop]
    return kept


def field_lines(fields: Fields) -> bytes:
    """Fields as the lines of a head."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


def header_value(text: str) -> bytes:
    """`text` as a field value: what is not printable ASCII becomes `?`, so that no name can split a response."""
    if text.isascii() and text.isprintable():
        return text.encode("ascii")
    return bytes(ord(c) if c.isascii() and c.isprintable() else 63 for c in text)


def retry_after_of(fields: Fields, now: float, cap_s: float = 60.0) -> float | None:
    """Seconds that a `Retry-After` asks for, at most `cap_s`; None without one or with one that cannot be read.

    A date (RFC 9110, 10.2.3) counts from the answer's own `Date`, so that clocks need not agree, else from `now`, in
    seconds of Unix time.
    """
    value = next((value for name, value in fields if name == b"retry-after"), b"")
    if value.isdigit():
        return min(float(value), cap_s) if len(value) < 10 else cap_s
    until = _unix_time(value)
    if until is None:
        return None
    sent = _unix_time(next((value for name, value in fields if name == b"date"), b""))
    return min(max(until - (now if sent is None else sent), 0.0), cap_s)


def _unix_time(date: bytes) -> float | None:
    parts = parsedate_tz(date[:64].decode("latin-1"))
    if parts is None or parts[9] is None:
        return None
    try:
        return float(mktime_tz(parts))
    except (ValueError, OverflowError):
        return None
