"""Which changes can hold for some requests and not for others: what a canary may change.

A request carries where it may go, its class, its deadlines and its timeouts with it. What the scheduler, a worker or a
tenant holds for all requests at once cannot be two things at a time.
"""

from __future__ import annotations

from typing import Final

from policies.diff import Change, diff
from policies.document import Policy

SECTIONS: Final = frozenset({"models", "rules", "default_class", "routing"})
"""All of these is read once for each request."""

FIELDS: Final = frozenset(
    {
        *(("pools", field) for field in ("max_budget_tokens", "min_budget_tokens", "may_borrow", "endpoints")),
        ("tenants", "max_class"),
        ("classes", "queue_timeout_s"),
        ("admission", "default_output_tokens"),
        *(("timeouts", field) for field in ("ttft_s", "token_gap_s", "total_s", "head_hold_s")),
        *(("limits", field) for field in ("json_depth", "max_sequences", "refused_fields")),
    }
)


def inseparable(old: Policy, new: Policy) -> list[str]:
    """Paths of what `new` changes that would hold for every request at once; none: a canary may try it."""
    return [change.path for change in diff(old, new) if not _separable(change)]


def _separable(change: Change) -> bool:
    if change.section in SECTIONS:
        return True
    if change.section == "pools" and change.kind != "changed":
        return True  # a pool that is new, gone or elsewhere in the order: only the way there changes
    return (change.section, change.path.rpartition(".")[2]) in FIELDS
