"""From the facts of a request and the policy to its pool, class, budget and deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from policies.canaries import Canaries, way
from policies.document import Policy
from policies.endpoints import GENERATING, Endpoint
from policies.problems import show_value
from policies.sections import Rule

__all__ = ["Classified", "Classifier", "Endpoint", "Refusal", "RequestFacts", "TokenBudget"]

PRIORITY_HEADER = "X-Headrace-Priority"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class RequestFacts(NamedTuple):
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
    headers: Mapping[str, str] = _NO_HEADERS
    prompt_exact: bool = False
    key: str = ""  # what a share of the requests is chosen by: tenant and session, else the request's own id


class TokenBudget(NamedTuple):
    """Prompt tokens and allowed output tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """What the request may hold in a worker's KV cache at most."""
        return self.prompt + self.output


class Classified(NamedTuple):
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
    why: str  # for people, printable ASCII: what chose the pool, what chose the class
    home_budget_tokens: int = 0  # the budget that chose the pool; 0: something else did


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request can't be classified; `code` is one of `gateway/errors.py`."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class _Home:
    """A pool as one model's requests for one endpoint see it."""

    pool: str
    pools: tuple[str, ...]
    fallback: tuple[str, ...]
    smallest: int  # token budgets that are at home here, both ends included
    largest: float
    why: str


@dataclass(frozen=True, slots=True)
class _Case:
    """A rule made ready for matching."""

    endpoint: Endpoint | None
    model: str | None
    over: int
    up_to: float
    stream: bool | None
    headers: tuple[tuple[str, str], ...]
    pool: str | None
    klass: int | None
    deadline_s: float | None
    why: str


