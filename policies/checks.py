"""What must hold between the parts of a policy: names that exist, sums and orders.

Works on plain data that may still have other faults, so that one reading finds everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from policies.problems import Fault, Path, closest, show_value

Data = Mapping[str, Any]


def faults_of(data: Data) -> list[Fault]:
    """Everything that doesn't fit together in a whole document; parts of a wrong type are passed over."""
    classes = _class_names(data.get("classes"))
    pools = _names(data.get("pools"))
    return [
        *_check_classes(data, classes),
        *_check_tenants(data, classes),
        *_check_models(data, pools),
        *_check_pools(data, pools),
        *_check_rules(data, classes, pools),
        *_ordered(data, ("retries",), "backoff_base_s", "backoff_cap_s"),
        *_ordered(data, ("health",), "ejection_s", "ejection_cap_s"),
    ]


def _class_names(classes: object) -> list[str] | None:
    """Names of the classes, None when one of them can't be told."""
    if not isinstance(classes, list | tuple):
        return None
    names = [one.get("name") for one in classes if isinstance(one, Mapping)]
    texts = [name for name in names if isinstance(name, str)]
    return texts if len(texts) == len(classes) else None


def _names(section: object) -> list[str] | None:
    return list(section) if isinstance(section, Mapping) else None


def _entries(data: Data, section: str) -> Iterator[tuple[str, Data]]:
    entries = data.get(section)
    if isinstance(entries, Mapping):
        yield from ((name, entry) for name, entry in entries.items() if isinstance(entry, Mapping))


def _items(value: object) -> Iterable[tuple[int, Any]]:
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _known(path: Path, name: object, known: list[str] | None, what: str) -> Iterator[Fault]:
    """`name` must be one of `known`; None and what isn't text is somebody else's problem."""
    if isinstance(name, str) and known is not None and name not in known:
        message = f"no {what} is called {show_value(name)}; there are {', '.join(known[:20]) or 'none'}"
        yield Fault(path, message, name, closest(name, known))


def _once(path: Path, names: object) -> Iterator[Fault]:
    seen: set[str] = set()
    for place, name in _items(names):
        if isinstance(name, str):
            if name in seen:
                yield Fault((*path, place), f"{show_value(name)} is listed twice", name)
            seen.add(name)


def _ordered(data: Data, path: Path, low: str, high: str) -> Iterator[Fault]:
    """Where both are given, `low` must not be above `high`."""
    entry: Any = data
    for part in path:
        entry = entry.get(part) if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping):
        return
    smaller, larger = _number(entry.get(low)), _number(entry.get(high))
    if smaller is not None and larger is not None and smaller > larger:
        yield Fault((*path, low), f"must not be above {high} ({larger}), got {smaller}", smaller)


def _check_classes(data: Data, names: list[str] | None) -> Iterator[Fault]:
    floors = 0.0
    seen: dict[str, int] = {}
    for place, one in _items(data.get("classes")):
        if isinstance(one, Mapping):
            floors += _number(one.get("floor")) or 0.0
            name = one.get("name")
            if isinstance(name, str):
                # Clients may write a class in any case, so two that differ in case only would be one.
                first = seen.setdefault(name.casefold(), place)
                if first != place:
                    yield Fault(("classes", place, "name"), f"same name as classes[{first}]", name)
    if floors > 1 + 1e-9:
        yield Fault(("classes",), f"floors must not sum to more than 1, got {floors:g}")
    yield from _known(("default_class",), data.get("default_class"), names, "class")


def _check_tenants(data: Data, classes: list[str] | None) -> Iterator[Fault]:
    for name, tenant in _entries(data, "tenants"):
        yield from _known(("tenants", name, "max_class"), tenant.get("max_class"), classes, "class")


def _check_models(data: Data, pools: list[str] | None) -> Iterator[Fault]:
    for name, model in _entries(data, "models"):
        path = ("models", name)
        for place, pool in _items(model.get("pools")):
            yield from _known((*path, "pools", place), pool, pools, "pool")
        yield from _once((*path, "pools"), model.get("pools"))
        share = 0.0
        tried: dict[object, int] = {}
        for place, canary in _items(model.get("canary")):
            if isinstance(canary, Mapping):
                first = tried.setdefault(repr(canary.get("pool")), place)
                if first != place:
                    yield Fault((*path, "canary", place, "pool"), f"same pool as canary[{first}]", canary.get("pool"))
                yield from _known((*path, "canary", place, "pool"), canary.get("pool"), pools, "pool")
                share += _number(canary.get("weight")) or 0.0
        if share > 1 + 1e-9:
            yield Fault((*path, "canary"), f"weights must not sum to more than 1, got {share:g}")


def _check_pools(data: Data, pools: list[str] | None) -> Iterator[Fault]:
    for name, pool in _entries(data, "pools"):
        path = ("pools", name)
        for place, other in _items(pool.get("may_borrow")):
            yield from _known((*path, "may_borrow", place), other, pools, "pool")
            if other == name:
                yield Fault((*path, "may_borrow", place), "a pool can't borrow from itself", other)
        yield from _once((*path, "may_borrow"), pool.get("may_borrow"))
        yield from _ordered(data, path, "min_budget_tokens", "max_budget_tokens")
        yield from _check_tuning(path, pool)
        if isinstance(pool.get("endpoints"), list | tuple) and not pool["endpoints"]:
            yield Fault((*path, "endpoints"), "must name at least one endpoint, or be null")


def _check_tuning(path: Path, pool: Data) -> Iterator[Fault]:
    if (pool.get("tune_budget_from") is None) != (pool.get("tune_budget_to") is None):
        given = "tune_budget_from" if pool.get("tune_budget_to") is None else "tune_budget_to"
        yield Fault((*path, given), "needs both ends: give tune_budget_from and tune_budget_to, or neither")
    elif pool.get("tune_budget_from") is not None and pool.get("max_budget_tokens") is None:
        message = "tunes max_budget_tokens, which is not given"
        yield Fault((*path, "tune_budget_from"), message, pool.get("tune_budget_from"))
    low, now, high = (_number(pool.get(key)) for key in ("tune_budget_from", "max_budget_tokens", "tune_budget_to"))
    if low is not None and now is not None and high is not None and not low <= now <= high:
        message = f"must be from tune_budget_from ({low:g}) to tune_budget_to ({high:g}), got {now:g}"
        yield Fault((*path, "max_budget_tokens"), message, pool.get("max_budget_tokens"))


def _check_rules(data: Data, classes: list[str] | None, pools: list[str] | None) -> Iterator[Fault]:
    for place, rule in _items(data.get("rules")):
        if not isinstance(rule, Mapping):
            continue
        path = ("rules", place)
        yield from _known((*path, "pool"), rule.get("pool"), pools, "pool")
        yield from _known((*path, "class"), rule.get("class"), classes, "class")
        if all(rule.get(key) is None for key in ("pool", "class", "deadline_s")):
            yield Fault(path, "sets nothing: give it a pool, a class or a deadline_s")
        when = rule.get("when")
        if isinstance(when, Mapping):
            over, up_to = _number(when.get("budget_tokens_over")), _number(when.get("budget_tokens_up_to"))
            if over is not None and up_to is not None and over >= up_to:
                message = f"no budget is over {over} and up to {up_to}"
                yield Fault((*path, "when", "budget_tokens_over"), message, over)
