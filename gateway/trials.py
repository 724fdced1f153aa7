"""A policy tried out beside the one in force: a canary decides for a share of the requests, a shadow for none.

A canary's requests are chosen by a stable hash of tenant and session, so that a conversation stays on one side; those
without a session are chosen one by one. Both sides are compared as they go. A shadow is asked about every request and
never obeyed; what it would have done otherwise is counted. One trial at a time, at every replica; it ends by itself
when another revision becomes current.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.policy_store import Current
from gateway.records import Terminal
from policies.canaries import place_of
from policies.classify import Classified, Classifier, Refusal, RequestFacts
from policies.document import parse_policy
from policies.revisions import Revision, next_revision

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gateway.policy_draft import Draft
    from gateway.records import RequestRecord
    from gateway.redis_link import RedisLink

POLL_S: Final = 1.0
SAMPLES: Final = 1000
MAX_DIFFERENCES: Final = 200
REJECTED: Final = frozenset({Terminal.REJECTED, Terminal.EVICTED})
FAILED: Final = frozenset({Terminal.UPSTREAM_ERROR, Terminal.TIMEOUT, Terminal.INTERNAL})


class Mode(StrEnum):
    """How a policy is tried."""

    CANARY = "canary"
    SHADOW = "shadow"


@dataclass(slots=True)
class Arm:
    """One side of a canary. Percentiles come from a bounded random choice of the values."""

    requests: int = 0
    ok: int = 0
    failed: int = 0
    rejected: int = 0
    output_tokens: int = 0
    e2e_s: float = 0.0
    ttft_s: float = 0.0
    ttft_count: int = 0
    samples: list[float] = field(default_factory=list)

    def add(self, record: RequestRecord, rng: Random) -> None:
        """One request of this side ended."""
        self.requests += 1
        self.ok += record.outcome is Terminal.OK
        self.failed += record.outcome in FAILED
        self.rejected += record.outcome in REJECTED
        self.output_tokens += record.output_tokens or 0
        if record.outcome is Terminal.OK:
            self.e2e_s += record.duration_s
        if record.ttft_s is None:
            return
        self.ttft_s += record.ttft_s
        self.ttft_count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append(record.ttft_s)
        elif (place := rng.randrange(self.ttft_count)) < SAMPLES:
            self.samples[place] = record.ttft_s

    def view(self) -> dict[str, Any]:
        """For JSON."""
        ordered = sorted(self.samples)
        return {
            "requests": self.requests,
            "ok": self.ok,
            "failed": self.failed,
            "rejected": self.rejected,
            "output_tokens": self.output_tokens,
            "e2e_mean_s": self.e2e_s / self.ok if self.ok else None,
            "ttft_mean_s": self.ttft_s / self.ttft_count if self.ttft_count else None,
            "ttft_p50_s": _quantile(ordered, 0.5),
            "ttft_p95_s": _quantile(ordered, 0.95),
        }


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


@dataclass(slots=True)
class Trial:
    """One policy being tried against the revision `base`. `since`: seconds since the epoch."""

    mode: Mode
    share: float
    current: Current
    base: Revision
    since: float
    rest: Arm = field(default_factory=Arm)
    tried: Arm = field(default_factory=Arm)
    seen: int = 0
    different: int = 0
    differences: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def revision(self) -> Revision:
        """What is tried; its number is the one it will have when it is promoted."""
        return self.current.revision

    @property
    def id(self) -> str:
        """The same at every replica."""
        return f"{self.mode}-{self.share}-{self.revision.digest}-{self.base.chain}-{self.since}"


class Trials:
    """The trial there is, if there is one; admission asks it about every request."""

    def __init__(
        self,
        link: RedisLink | None,
        fleet: str,
        *,
        now: Callable[[], float],
        rng: Random,
        on_end: Callable[[Trial, str], None],
    ) -> None:
        self._link = link
        self._key = f"headrace:{{{fleet}}}:policy:trial"
        self._now = now
        self._rng = rng
        self._on_end = on_end
        self._lock = asyncio.Lock()
        self.trial: Trial | None = None
        self.headers: frozenset[bytes] = frozenset()
        """Header fields that the tried policy's rules look at."""

    # -- what admission calls --------------------------------------------------------------------------------------

    def choose(self, tenant: str, session: str, request_id: str) -> Current | None:
        """The canary, if it decides about this request."""
        trial = self.trial
        if trial is None or trial.mode is not Mode.CANARY:
            return None
        key = f"{tenant}\0{session}" if session else request_id
        return trial.current if place_of(trial.revision.digest, key) < trial.share else None

    def decided(self, facts: RequestFacts, classified: Classified) -> None:
        """The policy in force has decided so; a shadow says what it would have."""
        trial = self.trial
        if trial is None or trial.mode is not Mode.SHADOW:
            return
        trial.seen += 1
        differences = list(_differences(classified, trial.current.classifier.classify(facts)))
        trial.different += bool(differences)
        for difference in differences:
            if difference in trial.differences or len(trial.differences) < MAX_DIFFERENCES:
                trial.differences[difference] += 1

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        trial = self.trial
        if trial is None or trial.mode is not Mode.CANARY or not record.class_name:
            return
        if record.revision == trial.revision.number:
            trial.tried.add(record, self._rng)
        elif record.revision == trial.base.number:
            trial.rest.add(record, self._rng)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self, mode: Mode, share: float, draft: Draft, base: Revision) -> Trial | None:
        """Try a document beside `base`, in place of any trial there is; None where Redis does not answer."""
        revision = next_revision(base, draft.policy, draft.text, draft.author, draft.note, self._now())
        current = await asyncio.to_thread(lambda: Current(revision, Classifier(revision.policy)))
        trial = Trial(mode, share, current, base, revision.created)
        async with self._lock:
            if self._link is not None and not await self._publish(trial):
                return None
            self._take(trial, "another trial was begun")
        return trial

    async def withdraw(self, why: str) -> Trial | None:
        """End the trial; the one that ended."""
        async with self._lock:
            ended = self.trial
            if ended is not None and self._link is not None:

                async def remove(redis: Redis) -> Any:
                    return await redis.delete(self._key)

                await self._link.run(remove)
            self._take(None, why)
            return ended

    def adopted(self, revision: Revision) -> None:
        """A revision became current: a trial against another one compares nothing any more."""
        if self.trial is not None and self.trial.base.chain != revision.chain:
            promoted = self.trial.revision.digest == revision.digest
            self._take(None, "promoted" if promoted else "another revision became current")

    def _take(self, trial: Trial | None, why: str) -> None:
        ended, self.trial = self.trial, trial
        rules = trial.revision.policy.rules if trial is not None else ()
        self.headers = frozenset(name.lower().encode("ascii") for rule in rules for name in rule.when.header)
        if ended is not None:
            self._on_end(ended, why)

    # -- the other replicas ----------------------------------------------------------------------------------------

    async def follow(self, base: Callable[[], Revision]) -> None:
        """Do as the other replicas do; for ever. `base`: the current revision."""
        while self._link is not None:
            await asyncio.sleep(POLL_S)
            async with self._lock:
                await self._sync(base())

    async def _sync(self, base: Revision) -> None:
        assert self._link is not None

        async def read(redis: Redis) -> Any:
            return [await redis.get(self._key)]

        found = await self._link.run(read)
        if found is None:
            return
        try:
            told = orjson.loads(found[0]) if found[0] else None
            if told is None or told["base"] != base.chain:
                self._take(None, "withdrawn at another replica") if self.trial is not None else None
                return
            if self.trial is not None and self.trial.id == told["id"]:
                return
            trial = await asyncio.to_thread(_from_wire, told, base)
        except (ValueError, TypeError, KeyError):
            return  # of a newer version of this program, or somebody else's: nothing to try here
        self._take(trial, "another trial was begun")

    async def _publish(self, trial: Trial) -> bool:
        revision = trial.revision
        told = orjson.dumps(
            {
                "id": trial.id,
                "mode": trial.mode,
                "share": trial.share,
                "base": trial.base.chain,
                "text": revision.text,
                "author": revision.author,
                "note": revision.note,
                "since": trial.since,
            }
        )
        link = self._link
        assert link is not None

        async def write(redis: Redis) -> Any:
            return bool(await redis.set(self._key, told))

        return bool(await link.run(write))

    def view(self) -> dict[str, Any] | None:
        """The trial for JSON; None where there is none."""
        trial = self.trial
        if trial is None:
            return None
        revision = trial.revision
        found: dict[str, Any] = {
            "mode": str(trial.mode),
            "share": trial.share,
            "revision": {name: getattr(revision, name) for name in ("number", "digest", "author", "note", "created")},
            "base": trial.base.number,
            "since": trial.since,
            "age_s": round(max(0.0, self._now() - trial.since), 3),
        }
        if trial.mode is Mode.CANARY:
            return {**found, "rest": trial.rest.view(), "trial": trial.tried.view()}
        differences = [
            {"what": what, "from": old, "to": new, "requests": count}
            for (what, old, new), count in trial.differences.most_common()
        ]
        return {**found, "seen": trial.seen, "different": trial.different, "differences": differences}


def _differences(was: Classified, would: Classified | Refusal) -> list[tuple[str, str, str]]:
    """What a shadow would have decided otherwise."""
    if isinstance(would, Refusal):
        return [("refused", "no", would.code)]
    pairs = (
        ("pool", was.pool, would.pool),
        ("may borrow", ", ".join(was.pools[1:]), ", ".join(would.pools[1:])),
        ("class", was.class_name, would.class_name),
        ("model", was.served_model, would.served_model),
        ("queue timeout", f"{was.queue_timeout_s:g} s", f"{would.queue_timeout_s:g} s"),
        ("deadline", _span(was.deadline_s), _span(would.deadline_s)),
    )
    return [(what, old, new) for what, old, new in pairs if old != new]


def _span(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:g} s"


def _from_wire(told: Mapping[str, Any], base: Revision) -> Trial:
    policy = parse_policy(told["text"])
    since = float(told["since"])
    revision = next_revision(base, policy, told["text"], str(told["author"]), str(told["note"]), since)
    share = float(told["share"])
    return Trial(Mode(told["mode"]), share, Current(revision, Classifier(policy)), base, since)
