"""A policy tried out beside the one in force: a canary decides for a share of the requests, a shadow for none.

A canary's requests are chosen by a stable hash of tenant and session, so that a conversation stays on one side; those
without a session are chosen one by one. Both sides are compared as they go. A shadow is asked about every request and
never obeyed; what it would have done otherwise is counted. One trial at a time, at every replica; it ends by itself
when another revision becomes current.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.policy_draft import ConflictError
from gateway.policy_store import Current
from gateway.trial_counts import Counts, Difference, counts_from
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
MAX_REPLICAS: Final = 256
KEEP_COUNTS_S: Final = 7 * 86400

_BEGIN = """
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
"""

_END = """
local held = redis.call('GET', KEYS[1])
if held and string.find(held, ARGV[1], 1, true) then redis.call('DEL', KEYS[1], KEYS[2]) end
return 1
"""

_SYNC = """
local held = redis.call('GET', KEYS[1]) or ''
if ARGV[2] ~= '' and string.find(held, ARGV[5], 1, true) then
  if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 or redis.call('HLEN', KEYS[2]) < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
    redis.call('EXPIRE', KEYS[2], ARGV[4])
  end
end
return held
"""


class Mode(StrEnum):
    """How a policy is tried."""

    CANARY = "canary"
    SHADOW = "shadow"


@dataclass(slots=True)
class Trial:
    """One policy being tried against the revision `base`. `since`: seconds since the epoch."""

    mode: Mode
    share: float
    current: Current
    base: Revision
    since: float
    id: str  # the same at every gateway
    counts: Counts = field(default_factory=Counts)

    @property
    def revision(self) -> Revision:
        """What is tried; its number is the one it will have when it is promoted."""
        return self.current.revision


class Trials:
    """The trial there is, if there is one; admission asks it about every request."""

    def __init__(
        self,
        link: RedisLink | None,
        fleet: str,
        replica: str,
        *,
        now: Callable[[], float],
        held: Callable[[], Revision],
        on_end: Callable[[Trial, str], None],
    ) -> None:
        self._link = link
        self._replica = replica
        self._key = f"headrace:{{{fleet}}}:policy:trial"
        self._counts_key = f"{self._key}:counts"
        self._now = now
        self._held = held
        self._on_end = on_end
        self._lock = asyncio.Lock()
        self._told = b""  # our counts, as they were published last
        self._withdrawn = ""  # a trial that ended here while Redis could not be told
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
        trial.counts.differ(_differences(classified, trial.current.classifier.classify(facts)))

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        trial = self.trial
        if trial is None or trial.mode is not Mode.CANARY or not record.class_name:
            return
        if record.revision == trial.revision.number:
            trial.counts.tried.observe(record)
        elif record.revision == trial.base.number:
            trial.counts.rest.observe(record)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self, mode: Mode, share: float, draft: Draft, base: Revision) -> Trial | None:
        """Try a document beside `base`, in place of any trial there is; None where Redis does not answer.

        Raises `ConflictError` when `base` is not what holds any more.
        """
        revision = next_revision(base, draft.policy, draft.text, draft.author, draft.note, self._now())
        current = await asyncio.to_thread(lambda: Current(revision, Classifier(revision.policy)))
        trial = Trial(mode, share, current, base, revision.created, f"{revision.chain[:16]}-{secrets.token_hex(4)}")
        async with self._lock:
            self._still_holds(base)
            if self._link is not None and not await self._publish(trial):
                return None
            try:
                self._still_holds(base)
            except ConflictError:
                await self._remove(trial.id)
                raise
            self._take(trial, "another trial was begun")
        return trial

    def _still_holds(self, base: Revision) -> None:
        if self._held().chain != base.chain:
            raise ConflictError(self._held())

    async def withdraw(self, why: str) -> Trial | None:
        """End the trial; the one that ended. It ends here whether Redis answers or not: `pending` says that the other
        gateways have not heard of it yet."""
        async with self._lock:
            ended = self.trial
            if ended is not None and not await self._remove(ended.id):
                self._withdrawn = ended.id
            self._take(None, why)
            return ended

    @property
    def pending(self) -> bool:
        """Whether the end of a trial still has to be told to the other gateways."""
        return bool(self._withdrawn)

    def adopted(self, revision: Revision) -> None:
        """A revision became current: a trial against another one compares nothing any more."""
        if self.trial is not None and self.trial.base.chain != revision.chain:
            promoted = self.trial.revision.digest == revision.digest
            self._take(None, "promoted" if promoted else "another revision became current")

    def _take(self, trial: Trial | None, why: str) -> None:
        ended, self.trial = self.trial, trial
        self._told = b""
        rules = trial.revision.policy.rules if trial is not None else ()
        self.headers = frozenset(name.lower().encode("ascii") for rule in rules for name in rule.when.header)
        if ended is not None:
            self._on_end(ended, why)

    # -- the other replicas ----------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Do as the other gateways do, and tell them what was counted here; for ever."""
        while self._link is not None:
            await asyncio.sleep(POLL_S)
            await self.sync()

    async def sync(self) -> None:
        """Ask Redis once."""
        async with self._lock:
            told = await self._exchange()
            if told is None:
                return
            try:
                await self._heed(told)
            except (ValueError, TypeError, KeyError):
                return  # of a newer version of this program, or somebody else's: nothing to try here

    async def _exchange(self) -> Mapping[str, Any] | None:
        """What is to be tried (empty: nothing), while telling what we counted; None where Redis does not say."""
        trial, link = self.trial, self._link
        counted = orjson.dumps({"id": trial.id, **trial.counts.told()}) if trial is not None else b""
        told = b"" if counted == self._told else counted
        keys = self._key, self._counts_key
        arguments = self._replica, told, MAX_REPLICAS, KEEP_COUNTS_S, trial.id if trial is not None else ""

        async def call(redis: Redis) -> Any:
            return await redis.eval(_SYNC, len(keys), *keys, *arguments)

        found = await link.run(call) if link is not None else None
        if found is None:
            return None
        self._told = counted
        try:
            wanted = orjson.loads(found) if found else {}
        except orjson.JSONDecodeError:
            return None
        return wanted if isinstance(wanted, dict) else None

    async def _heed(self, told: Mapping[str, Any]) -> None:
        if self._withdrawn and (told.get("id") != self._withdrawn or await self._remove(self._withdrawn)):
            self._withdrawn = ""
            return
        base = self._held()
        if not told or told["base"] != base.chain:
            if told and int(told["base_number"]) < base.number:
                await self._remove(str(told["id"]))  # what it was compared with is over
            if self.trial is not None:
                self._take(None, "no gateway tries it any more")
            return
        if told["id"] in {self._withdrawn, self.trial.id if self.trial is not None else None}:
            return
        trial = await asyncio.to_thread(_from_wire, told, base)
        if self._held().chain == base.chain:
            self._take(trial, "another trial was begun")

    async def _publish(self, trial: Trial) -> bool:
        revision = trial.revision
        told = orjson.dumps(
            {
                "id": trial.id,
                "mode": trial.mode,
                "share": trial.share,
                "base": trial.base.chain,
                "base_number": trial.base.number,
                "text": revision.text,
                "author": revision.author,
                "note": revision.note,
                "since": trial.since,
            }
        )
        link = self._link
        assert link is not None

        async def write(redis: Redis) -> Any:
            return await redis.eval(_BEGIN, 2, self._key, self._counts_key, told)

        return bool(await link.run(write))

    async def _remove(self, trial_id: str) -> bool:
        """Take a trial out of Redis, if it is still that one; False where Redis does not answer."""
        link = self._link
        if link is None:
            return True

        async def remove(redis: Redis) -> Any:
            return await redis.eval(_END, 2, self._key, self._counts_key, trial_id)

        return await link.run(remove) is not None

    # -- for people ------------------------------------------------------------------------------------------------

    async def _all_counts(self, trial: Trial) -> tuple[Counts, int]:
        """The trial's counts over all gateways, and of how many."""
        total, gateways = Counts(), 1
        total.add(trial.counts)
        link = self._link

        async def read(redis: Redis) -> Any:
            return await redis.hgetall(self._counts_key)

        found = await link.run(read) if link is not None else None
        for name, raw in (found or {}).items():
            if name in {self._replica, self._replica.encode()}:
                continue
            try:
                told = orjson.loads(raw)
                if told["id"] == trial.id:
                    total.add(counts_from(told))
                    gateways += 1
            except (ValueError, TypeError, KeyError):
                continue  # nothing in Redis is trusted
        return total, gateways

    async def view(self) -> dict[str, Any] | None:
        """The trial for JSON, counted over all gateways; None where there is none."""
        trial = self.trial
        if trial is None:
            return None
        counts, gateways = await self._all_counts(trial)
        revision = trial.revision
        found: dict[str, Any] = {
            "mode": str(trial.mode),
            "share": trial.share,
            "revision": {name: getattr(revision, name) for name in ("number", "digest", "author", "note", "created")},
            "base": trial.base.number,
            "since": trial.since,
            "age_s": round(max(0.0, self._now() - trial.since), 3),
            "gateways": gateways,
        }
        if trial.mode is Mode.CANARY:
            return {**found, "rest": counts.rest.view(), "trial": counts.tried.view()}
        differences = [
            {"what": what, "from": old, "to": new, "requests": count}
            for (what, old, new), count in counts.differences.most_common()
        ]
        return {**found, "seen": counts.seen, "different": counts.different, "differences": differences}


def _differences(was: Classified, would: Classified | Refusal) -> list[Difference]:
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
    since, share = float(told["since"]), float(told["share"])
    if not 0 < share <= 1:
        raise ValueError(f"no share of the requests: {share}")
    revision = next_revision(base, policy, told["text"], str(told["author"]), str(told["note"]), since)
    return Trial(Mode(told["mode"]), share, Current(revision, Classifier(policy)), base, since, str(told["id"]))
