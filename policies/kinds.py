"""Requests of one kind: what is decided for all of them at once, and what their numbers then decide.

A head, a model and a tier come again and again; a class, a pool's range and a rule's words are looked up for the first
request with them. For the next ones numbers are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from policies.canaries import Canaries
    from policies.classify import Classifier
    from policies.endpoints import Endpoint

UNBOUNDED: Final = 1 << 60
"""More tokens than any request has: comparing whole numbers is cheaper than comparing with infinity."""


class Classified(NamedTuple):
    """Where a request belongs and how long it may take."""

    tenant: str
    klass: int  # index into policy.classes: 0 is the highest
    class_name: str
    pool: str
    pools: tuple[str, ...]  # home, then those it may borrow from
    fallback_pools: tuple[str, ...]  # only where no worker of `pools` exists for the model
    served_model: str  # name at the engine
    prompt_tokens: int
    output_tokens: int  # most that it may generate
    queue_timeout_s: float
    deadline_s: float | None  # time for the whole request; None: the policy's total
    why: str  # for people, printable ASCII: what chose the pool, what chose the class
    home_budget_tokens: int = 0  # the budget that chose the pool; 0: something else did

    @property
    def budget_tokens(self) -> int:
        """Its token budget: what it may hold in a worker's KV cache at most."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Home:
    """A pool as one model's requests for one endpoint see it."""

    pool: str
    pools: tuple[str, ...]
    fallback: tuple[str, ...]
    smallest: int  # token budgets that are at home here, both ends included
    largest: int
    why: str


@dataclass(frozen=True, slots=True)
class Case:
    """A rule made ready for matching."""

    endpoint: Endpoint | None
    model: str | None
    over: int
    up_to: int
    stream: bool | None
    headers: tuple[tuple[str, str], ...]
    pool: str | None
    klass: int | None
    deadline_s: float | None
    why: str


@dataclass(slots=True, eq=False)
class Way:
    """How requests of one kind are treated that a rule matches, or none does."""

    case: Case | None
    klass: int
    class_name: str
    queue_timeout_s: float
    deadline_s: float | None
    ruled: Home | None  # where its rule says; None: the budget decides
    why_class: str
    whys: list[str]  # in whole: of the ruled home, or of each of the kind's homes


class Kind:
    """Requests that differ in nothing but their numbers, whether they stream, and what canaries choose them by.

    All that is the same for all of them is decided; `place` compares the numbers.
    """

    __slots__ = (
        "canaries",
        "classifier",
        "default_output",
        "endpoint",
        "generates",
        "homes",
        "model",
        "others",
        "ruled",
        "served_model",
        "service_tier",
        "tenant",
    )

    def __init__(
        self,
        classifier: Classifier,
        endpoint: Endpoint,
        model: str,
        tenant: str,
        service_tier: str | None,
        served_model: str,
        generates: bool,
        default_output: int,
        homes: list[Home],
        others: Way,
        ruled: list[Way],
        canaries: Canaries | None,
    ) -> None:
        self.classifier = classifier
        self.endpoint = endpoint
        self.model = model
        self.tenant = tenant
        self.service_tier = service_tier
        self.served_model = served_model
        self.generates = generates
        self.default_output = default_output
        self.homes = homes
        self.others = others  # of requests that no rule matches
        self.ruled = ruled  # by rules that may match, in order
        self.canaries = canaries

    def place(self, prompt: int, max_output: int | None, sequences: int, stream: bool, key: str) -> Classified:
        """Decide about one of them."""
        output = 0
        if self.generates:
            output = self.default_output if max_output is None else max(0, max_output)
            if sequences > 1:
                output *= sequences
        total = prompt + output
        chosen = self.others
        for one in self.ruled:
            case = one.case
            if case is not None and case.over < total <= case.up_to and (case.stream is None or case.stream is stream):
                chosen = one
                break
        home = chosen.ruled
        by_budget = home is None
        if home is not None:
            why = chosen.whys[0]
        else:
            budgets = self.classifier.budgets
            at = self._at_home(total, budgets)
            home, why = self.homes[at], chosen.whys[at]
            if self.canaries is not None and key:
                canary = self.classifier.try_canary(self.canaries, self, key, total, home)
                if canary is not home:
                    home, why, by_budget = canary, canary.why + chosen.why_class, False
            if budgets and home.pool in budgets:
                why = f"{home.why} up to {budgets[home.pool]} (tuned){chosen.why_class}"
        return Classified(
            self.tenant,
            chosen.klass,
            chosen.class_name,
            home.pool,
            home.pools,
            home.fallback,
            self.served_model,
            prompt,
            output,
            chosen.queue_timeout_s,
            chosen.deadline_s,
            why,
            total if by_budget else 0,
        )

    def _at_home(self, total: int, budgets: Mapping[str, int]) -> int:
        """The first of the homes whose range holds so many tokens."""
        homes = self.homes
        widest = 0
        for at in range(len(homes)):
            home = homes[at]
            largest = home.largest
            if home.smallest <= total <= (budgets.get(home.pool, largest) if budgets else largest):
                return at
            if largest > homes[widest].largest:
                widest = at
        # No range holds it: the engine of the widest pool says how long a request may be.
        return widest
