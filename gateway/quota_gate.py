"""Tenants' minutes at the gate: requests are counted in, or refused with what is left and when there is room again."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gateway.errors import ErrorAnswer, ErrorCode, dialect_of
from gateway.quota import Refused, Room

if TYPE_CHECKING:
    from gateway.admission import Admitted
    from gateway.quota import Quota
    from gateway.records import RequestRecord


def count_in(quota: Quota, admitted: Admitted, path: str, request_id: str, now: float) -> ErrorAnswer | None:
    """Count a request in, and have its answer say what is left; 429 where a limit is reached, of which nothing is used
    up by that."""
    asked = admitted.classified.budget_tokens
    room = quota.take(request_id, admitted.tenant, asked, now)
    if room is None:
        return None
    if isinstance(room, Refused):
        message = told(room, admitted.tenant, quota.entry(admitted.tenant), asked)
        refusal = ErrorAnswer(
            ErrorCode.RATE_LIMIT_EXCEEDED, message, retry_after_s=room.retry_in_s, headers=refused_fields(room)
        )
        return refusal.in_dialect(dialect_of(path))
    admitted.rate_fields = rate_fields(room)
    return None


def told(refused: Refused, tenant: str, entry: str, asked: int) -> str:
    """What a tenant hears whose minute is used up. `entry`: of `tenants`, where its limits are set."""
    limit = f"{refused.limit} {refused.what} a minute (tenants.{entry}.{refused.what}_per_min)"
    again = f"try again in {ceil(refused.retry_in_s)} s."
    if refused.what == "requests":
        return f"Tenant {tenant} has used its {limit}: {again}"
    asks = f"The request asks for {asked} tokens, prompt and allowed output together; tenant {tenant} has"
    if asked <= refused.limit:
        return f"{asks} not so many left of its {limit}: {again}"
    return f"{asks} {limit}, and must not have used any: allow less output (max_tokens), or {again}"


def used_tokens(record: RequestRecord) -> int | None:
    """Tokens that a request used; None: no worker ever got it."""
    if not record.attempts:
        return None
    prompt = record.prompt_tokens
    if prompt is None:
        prompt = record.prompt_estimate if record.ttft_s is not None else 0
    return prompt + (record.output_tokens or 0)


def refused_fields(refused: Refused) -> tuple[tuple[bytes, bytes], ...]:
    """The same of the limit that is reached."""
    what = refused.what.encode("ascii")
    return (
        (b"x-ratelimit-limit-" + what, b"%d" % refused.limit),
        (b"x-ratelimit-remaining-" + what, b"0"),
        (b"x-ratelimit-reset-" + what, f"{refused.retry_in_s:.3g}s".encode("ascii")),
    )


def rate_fields(room: Room) -> bytes:
    """Response fields as OpenAI has them."""
    parts = []
    for name, left in (("requests", room.requests), ("tokens", room.tokens)):
        if left is not None:
            parts.append(
                f"x-ratelimit-limit-{name}: {left[0]}\r\nx-ratelimit-remaining-{name}: {left[1]}\r\n"
                f"x-ratelimit-reset-{name}: {left[2]:.3g}s\r\n"
            )
    return "".join(parts).encode("ascii")
