"""The policy of several gateways as a state machine: concurrent editors, rollbacks, restarts, a Redis that is down or
loses its memory. Invariants 19 and 20 of the fault matrix, and that no change is ever lost without being told."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gateway.policy_draft import ConflictError, Draft, GuardError, StoreDownError
from gateway.policy_shared import Shared, Swap
from gateway.policy_store import Current, PolicyStore
from policies.diff import to_yaml
from policies.document import parse_policy
from policies.guards import FleetFacts, WorkerFact
from policies.revisions import MAX_KEPT, History, Revision, digest, from_record, to_record

GATEWAYS = 3
TEXTS = (
    "{}\n",
    "default_class: batch\n",
    "default_class: interactive\n",
    "admission: {max_queued: 7}\n",
    "pools: {short-chat: {max_budget_tokens: 9}, long-context: {}}\n",
    "pools: {elsewhere: {}}\n",  # guard rails stand against it
)
FLEET = FleetFacts((WorkerFact("w", "short-chat", frozenset({"m"}), 8),))


@dataclass
class Redis:
    """What is in Redis, and whether it answers. `lives`: grows with every loss of memory."""

    up: bool = True
    record: Mapping[str, Any] | None = None
    history: list[Mapping[str, Any]] = field(default_factory=list)
    lives: int = 0

    def put(self, revision: Revision) -> None:
        self.record = orjson.loads(orjson.dumps(to_record(revision)))
        self.history.append(self.record)


class FakeShared:
    """One gateway's way there: what the scripts of `policy_shared.py` do, each in one step."""

    def __init__(self, redis: Redis, replica: str) -> None:
        self._redis = redis
        self.replica = replica

    async def swap(self, held: Revision, new: Revision) -> Swap:
        if not self._redis.up:
            return Swap.DOWN
        stored = self._redis.record
        if stored is not None and stored["chain"] != held.chain:
            return Swap.CONFLICT
        self._redis.put(new)
        return Swap.DONE

    async def offer(self, revision: Revision) -> bool | None:
        if not self._redis.up:
            return None
        stored = self._redis.record
        if stored is not None and stored["number"] >= revision.number:
            return False
        self._redis.put(revision)
        return True

    async def ask(self, used: Revision, rejected: str | None) -> Shared | None:
        if not self._redis.up:
            return None
        stored = self._redis.record
        if stored is None:
            return Shared("", b"", ())
        record = b"" if stored["chain"] == used.chain else orjson.dumps(stored)
        return Shared(stored["chain"], record, ())

    async def history(self) -> list[Mapping[str, Any]]:
        return list(self._redis.history) if self._redis.up else []

    async def leave(self) -> None:
        pass


class Disk:
    """A journal that survives its gateway."""

    path = "memory"

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def read(self) -> History:
        history = History()
        for record in self.records:
            history.add(record)
        return history

    def append(self, record: Mapping[str, Any], kept: History) -> None:
        self.records = [*self.records, orjson.loads(orjson.dumps(record))][-MAX_KEPT:]


