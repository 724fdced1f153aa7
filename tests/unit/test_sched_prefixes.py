"""The prefix index against a naive model of caches, its bounds, and what it makes of engines' hit counters."""

from __future__ import annotations

from itertools import accumulate
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling import prefixes
from gateway.scheduling.prefixes import LEVELS_EACH, PRIOR_TOKENS, SESSIONS, UNKNOWN_CAPACITY, PrefixIndex

BLOCK = 100
LOTS = 1_000_000


def chain(*pieces: str) -> tuple[int, ...]:
    """A hash for each beginning of a prompt that consists of these pieces."""
    return tuple(crc32(begin.encode()) for begin in accumulate(pieces))


def ends(hashes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(BLOCK * place for place in range(1, len(hashes) + 1))


class Index(PrefixIndex):
    """With prompts written as texts, one block a letter."""

    def send(self, worker: str, prompt: str, capacity: int = LOTS, other: int = 0) -> None:
        hashes = chain(*prompt)
        self.answered(worker, self.sent(worker, capacity, hashes, ends(hashes), BLOCK * len(prompt) + other))

    def find(self, prompt: str, most: int = LOTS) -> dict[str, int]:
        hashes = chain(*prompt)
        return self.cached(hashes, ends(hashes), most)


def test_the_longest_beginning_that_each_worker_got() -> None:
    index = Index()
    index.send("a", "system one")
    index.send("b", "system two")
    index.send("c", "other")
    assert index.find("system one and more") == {"a": 1000, "b": 700}
    assert index.find("system") == {"a": 600, "b": 600}
    assert index.find("system one", most=999) == {"a": 999, "b": 700}
    assert index.find("x") == index.find("") == {}


def test_nothing_is_kept_for_a_worker_that_gets_only_short_prompts() -> None:
    index = Index()
    index.sent("a", LOTS, (), (), 50)
    assert len(index) == 0
    assert index.find("abc") == {}


def test_the_least_recently_used_goes_first_and_of_a_prompt_its_end() -> None:
    index = Index()
    index.send("a", "old", capacity=600)
    index.send("a", "new", capacity=600)
    index.send("a", "old", capacity=600)
    index.send("a", "ab", capacity=600)
    assert index.find("new") == {"a": 100}
    assert index.find("old") == {"a": 300}
    index.send("a", "cd", capacity=600)
    assert index.find("new") == {}
    assert index.find("old") == {"a": 200}


def test_ends_and_answers_take_room_as_well() -> None:
    index = Index()
    index.send("a", "abcd", capacity=1000, other=300)
    index.sent("a", 1000, (), (), 200)
    assert index.find("abcd") == {"a": 400}
    index.sent("a", 1000, (), (), 200)
    assert index.find("abcd") == {"a": 300}
    index.sent("a", 1000, (), (), 5000)
    assert index.find("abcd") == {}
    assert len(index) == 0
    index.sent("a", 1000, (), (), 1)
    index.sent("a", 1000, (), (), 1)
    assert len(index) == 1, "small ones share a piece"


def test_a_worker_of_unknown_size_is_taken_for_a_small_one() -> None:
    index = Index()
    index.send("a", "abc", capacity=0, other=UNKNOWN_CAPACITY - 300)
    assert index.find("abc") == {"a": 300}
    index.send("a", "d", capacity=0)
    assert index.find("abc") == {"a": 200}


def test_a_forgotten_worker_holds_nothing_and_its_successor_neither() -> None:
    index = Index()
    index.send("a", "abc", other=10)
    index.send("b", "ab")
    index.forget("a")
    index.forget("a")
    assert index.find("abc") == {"b": 200}
    index.send("c", "x")
    assert index.find("abc") == {"b": 200}
    assert index.find("x") == {"c": 100}
    index.send("a", "a")
    assert index.find("abc") == {"b": 200, "a": 100}


@pytest.mark.parametrize("other", [(1, 9, 3, 4), (8, 9, 3, 4), (1, 2, 9, 4), (1, 9, 3, 7), (8, 2, 3, 7)])
def test_two_texts_with_the_same_hash_do_no_harm(other: tuple[int, ...]) -> None:
    """Who looks for such texts makes the choice for his own requests worse, and nothing else."""
    index = PrefixIndex()
    for hashes in ((1, 2, 3, 4), other, (1, 2, 3, 4), other):
        index.sent("a", LOTS, hashes, ends(hashes), 4 * BLOCK)
        assert index.cached(hashes, ends(hashes), LOTS).get("a", 0) <= 4 * BLOCK
    (holding,) = index._holdings.values()
    assert holding.tokens == sum(holding.lru.values())
    index.forget("a")
    assert index.cached(other, ends(other), LOTS) == {}
    assert not index._holders


def test_hashes_of_one_worker_are_bounded() -> None:
    index = Index()
    hashes = tuple(range(LEVELS_EACH + 10))
    index.sent("a", 10**9, hashes, tuple(range(1, len(hashes) + 1)), len(hashes))
    assert len(index) == LEVELS_EACH
    assert index.cached(hashes, tuple(range(1, len(hashes) + 1)), LOTS) == {"a": LEVELS_EACH}


def test_hashes_of_all_workers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "LEVELS_IN_ALL", 12)
    index = Index()
    for worker in "abc":
        index.send(worker, "0123456789abcdef")
        assert len(index) <= 12
    assert index.find("0123456789abcdef") == {"a": 400, "b": 400, "c": 400}
    index.forget("a")
    index.forget("b")
    index.send("c", "0123456789abcdef")
    assert index.find("0123456789abcdef") == {"c": 1200}
    index.forget("c")
    assert len(index) == 0


