"""The policy's sections that name things: classes, tenants, models, pools, rules."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, StringConstraints

from policies.endpoints import Endpoint
from policies.knobs import Items, Part, unit

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}$")]
"""Names that become header values and metric labels: letters, digits, `_ . -`, at most 64."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~][ -~]{0,254}[!-~]$|^[!-~]$")]
"""Names of models as clients and engines write them: printable ASCII, at most 256."""

EndpointName = Annotated[Endpoint, Strict(False)]
"""Documents have text where models have an `Endpoint`."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~\-]{1,128}$")]


class PriorityClass(Part):
    """A priority level. Classes are strict among each other, except for their floors."""

    name: Name = Field(description="What `X-Headrace-Priority` calls it.")
    queue_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Longest wait in the queue.",
        json_schema_extra=unit("seconds"),
    )
    ttft_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Time to first token that this class is meant to get; null: none promised.",
        json_schema_extra=unit("seconds"),
    )
    tpot_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Time per output token that this class is meant to get; null: none promised.",
        json_schema_extra=unit("seconds"),
    )
    floor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the dispatches that this class gets even while higher classes wait.",
        json_schema_extra=unit("share"),
    )


class TenantPolicy(Part):
    """What one caller may use. Tenants without an entry are treated as `default`."""

    weight: float = Field(
        default=1.0,
        gt=0,
        le=10_000,
        description="Share of the tokens relative to other tenants that wait in the same class.",
        json_schema_extra=unit("factor"),
    )
    max_class: Name | None = Field(
        default=None, description="Highest class this tenant gets; higher wishes are lowered to it. Null: any."
    )
    max_in_flight: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Requests running at once; null: no limit of its own.",
        json_schema_extra=unit("requests"),
    )
    max_queued: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Requests waiting at once; null: no limit of its own.",
        json_schema_extra=unit("requests"),
    )
    max_queued_bytes: int | None = Field(
        default=None,
        ge=0,
        le=1 << 40,
        description="Body bytes of its waiting requests together; null: no limit of its own.",
        json_schema_extra=unit("bytes"),
    )
    requests_per_min: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Requests admitted in a minute; null: no limit.",
        json_schema_extra=unit("requests"),
    )
    tokens_per_min: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000_000,
        description="Tokens, prompt and output, in a minute; null: no limit.",
        json_schema_extra=unit("tokens"),
    )


class Canary(Part):
    """A pool that gets a share of a model's requests to try it out: whole sessions, by a stable hash."""

    pool: Name = Field(
        description="Pool that gets the share. What a rule places, and what this pool does not take by endpoint or "
        "budget, goes its usual way; so does what it has no room for, unless it `may_borrow` elsewhere."
    )
    weight: float = Field(
        gt=0,
        le=1,
        description="Share of the model's sessions, or of its requests that have none.",
        json_schema_extra=unit("share"),
    )


class ModelPolicy(Part):
    """A public model name. Models without an entry are served under the name the client used, by any pool."""

    served_as: ModelName | None = Field(default=None, description="Name at the engine; null: the public one.")
    pools: Items[Name] = Field(
        default=(), max_length=64, description="Pools that serve it, in the order in which they are tried; none: all."
    )
    canary: Items[Canary] = Field(default=(), max_length=16, description="Shares of its sessions for other pools.")


class PoolPolicy(Part):
    """Workers that serve one kind of work."""

    max_budget_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Largest token budget (prompt and allowed output) at home here; null: any.",
        json_schema_extra=unit("tokens"),
    )
    min_budget_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Smallest token budget at home here; null: any.",
        json_schema_extra=unit("tokens"),
    )
    tune_budget_from: int | None = Field(
        default=None,
        ge=64,
        le=8_388_608,
        description="With `tune_budget_to`: lets the gateway move `max_budget_tokens` between these bounds, so that "
        "this pool and the next one are equally loaded. Null for both: it stays as it is.",
        json_schema_extra=unit("tokens"),
    )
    tune_budget_to: int | None = Field(
        default=None,
        ge=64,
        le=8_388_608,
        description="Largest budget that tuning may reach; it never exceeds what every worker of the pool holds.",
        json_schema_extra=unit("tokens"),
    )
    may_borrow: Items[Name] = Field(
        default=(), max_length=64, description="Pools whose idle workers may serve this pool's requests."
    )
    endpoints: Items[EndpointName] | None = Field(
        default=None, description="Only these endpoints are at home here; null: those that generate text."
    )
    max_in_flight_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="As `limits.max_in_flight_per_worker`, for this pool; null: that one.",
        json_schema_extra=unit("requests"),
    )
    max_queued: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Requests at home here that may wait, so that they do not fill the queue for others; "
        "null: as many as `admission.max_queued`.",
        json_schema_extra=unit("requests"),
    )
    max_queued_bytes: int | None = Field(
        default=None,
        ge=0,
        le=1 << 40,
        description="Body bytes of the waiting requests at home here together; null: `admission.max_queued_bytes`.",
        json_schema_extra=unit("bytes"),
    )
    ttft_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Time to first token that is good enough for its requests: while a worker of its own is expected "
        "to keep it, none is borrowed. Null: a borrowed worker is taken whenever its score is lower.",
        json_schema_extra=unit("seconds"),
    )
    tpot_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Time per output token its requests are meant to get, wherever they run; null: the class's. "
        "Prefill is kept away from streams that it would push beyond.",
        json_schema_extra=unit("seconds"),
    )


class When(Part):
    """What a request must be for a rule to match: everything that is given. Empty: every request."""

    tenant: Name | None = Field(default=None, description="The caller.")
    endpoint: EndpointName | None = Field(default=None, description="What is asked for.")
    model: ModelName | None = Field(default=None, description="Public model name, as the client wrote it.")
    header: dict[HeaderName, str] = Field(
        default_factory=dict,
        max_length=16,
        description="Request headers and their exact values; names in any case.",
    )
    budget_tokens_over: int | None = Field(
        default=None, ge=0, description="The token budget is larger than this.", json_schema_extra=unit("tokens")
    )
    budget_tokens_up_to: int | None = Field(
        default=None, ge=0, description="The token budget is at most this.", json_schema_extra=unit("tokens")
    )
    stream: bool | None = Field(default=None, description="Whether the answer is streamed.")


class Rule(Part):
    """For matching requests, sets the pool, the class or the deadline. The first rule that matches wins."""

    when: When = Field(default_factory=When, description="Which requests.")
    pool: Name | None = Field(default=None, description="Home pool; its `may_borrow` still holds.")
    klass: Name | None = Field(default=None, alias="class", description="Class, unless the client asked for one.")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Time for the whole request; a client's own can only be shorter.",
        json_schema_extra=unit("seconds"),
    )
