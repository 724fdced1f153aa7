"""Numbered, immutable versions of the policy, each chained to the one before, and the bounded history of them.

A change is compare-and-set on the current revision. A rollback is a new number with old content. What is kept of a
revision is its text: the document is read from it again when it is wanted, so that a history of a thousand is small.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from policies.document import Policy, parse_policy

DIGEST_CHARS = 16
MAX_KEPT: Final = 1000
MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of all kept texts together, compressed: with documents of the largest size fewer than `MAX_KEPT` are kept."""

MAX_NOTE_CHARS: Final = 1000
MAX_AUTHOR_CHARS: Final = 128
SOURCES: Final = ("default", "file", "api", "rollback", "promote")


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
    source: str = "file"  # one of SOURCES
    seed: str = ""  # digest of the policy file's document when it was last taken over; empty: never
    reverts: int | None = None  # the revision whose content came back
    previous: str = ""  # `chain` of the revision before
    chain: str = ""  # hash over everything above but `policy`, so that an edited history shows

    @property
    def etag(self) -> str:
        """What a writer has seen: the number and what it means."""
        return f"{self.number}-{self.digest}"


def digest(policy: Policy) -> str:
    """16 hex digits that tell documents apart by what they mean: comments, spelt-out defaults and the order of keys
    don't count, but the order of pools does, since the first that fits is home."""
    content = policy.model_dump(mode="json", by_alias=True)
    content["pools"] = list(content["pools"].items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARS]


def first_revision(policy: Policy, text: str, now: float, author: str = "file", note: str = "") -> Revision:
    """The version a gateway starts with when it finds none. `now`: seconds since the epoch."""
    meaning = digest(policy)
    source = "default" if author == "default" else "file"
    seed = meaning if source == "file" else ""
    return _sealed(Revision(1, policy, meaning, text, author, note, now, source, seed))


def next_revision(
    previous: Revision,
    policy: Policy,
    text: str,
    author: str,
    note: str,
    now: float,
    *,
    source: str = "api",
    seed: str | None = None,
    reverts: int | None = None,
) -> Revision:
    """The version after `previous`, whatever it holds: a rollback is a new version with old content.

    `seed`: of the policy file, where it is known better than by `previous`. Author and note are cut to their limits.
    """
    return _sealed(
        Revision(
            previous.number + 1,
            policy,
            digest(policy),
            text,
            author[:MAX_AUTHOR_CHARS],
            note[:MAX_NOTE_CHARS],
            now,
            source,
            previous.seed if seed is None else seed,
            reverts,
            previous.chain,
        )
    )


def matches(current: Revision, expected: str) -> bool:
    """Whether a writer has seen `current`: `expected` is its etag, its number, or `*` for whatever is current."""
    return expected in {"*", current.etag, str(current.number)}


# === as a record, for disk and Redis ===

_RECORDED: Final = ("number", "digest", "text", "author", "note", "created", "source", "seed", "reverts", "previous")


def to_record(revision: Revision) -> dict[str, Any]:
    """The revision as plain values; the document is in its text."""
    return {**{name: getattr(revision, name) for name in _RECORDED}, "chain": revision.chain}


def from_record(record: Mapping[str, Any]) -> Revision:
    """The revision of a record. Raises ValueError for one that was changed or is no record, and `PolicyError`, which
    is one, for a text that this version cannot read."""
    _check_record(record)
    fields = {name: record[name] for name in _RECORDED}
    return Revision(policy=parse_policy(record["text"]), chain=record["chain"], **fields)


def _check_record(record: Mapping[str, Any]) -> None:
    texts = ("digest", "text", "author", "note", "source", "seed", "previous", "chain")
    sound = (
        all(type(record.get(name)) is str for name in texts)
        and type(record.get("number")) is int
        and record["number"] >= 1
        and type(record.get("created")) in (int, float)
        and type(record.get("reverts")) in (int, type(None))
        and record["source"] in SOURCES
    )
    if not sound:
        raise ValueError("not the record of a revision")
    if record["chain"] != _chain(record):
        raise ValueError(f"revision {record['number']} does not have the content that was written")


def _chain(record: Mapping[str, Any]) -> str:
    content = [record[name] for name in _RECORDED]
    content[_RECORDED.index("created")] = float(record["created"])
    return hashlib.sha256(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


def _sealed(revision: Revision) -> Revision:
    return replace(revision, chain=_chain({name: getattr(revision, name) for name in _RECORDED}))


# === the history ===


@dataclass(frozen=True, slots=True)
class Kept:
    """A revision in the history: all of it but the document, which its text gives back."""

    record: Mapping[str, Any]  # without the text
    packed: bytes  # the text, compressed

    @property
    def number(self) -> int:
        """The revision's number."""
        number: int = self.record["number"]
        return number

    @property
    def text(self) -> str:
        """The document as it was given."""
        return zlib.decompress(self.packed).decode()

    def whole(self) -> dict[str, Any]:
        """The record with its text, as `from_record` takes it."""
        return {**self.record, "text": self.text}


class History:
    """The last revisions, oldest first, bounded in number and in bytes; the oldest are forgotten first."""

    def __init__(self, max_kept: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._kept: deque[Kept] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)

    def __reversed__(self) -> Iterator[Kept]:
        return reversed(self._kept)

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep a revision's record (`to_record`). Raises ValueError for one that was changed since it was made.

        A number that is kept already is replaced, and what came after it is forgotten: another replica's revision of
        that number is the one that holds.
        """
        _check_record(record)
        while self._kept and self._kept[-1].number >= record["number"]:
            self.bytes -= len(self._kept.pop().packed)
        packed = zlib.compress(record["text"].encode(), 6)
        self._kept.append(Kept({name: value for name, value in record.items() if name != "text"}, packed))
        self.bytes += len(packed)
        while len(self._kept) > 1 and (len(self._kept) > self._max_kept or self.bytes > self._max_bytes):
            self.bytes -= len(self._kept.popleft().packed)

    def find(self, number: int) -> Kept | None:
        """The revision of that number, None where it is not kept (any more)."""
        for kept in reversed(self._kept):
            if kept.number == number:
                return kept
            if kept.number < number:
                break
        return None

    def broken_at(self) -> int | None:
        """The first revision that does not follow from the one kept before it; None where the chain is whole. Where
        numbers are missing, as after a long absence, there is nothing that could be compared: see `missing`."""
        before: Kept | None = None
        for kept in self._kept:
            next_one = before is not None and kept.number == before.number + 1
            if before is not None and next_one and kept.record["previous"] != before.record["chain"]:
                return kept.number
            before = kept
        return None

    @property
    def missing(self) -> int:
        """How many revisions between the oldest and the newest one are not kept."""
        return self._kept[-1].number - self._kept[0].number + 1 - len(self._kept) if self._kept else 0
