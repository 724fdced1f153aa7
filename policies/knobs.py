"""The policy's sections that hold plain numbers: balancing, admission, limits, retries, health, timeouts.

Every default, bound, unit and description lives on the field; the reference and the JSON Schema are made from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict


def unit(name: str) -> dict[str, Any]:
    """Say in the schema what a number counts: seconds, tokens, bytes, requests."""
    return {"unit": name}


class Part(BaseModel):
    """A frozen section of the policy that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, strict=True)


T = TypeVar("T")

Items = Annotated[tuple[T, ...], Strict(False)]
"""A list of the document: decoding is strict, yet documents have lists where frozen models have tuples."""

Algorithm = Literal["least_outstanding_work", "round_robin", "least_requests", "power_of_two"]
RedisLoss = Literal["local_share", "open", "closed"]


class Balancing(Part):
    """How a worker is chosen among those that can take a request."""

    algorithm: Algorithm = Field(
        default="least_outstanding_work",
        description="Which balancer scores the workers; only least_outstanding_work knows the work in a request.",
    )
    beta: float = Field(
        default=0.1,
        ge=0,
        le=100,
        description="Weight of the delay that a request causes to those already on a worker.",
        json_schema_extra=unit("factor"),
    )
    crossing_penalty: float = Field(
        default=0.75,
        ge=0,
        le=1000,
        description="Soft pools: the score of a worker outside the home pool is multiplied by one plus this.",
        json_schema_extra=unit("factor"),
    )


class Admission(Part):
    """What is let in, and how much may wait."""

    kv_watermark: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Share of a worker's KV cache that may be booked.",
        json_schema_extra=unit("share"),
    )
    top_class_reserve: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Share of each worker's places and KV cache that only the highest class gets; less than one whole "
        "place keeps nothing. 0.05 to 0.1 where the highest class must never find a worker full.",
        json_schema_extra=unit("share"),
    )
    hold_room_after: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="A request that no worker has room for, while smaller ones find some, has one worker kept free for "
        "it after this share of its longest wait; one request of a pool at a time. 1: never.",
        json_schema_extra=unit("share"),
    )
    max_queued: int = Field(
        default=1024, ge=0, le=1_000_000, description="Requests that may wait.", json_schema_extra=unit("requests")
    )
    max_queued_bytes: int = Field(
        default=268_435_456,
        ge=0,
        le=1 << 40,
        description="Body bytes of all waiting requests together.",
        json_schema_extra=unit("bytes"),
    )
    reject_when_hopeless: bool = Field(
        default=True, description="Refuse at once what cannot meet its deadline any more, instead of letting it wait."
    )
    default_output_tokens: int = Field(
        default=512,
        ge=1,
        le=10_000_000,
        description="Output that a request's token budget allows for when the client sets no maximum.",
        json_schema_extra=unit("tokens"),
    )
    ask_usage: bool = Field(
        default=False,
        description="Ask engines for the token counts of every chat and completion stream, instead of counting events; "
        "clients that did not ask do not see them. Those of tenants with tokens_per_min are always asked for.",
    )
    over_commit: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Requests sent to a worker beyond what its engine batches, so that it never idles between two.",
        json_schema_extra=unit("requests"),
    )


class Limits(Part):
    """Bounds of what one request or one worker may hold."""

    max_in_flight_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Requests one worker may hold at once; null: as many as its engine batches.",
        json_schema_extra=unit("requests"),
    )
    body_bytes: int = Field(
        default=33_554_432,
        ge=1024,
        le=1 << 32,
        description="Largest request body; more is answered 413.",
        json_schema_extra=unit("bytes"),
    )
    header_bytes: int = Field(
        default=16_384,
        ge=1024,
        le=1 << 24,
        description="Largest request head, all header lines together; more is answered 431.",
        json_schema_extra=unit("bytes"),
    )
    json_depth: int = Field(
        default=64,
        ge=4,
        le=1000,
        description="Deepest nesting of arrays and objects in a request body.",
        json_schema_extra=unit("levels"),
    )
    max_sequences: int = Field(
        default=128,
        ge=1,
        le=100_000,
        description="Most answers one request may ask for (`n`, or prompts times `n`).",
        json_schema_extra=unit("sequences"),
    )
    refused_fields: Items[str] = Field(
        default=(), max_length=256, description="Top-level body fields that are refused with 400; all others pass."
    )


class Retries(Part):
    """New attempts on another worker, before the first byte went downstream."""

    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description="Attempts in all, the first included. A reused connection that ends before anything was answered "
        "is no attempt: the same worker gets the request once more on a new one, so it may see it twice per attempt.",
        json_schema_extra=unit("attempts"),
    )
    budget_ratio: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Retries allowed for each request that succeeded.",
        json_schema_extra=unit("share"),
    )
    backoff_base_s: float = Field(
        default=0.05,
        ge=0,
        le=60,
        description="Upper end of the random wait before the second retry; doubles each time.",
        json_schema_extra=unit("seconds"),
    )
    backoff_cap_s: float = Field(
        default=1.0, ge=0, le=300, description="No single wait is longer.", json_schema_extra=unit("seconds")
    )
    continue_streams: bool = Field(
        default=False,
        description="Continue a broken stream on another worker with what was generated so far, where engines can.",
    )


class Health(Part):
    """When a worker is taken out of rotation, for how long, and how it comes back."""

    consecutive_failures: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Failures in a row that eject a worker.",
        json_schema_extra=unit("requests"),
    )
    connect_failures: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Failed connections in a row that eject a worker.",
        json_schema_extra=unit("attempts"),
    )
    ejection_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="First time out of rotation; doubles with each ejection.",
        json_schema_extra=unit("seconds"),
    )
    ejection_cap_s: float = Field(
        default=120.0, gt=0, le=86_400, description="No ejection is longer.", json_schema_extra=unit("seconds")
    )
    max_ejected: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of a pool that may be ejected for soft reasons; refused connections are not bounded by it.",
        json_schema_extra=unit("share"),
    )
    slow_start_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="A worker that joins or comes back reaches its whole limit over this time.",
        json_schema_extra=unit("seconds"),
    )


class Timeouts(Part):
    """How long each step of a request may take."""

    connect_s: float = Field(
        default=1.0, gt=0, le=60, description="Open a connection to a worker.", json_schema_extra=unit("seconds")
    )
    ttft_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="From dispatch to the first event of a stream. An answer that is not a stream must be there as "
        "a whole within ttft_s x (1 + allowed output tokens x sequences / 512), the usual output where none is said.",
        json_schema_extra=unit("seconds"),
    )
    token_gap_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Between two events of a stream that bring data; comments pass and do not count.",
        json_schema_extra=unit("seconds"),
    )
    total_s: float = Field(
        default=600.0,
        gt=0,
        le=3600,
        description="The whole request, waiting and retries included; a client's own timeout can only be shorter.",
        json_schema_extra=unit("seconds"),
    )
    header_s: float = Field(
        default=10.0, gt=0, le=600, description="Read a request's head.", json_schema_extra=unit("seconds")
    )
    body_s: float = Field(
        default=30.0, gt=0, le=3600, description="Read a request's body.", json_schema_extra=unit("seconds")
    )
    write_stall_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="A client that takes no bytes for this long is cut off.",
        json_schema_extra=unit("seconds"),
    )
    head_hold_s: float = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="Longest that a stream's head is held back for its first event; then it goes out with a comment.",
        json_schema_extra=unit("seconds"),
    )
