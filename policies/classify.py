"""From the facts of a request and the policy to its pool, class, budget and deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from policies.canaries import Canaries, way
from policies.document import Policy
from policies.endpoints import GENERATING, Endpoint
from policies.kinds import UNBOUNDED, Case, Classified, Home, Kind, Way
from policies.problems import show_value
from policies.sections import Rule

__all__ = ["Classified", "Classifier", "Endpoint", "Refusal", "RequestFacts"]

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request can't be classified; `code` is one of `gateway/errors.py`."""

    code: str
    message: str
    param: str | None = None


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
        self._homes: dict[tuple[str | None, Endpoint], tuple[Home, ...]] = {}
        self._by_rule: dict[tuple[str | None, str], Home] = {}
        self.budgets: Mapping[str, int] = {}
        """Largest budgets at home in pools where they are tuned (`policies/tuning.py`); swapped whole."""
        self._canaries = {name: Canaries(entry.canary) for name, entry in policy.models.items() if entry.canary}
        self._of_canary: dict[tuple[str, str, Home], Home] = {}

    def classify(self, facts: RequestFacts) -> Classified | Refusal:
        """Decide; a Refusal only for a class that does not exist."""
        kind = self.kind(
            facts.endpoint,
            facts.model,
            facts.tenant,
            facts.asked_class,
            facts.service_tier,
            facts.timeout_ms,
            facts.headers,
        )
        if isinstance(kind, Refusal):
            return kind
        return kind.place(facts.prompt_tokens, facts.max_output_tokens, facts.sequences, facts.stream, facts.key)

    def kind(
        self,
        endpoint: Endpoint,
        model: str,
        tenant: str,
        asked_class: str | None,
        service_tier: str | None,
        timeout_ms: int | None,
        headers: Mapping[str, str],
    ) -> Kind | Refusal:
        """Decide all that the numbers of such requests cannot change. To be kept by whoever has more of the kind."""
        asked: int | None = None
        asked_by = ""
        if asked_class is not None:
            asked = self._class_of.get(asked_class.strip().casefold())
            if asked is None:
                return self._refuse(asked_class)
            asked_by = "header"
        elif service_tier is not None and service_tier in self._tiers:
            asked, asked_by = self._tiers[service_tier], "service_tier"
        ceiling = self._ceilings.get(tenant, self._default_ceiling)
        served = self._served.get(model)
        listed = model if served is not None else None
        homes = self._homes.get((listed, endpoint))
        if homes is None:
            homes = self._homes[listed, endpoint] = self._homes_of(listed, endpoint)
        cases: list[Case | None] = [None]
        cases += [
            case
            for case in self._cases_of.get(tenant, self._cases_of_others)
            if (case.endpoint is None or case.endpoint is endpoint)
            and (case.model is None or case.model == model)
            and (not case.headers or _has(headers, case.headers))
        ]
        ways: list[Way] = []
        for case in cases:
            klass, by = self._default_class, "default"
            if asked is not None:
                klass, by = asked, asked_by
            elif case is not None and case.klass is not None:
                klass, by = case.klass, "rule"
            if klass < ceiling:
                klass, by = ceiling, "tenant ceiling"
            ruled = None if case is None or case.pool is None else self._ruled_home(listed, case.pool)
            deadline_s = self._deadline(timeout_ms, None if case is None else case.deadline_s)
            why = f"; class by {by}"
            first = "" if case is None else case.why
            whys = [first + why] if ruled is not None else [home.why + why for home in homes]
            ways.append(Way(case, klass, self._names[klass], self._queue_timeouts[klass], deadline_s, ruled, why, whys))
        return Kind(
            self,
            endpoint,
            model,
            tenant,
            service_tier,
            model if served is None else served,
            endpoint in GENERATING,
            self._default_output,
            list(homes),
            ways[0],
            ways[1:],
            self._canaries.get(model),
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

    def _cases(self, tenant: str | None) -> tuple[Case, ...]:
        """The rules that may match requests of `tenant`, in order; None: of tenants that no rule names."""
        return tuple(
            self._case(place, rule)
            for place, rule in enumerate(self._policy.rules)
            if rule.when.tenant is None or rule.when.tenant == tenant
        )

    def _case(self, place: int, rule: Rule) -> Case:
        when = rule.when
        return Case(
            endpoint=when.endpoint,
            model=when.model,
            over=-1 if when.budget_tokens_over is None else when.budget_tokens_over,
            up_to=UNBOUNDED if when.budget_tokens_up_to is None else when.budget_tokens_up_to,
            stream=when.stream,
            headers=tuple((name.lower(), value.strip()) for name, value in when.header.items()),
            pool=rule.pool,
            klass=None if rule.klass is None else self._class_of[rule.klass.casefold()],
            deadline_s=rule.deadline_s,
            why=f"rules[{place}]",
        )

    def _allowed(self, model: str | None) -> tuple[str, ...]:
        listed = () if model is None else self._policy.models[model].pools
        return listed or tuple(self._policy.pools)

    def _homes_of(self, model: str | None, endpoint: Endpoint) -> tuple[Home, ...]:
        """The model's pools that take the endpoint, in order; its first pool where none does."""
        allowed = self._allowed(model)
        takers = [pool for pool in allowed if self._policy.serves(pool, endpoint)]
        return tuple(self._as_home(model, pool, f"endpoint {endpoint}, budget") for pool in takers or allowed[:1])

    def _ruled_home(self, model: str | None, pool: str) -> Home:
        home = self._by_rule.get((model, pool))
        if home is None:
            home = self._by_rule[model, pool] = self._as_home(model, pool, "rule")
        return home

    def try_canary(self, canaries: Canaries, kind: Kind, key: str, total: int, usual: Home) -> Home:
        """The canary's pool for a request with this key, as far as it is the canary's to take; else the usual one."""
        canary = canaries.choose(key)
        if canary is None or not self._policy.serves(canary.pool, kind.endpoint):
            return usual
        model = kind.model
        home = self._of_canary.get((model, canary.pool, usual))
        if home is None:
            entry = self._policy.pools[canary.pool]
            pools, fallback = way(canary.pool, entry.may_borrow, usual.pools, self._allowed(model))
            home = self._as_home(model, canary.pool, f"canary, weight {canary.weight:g}")
            home = replace(home, pools=pools, fallback=fallback)
            self._of_canary[model, canary.pool, usual] = home
        return home if home.smallest <= total <= home.largest else usual

    def _as_home(self, model: str | None, pool: str, why: str) -> Home:
        allowed = self._allowed(model)
        entry = self._policy.pools[pool]
        pools = (pool, *(other for other in entry.may_borrow if other in allowed))
        return Home(
            pool=pool,
            pools=pools,
            fallback=tuple(other for other in allowed if other not in pools),
            smallest=entry.min_budget_tokens or 0,
            largest=UNBOUNDED if entry.max_budget_tokens is None else entry.max_budget_tokens,
            why=why,
        )


def _has(headers: Mapping[str, str], wanted: tuple[tuple[str, str], ...]) -> bool:
    """Whether all wanted headers are there with these values; names in any case, wanted ones in lower case."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    return all(given.get(name) == value for name, value in wanted)
