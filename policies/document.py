"""The policy document: what operators may change while traffic flows.

`Policy()` is the shipped default, the same as an empty mapping; `policies/default.yaml` spells it out.
Documents are frozen: a change is a new document. The sections are in `sections.py` (names) and `knobs.py` (numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from policies.checks import faults_of
from policies.decode import ALREADY_CHECKED, decode_mapping, decode_text
from policies.endpoints import GENERATING, TEXT_ONLY, Endpoint
from policies.knobs import Admission, Algorithm, Balancing, Health, Items, Limits, Part, RedisLoss, Retries, Timeouts
from policies.problems import Fault, PolicyError, Problem, show_path
from policies.sections import Canary, ModelName, ModelPolicy, Name, PoolPolicy, PriorityClass, Rule, TenantPolicy, When

__all__ = [
    "Admission",
    "Algorithm",
    "Balancing",
    "Canary",
    "Health",
    "Limits",
    "ModelPolicy",
    "Policy",
    "PolicyError",
    "PoolPolicy",
    "PriorityClass",
    "Problem",
    "RedisLoss",
    "Retries",
    "Rule",
    "TenantPolicy",
    "Timeouts",
    "When",
    "json_schema",
    "parse_policy",
    "policy_from_mapping",
]


def shipped_classes() -> tuple[PriorityClass, ...]:
    """The classes of the shipped default, highest first."""
    return (
        PriorityClass(name="interactive", queue_timeout_s=10, ttft_slo_s=0.5, tpot_slo_s=0.05, floor=0.0),
        PriorityClass(name="standard", queue_timeout_s=30, ttft_slo_s=2.0, tpot_slo_s=0.1, floor=0.10),
        PriorityClass(name="batch", queue_timeout_s=120, floor=0.02),
    )


def shipped_tenants() -> dict[str, TenantPolicy]:
    """The tenants of the shipped default."""
    return {
        "default": TenantPolicy(weight=1, max_class="interactive"),
        "acme": TenantPolicy(
            weight=4,
            max_class="interactive",
            max_in_flight=64,
            max_queued=256,
            requests_per_min=600,
            tokens_per_min=400_000,
        ),
    }


def shipped_models() -> dict[str, ModelPolicy]:
    """The model names of the shipped default."""
    return {"chat": ModelPolicy(served_as="tiny", pools=("short-chat", "long-context"))}


def shipped_pools() -> dict[str, PoolPolicy]:
    """The pools of the shipped default."""
    return {
        "short-chat": PoolPolicy(max_budget_tokens=4096, may_borrow=("long-context",)),
        "long-context": PoolPolicy(may_borrow=("short-chat",)),
        "embeddings": PoolPolicy(
            endpoints=(Endpoint.EMBEDDINGS, Endpoint.CLASSIFY, Endpoint.SCORE, Endpoint.RERANK, Endpoint.POOLING)
        ),
    }


def shipped_rules() -> tuple[Rule, ...]:
    """The rules of the shipped default."""
    return (Rule(when=When(tenant="acme", endpoint=Endpoint.CHAT, budget_tokens_over=8000), pool="long-context"),)


NEUTRAL: tuple[tuple[str, str, object], ...] = (
    ("pools", "models", {}),
    ("pools", "rules", ()),
    ("classes", "tenants", {"default": {}}),
)
"""(section, dependent, value): the shipped `dependent` names entries of the shipped `section`, so a document that
writes its own `section` and leaves `dependent` out gets this value instead."""


class Policy(Part):
    """The whole document. Every field has a default: `{}` is a valid policy, the shipped one."""

    classes: Items[PriorityClass] = Field(
        default_factory=shipped_classes,
        min_length=1,
        max_length=16,
        description="Priority classes in order, the highest first.",
    )
    default_class: Name = Field(default="standard", description="Class of requests that ask for none.")
    tenants: dict[Name, TenantPolicy] = Field(
        default_factory=shipped_tenants,
        max_length=10_000,
        description="Callers by name; `default` holds for all that are not listed.",
    )
    models: dict[ModelName, ModelPolicy] = Field(
        default_factory=shipped_models, max_length=10_000, description="Public model names."
    )
    pools: dict[Name, PoolPolicy] = Field(
        default_factory=shipped_pools,
        min_length=1,
        max_length=256,
        description="Pools by name, in order: the first whose endpoints and budget range fit is home.",
    )
    rules: Items[Rule] = Field(
        default_factory=shipped_rules, max_length=256, description="Exceptions, in order: the first match wins."
    )
    balancing: Balancing = Field(default_factory=Balancing, description="Which worker takes a request.")
    admission: Admission = Field(default_factory=Admission, description="What is let in and may wait.")
    limits: Limits = Field(default_factory=Limits, description="Bounds of a request and of a worker.")
    retries: Retries = Field(default_factory=Retries, description="New attempts after a failure.")
    health: Health = Field(default_factory=Health, description="Ejecting workers and letting them back in.")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="How long each step may take.")
    redis_loss: RedisLoss = Field(
        default="local_share",
        description="Limits while Redis is gone: keep the local share, admit all (open), or admit none (closed).",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Leave out shipped entries that name what the document has replaced."""
        return {**data, **_neutral(data)} if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _fits_together(self) -> Policy:
        """Refuse what doesn't fit together, however the object was made."""
        faults = faults_of(self.model_dump(by_alias=True))
        if faults:
            told = "; ".join(f"{show_path(fault.path)}: {fault.message}" for fault in faults)
            raise PydanticCustomError(ALREADY_CHECKED, "{told}", {"told": told})
        return self

    def tenant(self, name: str) -> TenantPolicy:
        """The limits of `name`: its own entry, else `default`'s, else those without any limit."""
        return self.tenants.get(name) or self.tenants.get("default") or _UNLIMITED

    def tenant_entry(self, name: str) -> str:
        """The name of the entry of `tenants` that holds for `name`: where its limits are set."""
        return name if name in self.tenants else "default"

    def class_index(self, name: str) -> int | None:
        """The place of class `name` in the order, 0 the highest; None if there is none."""
        return next((place for place, one in enumerate(self.classes) if one.name == name), None)

    def shares_endpoint(self, pool: str, other: str) -> bool:
        """Whether requests for some endpoint are at home in both pools, if their budgets are."""
        one, two = (self.pools[name].endpoints for name in (pool, other))
        return not set(GENERATING if one is None else one).isdisjoint(GENERATING if two is None else two)

    def serves(self, pool: str, endpoint: Endpoint) -> bool:
        """Whether requests for `endpoint` are at home in `pool`, whatever their budget."""
        allowed = self.pools[pool].endpoints
        return endpoint in (GENERATING if allowed is None else allowed) or endpoint in TEXT_ONLY


_UNLIMITED = TenantPolicy()


def _neutral(given: Mapping[str, object]) -> dict[str, object]:
    return {key: value for section, key, value in NEUTRAL if section in given and key not in given}


def _check_document(data: Mapping[str, object]) -> list[Fault]:
    """Faults of a document that may leave sections out."""
    return faults_of({**_SHIPPED, **_neutral(data), **data})


_SHIPPED = Policy().model_dump(mode="json", by_alias=True)


def parse_policy(text: str | bytes) -> Policy:
    """Read a policy from YAML or JSON text; raises PolicyError with all that is wrong, each with its line."""
    return decode_text(Policy, text, _check_document)


def policy_from_mapping(data: Mapping[str, object]) -> Policy:
    """Read a policy from data that was parsed already; raises PolicyError with all that is wrong."""
    return decode_mapping(Policy, data, _check_document)


def json_schema() -> dict[str, Any]:
    """The document's JSON Schema (2020-12), with every default, description and unit."""
    schema = Policy.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Headrace policy"}