class Policies(RuleBasedStateMachine):
    """Editors at three gateways."""

    seen = Bundle("seen")  # what editors have looked at: etags, some of them long stale

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.redis = Redis()
        self.disks = [Disk() for _ in range(GATEWAYS)]
        self.numbers = [0] * GATEWAYS
        self.accepted: list[tuple[int, Revision]] = []  # with Redis' life
        self.stores: list[PolicyStore] = []
        self.now = 0.0

    def teardown(self) -> None:
        self.loop.close()

    def make(self, place: int) -> PolicyStore:
        def adopted(current: Current) -> None:
            assert current.revision.number >= self.numbers[place], "invariant 19: numbers never go back"
            self.numbers[place] = current.revision.number

        shared: Any = FakeShared(self.redis, f"g{place}")
        journal: Any = self.disks[place]
        store = PolicyStore(
            None,
            adopted,
            lambda: self.now,
            clock=lambda: self.now,
            journal=journal,
            shared=shared,
            facts=lambda: FLEET,
        )
        self.loop.run_until_complete(store.start())
        return store

    @initialize(target=seen)
    def start(self) -> Any:
        self.stores = [self.make(place) for place in range(GATEWAYS)]
        return multiple(*(store.current().revision.etag for store in self.stores))

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(target=seen, place=st.integers(0, GATEWAYS - 1))
    def look(self, place: int) -> str:
        return self.stores[place].current().revision.etag

    @rule(place=st.integers(0, GATEWAYS - 1), text=st.sampled_from(TEXTS), expected=seen, force=st.booleans())
    def edit(self, place: int, text: str, expected: str, force: bool) -> None:
        self.change(place, Draft(parse_policy(text), text, "ann"), expected, force)

    @rule(place=st.integers(0, GATEWAYS - 1), text=st.sampled_from(TEXTS), force=st.booleans())
    def edit_whatever_holds(self, place: int, text: str, force: bool) -> None:
        self.change(place, Draft(parse_policy(text), text, "ann"), "*", force)

    @rule(place=st.integers(0, GATEWAYS - 1), back=st.integers(1, 5))
    def roll_back(self, place: int, back: int) -> None:
        store = self.stores[place]
        held = store.current().revision
        old = store.revision(held.number - back)
        if old is not None:
            draft = Draft(old.policy, old.text, "bob", "", "rollback", old.number)
            self.change(place, draft, held.etag, True)

    @rule(texts=st.lists(st.sampled_from(TEXTS), min_size=GATEWAYS, max_size=GATEWAYS))
    def all_at_once(self, texts: list[str]) -> None:
        """Editors at all gateways who have seen the same revision: at most one of them wins."""
        held = {store.current().revision.chain for store in self.stores}
        etag = self.stores[0].current().revision.etag
        before = len(self.accepted)
        drafts = [Draft(parse_policy(text), text, f"e{place}") for place, text in enumerate(texts)]

        async def race() -> list[Any]:
            work = (store.apply(draft, etag, force=True) for store, draft in zip(self.stores, drafts, strict=True))
            return await asyncio.gather(*work, return_exceptions=True)

        found = self.loop.run_until_complete(race())
        for one in found:
            if isinstance(one, BaseException):
                assert isinstance(one, ConflictError | StoreDownError), one
            elif one.changed:
                self.note(one.before, one.revision)
        if len(held) == 1:
            assert len(self.accepted) - before <= 1

    @rule(place=st.integers(0, GATEWAYS - 1), later=st.floats(0.1, 5.0))
    def sync(self, place: int, later: float) -> None:
        self.now += later
        self.loop.run_until_complete(self.stores[place].sync())

    @rule(place=st.integers(0, GATEWAYS - 1))
    def restart(self, place: int) -> None:
        held = self.stores[place].current().revision
        self.numbers[place] = 0
        self.stores[place] = self.make(place)
        again = self.stores[place].current().revision
        assert again.number >= held.number
        assert again.chain == held.chain or self.redis.up, "without Redis what it had on disk holds again"

    @rule()
    def redis_goes(self) -> None:
        self.redis.up = False

    @rule()
    def redis_comes(self) -> None:
        self.redis.up = True

    @rule()
    def redis_forgets(self) -> None:
        self.redis.record, self.redis.history = None, []
        self.redis.lives += 1

    @rule()
    def everybody_agrees(self) -> None:
        """With Redis there, two looks of each are enough, whatever happened before."""
        self.redis.up = True
        for _ in range(2):
            for place in range(GATEWAYS):
                self.sync(place, 0.5)
        assert len({store.current().revision.chain for store in self.stores}) == 1
        assert all(store.lag_s() == 0 for store in self.stores)

    # -- what must hold --------------------------------------------------------------------------------------------

    def change(self, place: int, draft: Draft, expected: str, force: bool) -> None:
        store = self.stores[place]
        held = store.current().revision
        try:
            applied = self.loop.run_until_complete(store.apply(draft, expected, force=force))
        except ConflictError:
            assert expected != "*" or store.current().revision != held or self.redis.record is not None
            return
        except GuardError:
            assert not force
            assert store.current().revision.digest != digest(draft.policy), "a refused change changes nothing"
            return
        except StoreDownError:
            assert not self.redis.up
            assert store.current().revision == held
            return
        assert expected in {"*", applied.before.etag}
        assert applied.changed is (digest(draft.policy) != applied.before.digest)
        assert store.current().revision.digest == digest(draft.policy)
        if applied.changed:
            assert self.redis.up
            self.note(applied.before, applied.revision)

    def note(self, held: Revision, new: Revision) -> None:
        """A change was accepted: it follows from what its author had seen, and from nothing else."""
        assert (new.number, new.previous) == (held.number + 1, held.chain)
        lives = self.redis.lives
        same_life = [revision for life, revision in self.accepted if life == lives]
        assert new.number not in {revision.number for revision in same_life}, "two changes of one number: one is lost"
        self.accepted.append((lives, new))

    @invariant()
    def histories_are_whole(self) -> None:
        for store in self.stores:
            held = store.current().revision
            newest = store.history.find(held.number)
            assert newest is not None
            assert newest.record["chain"] == held.chain
            assert len(store.history) <= MAX_KEPT

    @invariant()
    def what_is_written_reads_back_as_the_same(self) -> None:
        """Invariant 20: a document, its text, its record and the document spelt out mean the same."""
        for store in self.stores:
            held = store.current().revision
            assert digest(parse_policy(held.text)) == held.digest == digest(parse_policy(to_yaml(held.policy)))
            assert from_record(orjson.loads(orjson.dumps(to_record(held)))) == held


Policies.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestPolicies = Policies.TestCase
