"""The closed table behind every error answer: code -> status, type, retry advice, meaning, cure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.scheduling.model import OutcomeKind, Reason


class ErrorCode(StrEnum):
    """The `code` of an error answer: closed, so that clients may switch on it and metrics may label by it."""

    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    MISSING_PARAMETER = "missing_parameter"
    LIMIT_EXCEEDED = "limit_exceeded"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_PRIORITY = "invalid_priority"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    BAD_REQUEST = "bad_request"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REQUEST_QUARANTINED = "request_quarantined"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    TENANT_IN_FLIGHT = "tenant_in_flight"
    TENANT_QUEUED = "tenant_queued"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    QUEUE_NEVER = "queue_never"
    SHED = "shed"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL = "internal"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_PROTOCOL_ERROR = "upstream_protocol_error"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_REDIRECT = "upstream_redirect"
    NO_HEALTHY_WORKER = "no_healthy_worker"
    SHUTTING_DOWN = "shutting_down"
    GATEWAY_OVERLOADED = "gateway_overloaded"
    TTFT_TIMEOUT = "ttft_timeout"
    GAP_TIMEOUT = "gap_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    HTTP_VERSION_NOT_SUPPORTED = "http_version_not_supported"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """What belongs to a code. `retry_after_s` is used where the caller of `ErrorAnswer` measured nothing."""

    status: int
    type: str
    should_retry: bool
    retry_after_s: float | None
    meaning: str
    cure: str


_INPUT = "invalid_request_error"
_AUTH = "authentication_error"
_PERMISSION = "permission_error"
_RATE = "rate_limit_error"
_SERVER = "server_error"
_OVERLOAD = "overloaded_error"
_TIMEOUT = "timeout_error"

ERRORS: dict[ErrorCode, ErrorRow] = {
    ErrorCode.INVALID_JSON: ErrorRow(
        400,
        _INPUT,
        False,
        None,
        "The body is not one JSON object in UTF-8.",
        "Send a JSON object without a byte order mark, NaN or lone surrogates.",
    ),
    ErrorCode.INVALID_VALUE: ErrorRow(
        400, _INPUT, False, None, "A field has a value that no engine accepts.", "Correct the field named in `param`."
    ),
    ErrorCode.MISSING_PARAMETER: ErrorRow(
        400, _INPUT, False, None, "A field is missing that cannot be guessed.", "Add the field named in `param`."
    ),
    ErrorCode.LIMIT_EXCEEDED: ErrorRow(
        400,
        _INPUT,
        False,
        None,
        "The body is nested, split or sized beyond a limit of the policy (section `limits`).",
        "Make the part named in the message smaller, or ask the operator for a higher limit.",
    ),
    ErrorCode.UNSUPPORTED_PARAMETER: ErrorRow(
        400, _INPUT, False, None, "The policy refuses this field.", "Leave the field named in `param` out."
    ),
    ErrorCode.INVALID_PRIORITY: ErrorRow(
        400,
        _INPUT,
        False,
        None,
        "`X-Headrace-Priority` names no class of the policy, or was sent twice.",
        "Send one of the classes that the message lists, once.",
    ),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: ErrorRow(
        400,
        _INPUT,
        False,
        None,
        "No worker of the model holds a prompt of this length.",
        "Shorten the prompt, or use a model with a longer context.",
    ),
    ErrorCode.BAD_REQUEST: ErrorRow(
        400, _INPUT, False, None, "The request is not well-formed HTTP.", "Correct what the message names."
    ),
    ErrorCode.INVALID_API_KEY: ErrorRow(
        401,
        _AUTH,
        False,
        None,
        "The gateway checks keys and got none, or one it does not know.",
        "Send `Authorization: Bearer hr_...` with a key that has not been revoked.",
    ),
    ErrorCode.PERMISSION_DENIED: ErrorRow(
        403,
        _PERMISSION,
        False,
        None,
        "The key is known but may not do this.",
        "Use a key with the right that the message names.",
    ),
    ErrorCode.NOT_FOUND: ErrorRow(
        404,
        _INPUT,
        False,
        None,
        "No such path. Only the paths of the data API exist; spelling variants do not.",
        "Check the base URL and the path.",
    ),
    ErrorCode.MODEL_NOT_FOUND: ErrorRow(
        404,
        _INPUT,
        False,
        None,
        "Neither the policy nor any worker knows this model, or every engine that lists it denies it.",
        "Ask `GET /v1/models` for the names that exist.",
    ),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorRow(
        405, _INPUT, False, None, "The path exists, with another method.", "Use a method of the `Allow` header."
    ),
    ErrorCode.REQUEST_TIMEOUT: ErrorRow(
        408,
        _INPUT,
        False,
        None,
        "The request's head or body did not arrive in time (`timeouts.header_s`, `timeouts.body_s`).",
        "Send the request faster, or ask the operator for more time.",
    ),
    ErrorCode.REQUEST_TOO_LARGE: ErrorRow(
        413, _INPUT, False, None, "The body is longer than `limits.body_bytes`.", "Send a smaller body."
    ),
    ErrorCode.UNSUPPORTED_ENCODING: ErrorRow(
        415,
        _INPUT,
        False,
        None,
        "The body is compressed; the gateway never decompresses.",
        "Send the body without `Content-Encoding`.",
    ),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorRow(
        415,
        _INPUT,
        False,
        None,
        "The content type does not belong to this path.",
        "Send `application/json`, or `multipart/form-data` to the audio paths.",
    ),
    ErrorCode.REQUEST_QUARANTINED: ErrorRow(
        422,
        _INPUT,
        False,
        None,
        "Workers died of this very request; it is refused for ten minutes.",
        "Do not send it again; report it to the operator.",
    ),
    ErrorCode.RATE_LIMIT_EXCEEDED: ErrorRow(
        429,
        _RATE,
        True,
        5,
        "The tenant's requests or tokens a minute are used up, or too many failed keys came from here.",
        "Wait for `Retry-After`, or ask for a higher limit.",
    ),
    ErrorCode.TENANT_IN_FLIGHT: ErrorRow(
        429,
        _RATE,
        True,
        1,
        "The tenant has as many requests running as it may (`max_in_flight`, or this gateway's share of it).",
        "Wait for one to end, or ask for a higher limit.",
    ),
    ErrorCode.TENANT_QUEUED: ErrorRow(
        429,
        _RATE,
        True,
        2,
        "The tenant has as many requests waiting as it may (`max_queued`, `max_queued_bytes`).",
        "Send fewer at once, or ask for a higher limit.",
    ),
    ErrorCode.QUEUE_FULL: ErrorRow(
        429,
        _RATE,
        True,
        2,
        "Every fitting worker is busy and the queue is full (`admission.max_queued`, `admission.max_queued_bytes`, or "
        "a pool's own); or every worker that was tried said that it is busy.",
        "Wait for `Retry-After`, or ask the operator for a higher limit.",
    ),
    ErrorCode.QUEUE_TIMEOUT: ErrorRow(
        429,
        _RATE,
        True,
        5,
        "The request waited as long as its class may (`queue_timeout_s`).",
        "Wait for `Retry-After`; nothing of the request was done.",
    ),
    ErrorCode.QUEUE_NEVER: ErrorRow(
        429,
        _RATE,
        False,
        1,
        "No slot was free at once and the request said `X-Headrace-Queue: never`.",
        "Send it elsewhere, or without that header.",
    ),
    ErrorCode.SHED: ErrorRow(
        429,
        _RATE,
        True,
        5,
        "Given up because of load: a higher class or a tenant with less waiting needed the place in the queue, or the "
        "deadline could not be met any more.",
        "Wait for `Retry-After`, or give it more time.",
    ),
    ErrorCode.HEADERS_TOO_LARGE: ErrorRow(
        431,
        _INPUT,
        False,
        None,
        "More header bytes than `limits.header_bytes`, a line of more than 8192, or more than 64 fields.",
        "Send fewer or shorter headers.",
    ),
    ErrorCode.INTERNAL: ErrorRow(
        500, _SERVER, False, None, "A fault of the gateway itself.", "Report the request id to the operator."
    ),
    ErrorCode.UPSTREAM_ERROR: ErrorRow(
        502,
        _SERVER,
        False,
        None,
        "The engine failed; where that was allowed, other workers were tried before.",
        "Report the request id to the operator if it happens again.",
    ),
    ErrorCode.UPSTREAM_PROTOCOL_ERROR: ErrorRow(
        502,
        _SERVER,
        False,
        None,
        "What the engine sent is not HTTP as it should be.",
        "Report the request id to the operator.",
    ),
    ErrorCode.UPSTREAM_RESET: ErrorRow(
        502,
        _SERVER,
        False,
        None,
        "The engine's connection ended before its answer did.",
        "What came before is intact; ask again if the work may be done twice.",
    ),
    ErrorCode.UPSTREAM_REDIRECT: ErrorRow(
        502,
        _SERVER,
        False,
        None,
        "The engine answered with a redirect, which is never followed.",
        "Report the request id to the operator: a worker's URL is wrong.",
    ),
    ErrorCode.NO_HEALTHY_WORKER: ErrorRow(
        503,
        _OVERLOAD,
        True,
        5,
        "Workers serve this model, but none can be reached now.",
        "Wait for `Retry-After`; nothing of the request was done.",
    ),
    ErrorCode.SHUTTING_DOWN: ErrorRow(
        503, _OVERLOAD, True, 2, "This gateway process is draining.", "Ask again; another process answers."
    ),
    ErrorCode.GATEWAY_OVERLOADED: ErrorRow(
        503,
        _OVERLOAD,
        True,
        5,
        "The gateway itself is out of connections, descriptors or memory.",
        "Wait for `Retry-After`.",
    ),
    ErrorCode.TTFT_TIMEOUT: ErrorRow(
        504,
        _TIMEOUT,
        False,
        None,
        "The first token did not come in time (`timeouts.ttft_s`).",
        "Shorten the prompt, or ask the operator for more time.",
    ),
    ErrorCode.GAP_TIMEOUT: ErrorRow(
        504,
        _TIMEOUT,
        False,
        None,
        "The stream stood still for too long (`timeouts.token_gap_s`).",
        "What came before is intact; ask again if the work may be done twice.",
    ),
    ErrorCode.DEADLINE_EXCEEDED: ErrorRow(
        504,
        _TIMEOUT,
        False,
        None,
        "The request's whole time is over (`X-Headrace-Timeout-Ms`, which counts as 1000 at least, a rule's "
        "`deadline_s`, `timeouts.total_s`).",
        "Give it more time, or ask for less output.",
    ),
    ErrorCode.HTTP_VERSION_NOT_SUPPORTED: ErrorRow(
        505, _INPUT, False, None, "Only HTTP/1.0 and HTTP/1.1 are spoken.", "Use HTTP/1.1."
    ),
}

REASON_TO_CODE: dict[Reason, ErrorCode] = {
    Reason.QUEUE_FULL: ErrorCode.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT: ErrorCode.QUEUE_TIMEOUT,
    Reason.DEADLINE: ErrorCode.DEADLINE_EXCEEDED,
    Reason.HOPELESS: ErrorCode.SHED,
    Reason.SHED: ErrorCode.SHED,
    Reason.QUEUE_NEVER: ErrorCode.QUEUE_NEVER,
    Reason.TENANT_IN_FLIGHT: ErrorCode.TENANT_IN_FLIGHT,
    Reason.TENANT_QUEUED: ErrorCode.TENANT_QUEUED,
    Reason.NO_WORKER: ErrorCode.NO_HEALTHY_WORKER,
    Reason.MODEL_NOT_FOUND: ErrorCode.MODEL_NOT_FOUND,
    Reason.CONTEXT_TOO_LONG: ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    Reason.ATTEMPTS_EXHAUSTED: ErrorCode.UPSTREAM_ERROR,
    Reason.RETRY_BUDGET: ErrorCode.UPSTREAM_ERROR,
    Reason.SHUTTING_DOWN: ErrorCode.SHUTTING_DOWN,
}
"""Total over `Reason`. Where an attempt failed before (`ATTEMPTS_EXHAUSTED`, `RETRY_BUDGET`), the last attempt's
`OUTCOME_TO_CODE` tells more."""

OUTCOME_TO_CODE: dict[OutcomeKind, ErrorCode | None] = {
    OutcomeKind.OK: None,
    OutcomeKind.CLIENT_ERROR: None,  # the engine's own answer is passed on
    OutcomeKind.CLIENT_GONE: None,  # nobody is there to read one
    OutcomeKind.BUSY: ErrorCode.QUEUE_FULL,
    OutcomeKind.CONNECT_FAILED: ErrorCode.NO_HEALTHY_WORKER,
    OutcomeKind.RESET: ErrorCode.UPSTREAM_RESET,
    OutcomeKind.PROTOCOL: ErrorCode.UPSTREAM_PROTOCOL_ERROR,
    OutcomeKind.SERVER_ERROR: ErrorCode.UPSTREAM_ERROR,
    OutcomeKind.MISROUTED: ErrorCode.MODEL_NOT_FOUND,
    OutcomeKind.TTFT_TIMEOUT: ErrorCode.TTFT_TIMEOUT,
    OutcomeKind.GAP_TIMEOUT: ErrorCode.GAP_TIMEOUT,
    OutcomeKind.DEADLINE: ErrorCode.DEADLINE_EXCEEDED,
    OutcomeKind.LOCAL: ErrorCode.GATEWAY_OVERLOADED,
}
"""Total over `OutcomeKind`: how a last attempt that ended so is told; None where nothing of ours is told."""