class Classifier:
    """One policy made ready for classifying; made once a revision.

    1. Class: what the client asks for by header, else by `service_tier`, else the rule's, else the default;
       never above the tenant's ceiling.
    2. Pool: the rule's, else the first of the model's pools that takes the endpoint and whose range holds the budget.
       Of those that no rule places, a canary gets its share, as far as its pool takes the endpoint and the budget.
    3. The rule is the first one that matches; it decides even what it leaves open.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._names = tuple(one.name for one in policy.classes)
        self._class_of = {name.casefold(): place for place, name in enumerate(self._names)}
        self._queue_timeouts = tuple(one.queue_timeout_s for one in policy.classes)
        self._default_class = self._class_of[policy.default_class.casefold()]
        # OpenAI's tiers; "default" and "auto" ask for nothing, as no tier does.
        self._tiers = {"priority": 0, "flex": len(self._names) - 1, "batch": len(self._names) - 1}
        self._ceilings = {name: self._ceiling(name) for name in policy.tenants}
        self._default_ceiling = self._ceiling("default")
        self._served = {name: name if one.served_as is None else one.served_as for name, one in policy.models.items()}
        self._default_output = policy.admission.default_output_tokens
        self._total_s = policy.timeouts.total_s
        ruled = {rule.when.tenant for rule in policy.rules if rule.when.tenant is not None}
        self._cases_of = {tenant: self._cases(tenant) for tenant in ruled}
        self._cases_of_others = self._cases(None)
        # Filled as needed; its keys are models of the policy (or none) and endpoints, so it stays bounded.
        self._homes: dict[tuple[str | None, Endpoint], tuple[_Home, ...]] = {}
        self._by_rule: dict[tuple[str | None, str], _Home] = {}
        self.budgets: Mapping[str, int] = {}
        """Largest budgets at home in pools where they are tuned (`policies/tuning.py`); swapped whole."""
        self._canaries = {name: Canaries(entry.canary) for name, entry in policy.models.items() if entry.canary}
        self._of_canary: dict[tuple[str, str, _Home], _Home] = {}

    def classify(self, facts: RequestFacts) -> Classified | Refusal:
        """Decide; a Refusal only for a class that does not exist."""
        prompt = facts.prompt_tokens
        output = 0
        if facts.endpoint in GENERATING:
            allowed = facts.max_output_tokens
            output = (self._default_output if allowed is None else max(0, allowed)) * max(1, facts.sequences)
        total = prompt + output

        case = self._match(facts, total)
        klass = self._default_class
        by = "default"
        if facts.asked_class is not None:
            asked = self._class_of.get(facts.asked_class.strip().casefold())
            if asked is None:
                return self._refuse(facts.asked_class)
            klass, by = asked, "header"
        elif facts.service_tier is not None and facts.service_tier in self._tiers:
            klass, by = self._tiers[facts.service_tier], "service_tier"
        elif case is not None and case.klass is not None:
            klass, by = case.klass, "rule"
        ceiling = self._ceilings.get(facts.tenant, self._default_ceiling)
        if klass < ceiling:
            klass, by = ceiling, "tenant ceiling"

        served = self._served.get(facts.model)
        listed = facts.model if served is not None else None
        if case is not None and case.pool is not None:
            home = self._ruled_home(listed, case.pool)
            why, by_budget = case.why, False
        else:
            home = usual = self._home(listed, facts.endpoint, total)
            if facts.model in self._canaries and facts.key:
                home = self._try_canary(facts, total, home)
            why, by_budget = home.why, home is usual
            if home.pool in self.budgets:
                why += f" up to {self.budgets[home.pool]} (tuned)"
        return Classified(
            facts.tenant,
            klass,
            self._names[klass],
            home.pool,
            home.pools,
            home.fallback,
            facts.model if served is None else served,
            TokenBudget(prompt, output),
            self._queue_timeouts[klass],
            self._deadline(facts.timeout_ms, None if case is None else case.deadline_s),
            f"{why}; class by {by}",
            total if by_budget else 0,
        )

    def _ceiling(self, tenant: str) -> int:
        highest = self._policy.tenant(tenant).max_class
        return 0 if highest is None else self._class_of[highest.casefold()]

    def _refuse(self, asked: str) -> Refusal:
        # The value comes from a client: shown escaped and cut.
        shown = show_value(asked).encode("ascii", "backslashreplace").decode()
        message = f"There is no priority class {shown}; classes are {', '.join(self._names)}."
        return Refusal("invalid_priority", message, PRIORITY_HEADER)

    def _deadline(self, timeout_ms: int | None, ruled_s: float | None) -> float | None:
        if timeout_ms is None:
            return None if ruled_s is None else min(ruled_s, self._total_s)
        asked_s = max(0.001, timeout_ms / 1000)
        return min(asked_s, self._total_s if ruled_s is None else min(ruled_s, self._total_s))

    def _cases(self, tenant: str | None) -> tuple[_Case, ...]:
        """The rules that may match requests of `tenant`, in order; None: of tenants that no rule names."""
        return tuple(
            self._case(place, rule)
            for place, rule in enumerate(self._policy.rules)
            if rule.when.tenant is None or rule.when.tenant == tenant
        )

    def _case(self, place: int, rule: Rule) -> _Case:
        when = rule.when
        return _Case(
            endpoint=when.endpoint,
            model=when.model,
            over=-1 if when.budget_tokens_over is None else when.budget_tokens_over,
            up_to=float("inf") if when.budget_tokens_up_to is None else when.budget_tokens_up_to,
            stream=when.stream,
            headers=tuple((name.lower(), value.strip()) for name, value in when.header.items()),
            pool=rule.pool,
            klass=None if rule.klass is None else self._class_of[rule.klass.casefold()],
            deadline_s=rule.deadline_s,
            why=f"rules[{place}]",
        )

    def _match(self, facts: RequestFacts, total: int) -> _Case | None:
        """The first rule that matches."""
        for case in self._cases_of.get(facts.tenant, self._cases_of_others):
            if (
                case.over < total <= case.up_to
                and (case.endpoint is None or case.endpoint is facts.endpoint)
                and (case.model is None or case.model == facts.model)
                and (case.stream is None or case.stream is facts.stream)
                and (not case.headers or _has(facts.headers, case.headers))
            ):
                return case
        return None

    def _home(self, model: str | None, endpoint: Endpoint, total: int) -> _Home:
        homes = self._homes.get((model, endpoint))
        if homes is None:
            homes = self._homes[model, endpoint] = self._homes_of(model, endpoint)
        budgets = self.budgets
        for home in homes:
            tuned = budgets.get(home.pool) if budgets else None
            if home.smallest <= total <= (home.largest if tuned is None else tuned):
                return home
        # No range holds it: the engine of the widest pool says how long a request may be.
        return max(homes, key=lambda home: home.largest)

    def _allowed(self, model: str | None) -> tuple[str, ...]:
        listed = () if model is None else self._policy.models[model].pools
        return listed or tuple(self._policy.pools)

    def _homes_of(self, model: str | None, endpoint: Endpoint) -> tuple[_Home, ...]:
        """The model's pools that take the endpoint, in order; its first pool where none does."""
        allowed = self._allowed(model)
        takers = [pool for pool in allowed if self._policy.serves(pool, endpoint)]
        return tuple(self._as_home(model, pool, f"endpoint {endpoint}, budget") for pool in takers or allowed[:1])

    def _ruled_home(self, model: str | None, pool: str) -> _Home:
        home = self._by_rule.get((model, pool))
        if home is None:
            home = self._by_rule[model, pool] = self._as_home(model, pool, "rule")
        return home

    def _try_canary(self, facts: RequestFacts, total: int, usual: _Home) -> _Home:
        canary = self._canaries[facts.model].choose(facts.key)
        if canary is None or not self._policy.serves(canary.pool, facts.endpoint):
            return usual
        home = self._of_canary.get((facts.model, canary.pool, usual))
        if home is None:
            entry = self._policy.pools[canary.pool]
            pools, fallback = way(canary.pool, entry.may_borrow, usual.pools, self._allowed(facts.model))
            home = self._as_home(facts.model, canary.pool, f"canary, weight {canary.weight:g}")
            home = replace(home, pools=pools, fallback=fallback)
            self._of_canary[facts.model, canary.pool, usual] = home
        return home if home.smallest <= total <= home.largest else usual

    def _as_home(self, model: str | None, pool: str, why: str) -> _Home:
        allowed = self._allowed(model)
        entry = self._policy.pools[pool]
        pools = (pool, *(other for other in entry.may_borrow if other in allowed))
        return _Home(
            pool=pool,
            pools=pools,
            fallback=tuple(other for other in allowed if other not in pools),
            smallest=entry.min_budget_tokens or 0,
            largest=float("inf") if entry.max_budget_tokens is None else entry.max_budget_tokens,
            why=why,
        )


def _has(headers: Mapping[str, str], wanted: tuple[tuple[str, str], ...]) -> bool:
    """Whether all wanted headers are there with these values; names in any case, wanted ones in lower case."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    return all(given.get(name) == value for name, value in wanted)