def test_sessions_are_bounded_and_the_oldest_goes() -> None:
    index = Index()
    assert index.last("s") == ""
    index.stay("s", "a")
    for number in range(SESSIONS - 1):
        index.stay(str(number), "b")
    index.stay("s", "c")
    index.stay("one more", "b")
    assert index.last("s") == "c"
    assert index.last("0") == ""
    assert index.last("1") == "b"


class TestTrust:
    PROMPT = "p" * 40  # 4000 tokens

    def engine(self, share: float, requests: int = 200, extra: int = 0) -> Index:
        """After an engine that finds `share` of what is claimed of it, and `extra` a report, has reported often."""
        index = Index()
        hits = 0
        for _ in range(requests):
            index.send("a", self.PROMPT)
            index.reported("a", hits)
            hits += int(share * 4000) + extra
        return index

    def test_an_engine_that_finds_it_is_believed(self) -> None:
        assert self.engine(1.0).find(self.PROMPT) == {"a": 4000}
        assert self.engine(0.85).find(self.PROMPT) == {"a": 4000}

    def test_one_that_finds_less_is_believed_less(self) -> None:
        found = self.engine(0.4).find(self.PROMPT)["a"]
        assert 0.45 * 4000 < found < 0.6 * 4000

    def test_one_whose_cache_is_off_is_not_asked_for_it_soon(self) -> None:
        few = self.engine(0.0, requests=20).find(self.PROMPT)["a"]
        assert few < 0.5 * 4000
        index = self.engine(0.0)
        assert index.find(self.PROMPT) == {}
        index.send("b", self.PROMPT[:3])
        index.send("c", "other")
        assert index.find(self.PROMPT) == {"b": 300}, "others are judged by themselves"

    def test_it_comes_back_when_the_cache_does(self) -> None:
        index = self.engine(0.0)
        hits = 0
        for _ in range(400):
            index.send("a", self.PROMPT)
            index.reported("a", hits)
            hits += 4000
        assert index.find(self.PROMPT)["a"] > 0.9 * 4000

    def test_what_others_find_there_is_no_credit(self) -> None:
        index = self.engine(0.0, extra=1000)
        assert index.find(self.PROMPT)["a"] < 0.5 * 4000
        index = self.engine(1.0, extra=100_000)
        hits = 200 * 104_000
        for _ in range(400):
            index.send("a", self.PROMPT)
            index.reported("a", hits)
        assert index.find(self.PROMPT)["a"] < 0.6 * 4000

    def test_claims_count_when_the_engine_has_had_time_to_see_them(self) -> None:
        index = Index()
        index.reported("a", 1)  # holds nothing: nothing to correct
        index.answered("a", 1000)
        index.send("a", self.PROMPT)
        index.reported("a", 1000)
        index.send("a", self.PROMPT)
        index.reported("a", 1000)
        assert index.find(self.PROMPT) == {"a": 4000}
        index.reported("a", 1000)
        assert index.find(self.PROMPT) == {"a": int(4000 * PRIOR_TOKENS / (PRIOR_TOKENS + 4000))}

    def test_a_counter_that_begins_anew_begins_the_count_anew(self) -> None:
        index = Index()
        index.send("a", self.PROMPT)
        index.reported("a", 1000)
        index.send("a", self.PROMPT)
        index.reported("a", 0)
        for _ in range(3):
            index.reported("a", 0)
        assert index.find(self.PROMPT) == {"a": 4000}


class Naive:
    """Caches as lists of prompts, searched in full."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}

    def find(self, prompt: str) -> dict[str, int]:
        found = {}
        for worker, prompts in self.sent.items():
            alike = max((common(prompt, each) for each in prompts), default=0)
            if alike:
                found[worker] = BLOCK * alike
        return found


def common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


WORKERS = st.sampled_from("abcd")
PROMPTS = st.text("xyz", max_size=6)
STEPS = st.lists(
    st.one_of(st.tuples(st.just("send"), WORKERS, PROMPTS), st.tuples(st.just("forget"), WORKERS, st.just(""))),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, PROMPTS, st.integers(min_value=100, max_value=1500))
def test_as_a_naive_model_and_never_more_than_it_in_little_room(
    steps: list[tuple[str, str, str]], asked: str, capacity: int
) -> None:
    roomy, narrow, naive = Index(), Index(), Naive()
    for what, worker, prompt in steps:
        if what == "forget":
            roomy.forget(worker)
            narrow.forget(worker)
            naive.sent.pop(worker, None)
        else:
            roomy.send(worker, prompt)
            narrow.send(worker, prompt, capacity, other=30)
            naive.sent.setdefault(worker, []).append(prompt)
            # What was sent last is there, as far as there is room: nothing that is older is kept instead.
            assert narrow.find(prompt).get(worker, 0) >= min(BLOCK * len(prompt), capacity // BLOCK * BLOCK - 2 * BLOCK)
        truth = naive.find(asked)
        assert roomy.find(asked) == truth
        claimed = narrow.find(asked)
        assert all(tokens <= truth.get(worker, 0) for worker, tokens in claimed.items())
        for one, holding in narrow._holdings.items():
            assert holding.tokens == sum(holding.lru.values()) <= capacity, one
    for worker in "abcd":
        roomy.forget(worker)
        narrow.forget(worker)
    assert not roomy._holders
    assert not narrow._holders
