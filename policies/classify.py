"""From the facts of a request and the policy to its pool, class, budget and deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.endpoints import Endpoint

__all__ = ["Classified", "Endpoint", "Refusal", "RequestFacts", "TokenBudget"]


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request before anything is decided."""

    endpoint: Endpoint
    model: str  # public name, as the client wrote it
    tenant: str
    prompt_tokens: int  # estimated, or counted where prompt_exact
    max_output_tokens: int | None  # None: the client left it open
    sequences: int = 1  # answers asked for: n, or prompts times n
    stream: bool = False
    asked_class: str | None = None  # X-Headrace-Priority, as sent
    service_tier: str | None = None
    timeout_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt_exact: bool = False


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Prompt tokens and allowed output tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """What the request may hold in a worker's KV cache at most."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Classified:
    """Where a request belongs and how long it may take."""

    tenant: str
    klass: int  # index into policy.classes: 0 is the highest
    class_name: str
    pool: str
    pools: tuple[str, ...]  # home, then those it may borrow from
    fallback_pools: tuple[str, ...]  # only where no worker of `pools` exists for the model
    served_model: str  # name at the engine
    budget: TokenBudget
    queue_timeout_s: float
    deadline_s: float | None  # time for the whole request; None: the policy's total
    why: str  # for people: what decided


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request can't be classified; `code` is one of `gateway/errors.py`."""

    code: str
    message: str
    param: str | None = None
