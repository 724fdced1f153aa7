"""Numbered, immutable versions of the policy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from policies.document import Policy

DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Revision:
    """One version: the document, the text it was read from, and who applied it."""

    number: int  # from 1, never reused
    policy: Policy
    digest: str  # equal for documents that mean the same
    text: str
    author: str
    note: str
    created: float  # seconds since the epoch


def digest(policy: Policy) -> str:
    """16 hex digits that tell documents apart by what they mean: comments, spelt-out defaults and the order of keys
    don't count, but the order of pools does, since the first that fits is home."""
    content = policy.model_dump(mode="json", by_alias=True)
    content["pools"] = list(content["pools"].items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARS]


def first_revision(policy: Policy, text: str, now: float, author: str = "file", note: str = "") -> Revision:
    """The version a gateway starts with when it finds none. `now`: seconds since the epoch."""
    return Revision(1, policy, digest(policy), text, author, note, now)


def next_revision(previous: Revision, policy: Policy, text: str, author: str, note: str, now: float) -> Revision:
    """The version after `previous`, whatever it holds: a rollback is a new version with old content."""
    return Revision(previous.number + 1, policy, digest(policy), text, author, note, now)
