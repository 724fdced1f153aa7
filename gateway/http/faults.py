"""What a client sent is no request that may be served: the answer behind which its connection ends."""

from __future__ import annotations

from gateway.errors import ErrorAnswer, ErrorCode

_UNFINISHED = " and is not whole"


class RequestFault(Exception):  # noqa: N818  (the client's fault, not an error of ours)
    """What a client sent is not a request that may be served; the connection ends with `answer`."""

    def __init__(self, code: ErrorCode, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.answer = ErrorAnswer(code, message, headers=headers)


def malformed(message: str) -> RequestFault:
    """It is not well-formed HTTP, or two readers could read it differently."""
    return RequestFault(ErrorCode.BAD_REQUEST, message)


def head_too_large(what: str, limit: int, where: str = "a fixed limit", *, whole: bool = True) -> RequestFault:
    """The head, a line of it or the number of its fields. `what`: with its size; `where`: the limit is set."""
    message = f"The {what}{'' if whole else _UNFINISHED}; {limit} ({where}) are read. Send fewer or shorter headers."
    return RequestFault(ErrorCode.HEADERS_TOO_LARGE, message)


def body_too_large(size: int | bytes, limit: int, *, whole: bool = True) -> RequestFault:
    """The body is, or says that it is, longer than the policy allows. `size`: in bytes, or the digits as they came."""
    said = size.decode("latin-1") if isinstance(size, bytes) else str(size)
    return RequestFault(
        ErrorCode.REQUEST_TOO_LARGE,
        f"The body has {said} bytes{'' if whole else _UNFINISHED}; {limit} (limits.body_bytes) are allowed. "
        "Send a smaller one.",
    )
