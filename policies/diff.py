"""What a new policy changes, for whom: every value that differs, and where requests would go instead.

Two documents that mean the same have no difference, however they are written. `policies/phrases.py` has the words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import yaml

from policies.classify import Classifier
from policies.document import Policy
from policies.endpoints import GENERATING, TEXT_ONLY, Endpoint
from policies.phrases import effect_of
from policies.problems import Path, show_path
from policies.routing import ENDPOINTS, Way, breakpoints, kinds, ways

MAX_CHANGES: Final = 2000
MAX_ASKED: Final = 20_000
"""Questions to the classifiers; a policy of thousands of models is compared by its first ones."""

MAX_TEXT_LINES: Final = 20_000
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
ANY_MODEL: Final = "(any other model)"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `before` and `after` are the document's values, None where there is none."""

    path: str
    section: str
    subject: str  # the pool, tenant, model, class or setting it is about
    kind: str  # added, removed, changed, reordered
    before: Any
    after: Any
    effect: str  # one line for people


def diff(old: Policy, new: Policy) -> tuple[Change, ...]:
    """Everything that differs, in the document's order, then what that does to requests' ways (section `routing`)."""
    before, after = _dump(old), _dump(new)
    found = [change for section in after for change in _section(section, before[section], after[section])]
    if found:
        found += _routing(old, new)
    return tuple(found[:MAX_CHANGES])


def lines(changes: tuple[Change, ...]) -> list[str]:
    """The changes as people read them."""
    return [change.effect for change in changes]


