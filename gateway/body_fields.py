"""Which of a body's top-level fields mean something here: a bit for each, for one walk over the names (`facts.common`).

Most bodies have few of them and several that only the engine reads. One look-up for each name that is there costs less
than one for each that might be, and every reader then asks a bit.
"""

from __future__ import annotations

from typing import Final

STREAM: Final = 1
STREAM_OPTIONS: Final = 2
SERVICE_TIER: Final = 4
CACHE_SALT: Final = 8
TOOLS: Final = 16
COUNTS: Final = 32  # how many answers
COMPLETION_LIMIT: Final = 64  # the newer name of a chat's `max_tokens`
LOGPROBS: Final = 128
ENGINE: Final = 256  # one of ENGINE_FIELDS

ENGINE_FIELDS: Final = frozenset(
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

BITS: Final[dict[str, int]] = {
    "stream": STREAM,
    "stream_options": STREAM_OPTIONS,
    "service_tier": SERVICE_TIER,
    "cache_salt": CACHE_SALT,
    "tools": TOOLS,
    "n": COUNTS,
    "best_of": COUNTS,
    "max_completion_tokens": COMPLETION_LIMIT,
    "logprobs": LOGPROBS,
    "top_logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
    **dict.fromkeys(ENGINE_FIELDS, ENGINE),
}
"""The bit of each field that has one."""
