"""Where a policy sends requests, told without any request: by model, endpoint, tenant and token budget.

What the diff and the guard rails compare. The answer is found by asking the classifier itself at every budget where
it may change its mind, so it cannot differ from what production does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from policies.classify import Classified, Classifier, Refusal, RequestFacts
from policies.document import Policy
from policies.endpoints import Endpoint
from policies.sections import Rule

ENDPOINTS: Final = tuple(endpoint for endpoint in Endpoint if endpoint is not Endpoint.MODELS)
NO_HEADERS: Final = ()


@dataclass(frozen=True, slots=True)
class Way:
    """Where requests of one kind go: those with token budgets of `low` … `high` (None: any above)."""

    low: int
    high: int | None
    pool: str
    pools: tuple[str, ...]
    fallback_pools: tuple[str, ...]
    served_model: str
    class_name: str
    queue_timeout_s: float
    deadline_s: float | None


def breakpoints(*policies: Policy, pools: Collection[str] | None = None) -> list[int]:
    """Token budgets where any of these policies may decide otherwise than one token below, and 0.

    `pools`: only where these may be home or not, as for a model that is served by no others.
    """
    found = {0}
    for policy in policies:
        for name, pool in policy.pools.items():
            if pools is not None and name not in pools:
                continue
            found.update((pool.min_budget_tokens or 0, (pool.max_budget_tokens or -1) + 1))
        for rule in policy.rules:
            over, up_to = rule.when.budget_tokens_over, rule.when.budget_tokens_up_to
            found.update((0 if over is None else over + 1, 0 if up_to is None else up_to + 1))
    return sorted(found)


def ways(
    classifier: Classifier,
    budgets: list[int],
    model: str,
    endpoint: Endpoint,
    tenant: str = "default",
    headers: tuple[tuple[str, str], ...] = NO_HEADERS,
    stream: bool = True,
) -> list[Way]:
    """Where requests of this kind go, one entry for each range between `budgets` (see `breakpoints`)."""
    found = []
    for place, low in enumerate(budgets):
        high = budgets[place + 1] - 1 if place + 1 < len(budgets) else None
        facts = RequestFacts(endpoint, model, tenant, low, 0, stream=stream, headers=dict(headers))
        answer = classifier.classify(facts)
        if isinstance(answer, Refusal):
            raise TypeError(f"classified without a class asked for, and yet refused: {answer.message}")
        found.append(_way(answer, low, high))
    return found


def _way(answer: Classified, low: int, high: int | None) -> Way:
    return Way(
        low,
        high,
        answer.pool,
        answer.pools,
        answer.fallback_pools,
        answer.served_model,
        answer.class_name,
        answer.queue_timeout_s,
        answer.deadline_s,
    )


def kinds(rules: Iterable[Rule]) -> list[tuple[str, tuple[tuple[str, str], ...], bool]]:
    """The kinds of callers that rules tell apart: (tenant, headers, stream); plain callers of `default` first."""
    found: dict[tuple[str, tuple[tuple[str, str], ...], bool], None] = {("default", NO_HEADERS, True): None}
    for rule in rules:
        when = rule.when
        kind = when.tenant or "default", tuple(sorted(when.header.items())), when.stream is not False
        found[kind] = None
    return list(found)