def text_diff(old: Policy, new: Policy, old_name: str = "now", new_name: str = "new") -> str:
    """A unified diff of the two documents, every default spelt out. Empty where they mean the same."""
    before, after = (to_yaml(policy).splitlines()[:MAX_TEXT_LINES] for policy in (old, new))
    # Lines are matched with the entry that they stand in: the same few lines of thousands of tenants, each like all
    # others, would take difflib seconds, and would be shown as moved from one to the other.
    groups = difflib.SequenceMatcher(None, _placed(before), _placed(after), autojunk=False).get_grouped_opcodes(3)
    told: list[str] = []
    for group in groups:
        first, last = group[0], group[-1]
        told.append(f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@")
        for tag, a, b, c, d in group:
            if tag == "equal":
                told += [f" {line}" for line in before[a:b]]
            else:
                told += [f"-{line}" for line in before[a:b]]
                told += [f"+{line}" for line in after[c:d]]
    return "".join(f"{line}\n" for line in ([f"--- {old_name}", f"+++ {new_name}", *told] if told else ()))


def _span(start: int, end: int) -> str:
    """A range of lines as a unified diff has it."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _placed(lines: list[str]) -> list[tuple[str, str, str]]:
    """Each line with the section and the entry that it stands in, as `to_yaml` indents them."""
    found, section, entry = [], "", ""
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if indent == 0 and not line.startswith("-"):
            section, entry = line, ""
        elif indent == 2 and not line.startswith("  -") and section in _NAMED:
            entry = line
        found.append((section, entry, line))
    return found


_NAMED: Final = frozenset({"tenants:", "models:", "pools:"})


def to_yaml(policy: Policy) -> str:
    """The whole document as YAML that can be edited and given back."""
    text: str = yaml.dump(_dump(policy), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _dump(policy: Policy) -> dict[str, Any]:
    dumped: dict[str, Any] = policy.model_dump(mode="json", by_alias=True)
    return dumped


def _section(section: str, old: Any, new: Any) -> Iterator[Change]:
    if section == "classes":
        named = [{one["name"]: one for one in classes} for classes in (old, new)]
        yield from _entries(section, *named, ordered=True)
    elif section in {"pools", "tenants", "models"}:
        yield from _entries(section, old, new, ordered=section == "pools")
    elif section == "rules":
        yield from _rules(old, new)
    elif isinstance(new, Mapping):
        yield from (_change((section, key), old[key], new[key]) for key in new if old[key] != new[key])
    elif old != new:
        yield _change((section,), old, new)


def _entries(section: str, old: Mapping[str, Any], new: Mapping[str, Any], *, ordered: bool) -> Iterator[Change]:
    for name in old:
        if name not in new:
            yield _change((section, name), old[name], None)
    for name in new:
        if name not in old:
            yield _change((section, name), None, new[name])
        else:
            yield from (
                _change((section, name, key), old[name][key], new[name][key])
                for key in new[name]
                if old[name][key] != new[name][key]
            )
    if ordered:
        stayed = [name for name in old if name in new], [name for name in new if name in old]
        if stayed[0] != stayed[1]:
            yield replace(_change((section,), *stayed), kind="reordered", subject="order")


def _rules(old: list[Any], new: list[Any]) -> Iterator[Change]:
    """Rules have no names: the same rule at another place has moved, and the order decides."""
    written = [repr(one) for one in old], [repr(one) for one in new]
    for tag, a, b, c, d in difflib.SequenceMatcher(None, *written, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for place in range(a, b):
            yield _change(("rules", place), old[place], None)
        for place in range(c, d):
            yield _change(("rules", place), None, new[place])


def _change(path: Path, before: Any, after: Any) -> Change:
    kind = (
        "added" if before is None and len(path) == 2 else "removed" if after is None and len(path) == 2 else "changed"
    )
    if len(path) == 2 and path[0] not in {"classes", "pools", "tenants", "models", "rules"}:
        kind = "changed"  # a number that was null is a change of the setting, not a new one
    subject = str(path[1] if len(path) > 1 else path[0])
    return Change(show_path(path), str(path[0]), subject, kind, before, after, effect_of(path, kind, before, after))


# === ways of requests ===


@dataclass(frozen=True, slots=True)
class _Moved:
    """Requests that go elsewhere, before they are put together with their like."""

    model: str
    caller: str
    low: int
    high: int | None
    old: str
    new: str


def _routing(old: Policy, new: Policy) -> Iterator[Change]:
    """Which requests go elsewhere: by model, endpoint, caller and token budget, like ones put together."""
    together: dict[_Moved, list[Endpoint]] = {}
    classifiers = Classifier(old), Classifier(new)
    budgets = breakpoints(old, new)
    callers = kinds((*old.rules, *new.rules))
    models = [*dict.fromkeys((*new.models, *old.models)), ANY_MODEL]
    cost = 2 * len(ENDPOINTS) * len(budgets)
    left = MAX_ASKED
    for model in models:
        for tenant, headers, stream in callers:
            left -= cost
            if left < 0:
                break
            caller = _caller(tenant, headers, stream)
            for endpoint in ENDPOINTS:
                before, after = (ways(each, budgets, model, endpoint, tenant, headers, stream) for each in classifiers)
                for moved in _merged(model, caller, before, after):
                    together.setdefault(moved, []).append(endpoint)
    for moved, endpoints in together.items():
        everybody = {one for other, found in together.items() if _covers(other, moved) for one in found}
        own = [endpoint for endpoint in endpoints if endpoint not in everybody]
        if own:
            yield _moved_change(moved, own)


def _covers(other: _Moved, moved: _Moved) -> bool:
    """Whether what everybody meets (`other`) says it of one caller (`moved`) already."""
    high = inf if moved.high is None else moved.high
    return (
        bool(moved.caller)
        and not other.caller
        and (other.model, other.old, other.new) == (moved.model, moved.old, moved.new)
        and other.low <= moved.low
        and (other.high is None or other.high >= high)
    )


def _caller(tenant: str, headers: tuple[tuple[str, str], ...], stream: bool) -> str:
    parts = [] if tenant == "default" else [f"tenant {tenant}"]
    parts += [f"{name}: {value}" for name, value in headers]
    if not stream:
        parts.append("not streamed")
    return ", ".join(parts)


_SETS: Final = {
    frozenset(ENDPOINTS): "every endpoint",
    GENERATING | (TEXT_ONLY & frozenset(ENDPOINTS)): "all that generates text",
    frozenset(ENDPOINTS) - GENERATING - TEXT_ONLY: "all that does not generate text",
}


def _merged(model: str, caller: str, before: list[Way], after: list[Way]) -> list[_Moved]:
    """The ranges that differ, neighbours that differ in the same way as one."""
    found: list[_Moved] = []
    for old, new in zip(before, after, strict=True):
        one, other = _where(old, new)
        if one == other:
            continue
        last = found[-1] if found else None
        if last is not None and (last.old, last.new) == (one, other) and last.high == old.low - 1:
            found[-1] = replace(last, high=old.high)
        else:
            found.append(_Moved(model, caller, old.low, old.high, one, other))
    return found


def _where(old: Way, new: Way) -> tuple[str, str]:
    """What differs of two ways, in words; equal where requests notice no difference."""
    parts: tuple[list[str], list[str]] = ([], [])

    def tell(one: str, other: str) -> None:
        if one != other:
            parts[0].append(one)
            parts[1].append(other)

    tell(_pools(old), _pools(new))
    tell(f"class {old.class_name}", f"class {new.class_name}")
    tell(f"as {old.served_model}", f"as {new.served_model}")
    return ", ".join(parts[0]), ", ".join(parts[1])


def _pools(way: Way) -> str:
    borrowed = f" (may borrow {', '.join(way.pools[1:])})" if len(way.pools) > 1 else ""
    return f"pool {way.pool}{borrowed}"


def _moved_change(moved: _Moved, endpoints: list[Endpoint]) -> Change:
    named = _SETS.get(frozenset(endpoints)) or ", ".join(endpoints)
    if moved.high is None:
        budgets = f"token budgets from {moved.low} up" if moved.low else "all token budgets"
    else:
        budgets = f"token budgets {moved.low} to {moved.high}"
    who = f" of {moved.caller}" if moved.caller else ""
    model = "any other model" if moved.model == ANY_MODEL else f"model {moved.model}"
    effect = f"requests{who} for {model}, {budgets} ({named}): {moved.new} instead of {moved.old}"
    before = {"budget_from": moved.low, "budget_to": moved.high, "endpoints": [str(one) for one in endpoints]}
    return Change(
        f"routing.{moved.model}",
        "routing",
        moved.model,
        "changed",
        {**before, "goes": moved.old},
        {**before, "goes": moved.new},
        effect,
    )
