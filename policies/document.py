"""The policy document: what operators may change while traffic flows.

`Policy()` is the shipped default, the same as an empty mapping; `policies/default.yaml` spells it out.
Documents are frozen: a change is a new document. The sections are in `sections.py` (names) and `knobs.py` (numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field, model_validator

from policies.endpoints import GENERATING, TEXT_ONLY, Endpoint
from policies.knobs import Admission, Algorithm, Balancing, Health, Limits, Part, RedisLoss, Retries, Timeouts
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
    "PoolPolicy",
    "PriorityClass",
    "RedisLoss",
    "Retries",
    "Rule",
    "TenantPolicy",
    "Timeouts",
    "When",
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
        "long-context": PoolPolicy(),
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

    classes: tuple[PriorityClass, ...] = Field(
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
    rules: tuple[Rule, ...] = Field(
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
    def _without_dangling_defaults(cls, data: Any) -> Any:
        """Leave out shipped entries that name what the document has replaced."""
        if not isinstance(data, Mapping):
            return data
        given = cast("Mapping[str, Any]", data)
        neutral = {key: value for section, key, value in NEUTRAL if section in given and key not in given}
        return {**given, **neutral}

    def tenant(self, name: str) -> TenantPolicy:
        """The limits of `name`: its own entry, else `default`'s, else those without any limit."""
        return self.tenants.get(name) or self.tenants.get("default") or _UNLIMITED

    def class_index(self, name: str) -> int | None:
        """The place of class `name` in the order, 0 the highest; None if there is none."""
        return next((place for place, one in enumerate(self.classes) if one.name == name), None)

    def serves(self, pool: str, endpoint: Endpoint) -> bool:
        """Whether requests for `endpoint` are at home in `pool`, whatever their budget."""
        allowed = self.pools[pool].endpoints
        return endpoint in (GENERATING if allowed is None else allowed) or endpoint in TEXT_ONLY


_UNLIMITED = TenantPolicy()
