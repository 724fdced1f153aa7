"""Which worker holds which prompt prefix, as far as the requests sent to it tell.

An engine keeps the KV of prompts it has computed until it needs the room, least recently used first and of one prompt
the end before the beginning. This is a model of that: for each worker the prefixes of what was sent there, as hash
chains, in the order in which the engine would let go of them, within its KV capacity. Where engines report how much
they really found, each worker's claims are trusted as far as they came true.

Since the beginning of a chain is always used after its end, no worker ever holds a piece without all before it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

UNKNOWN_CAPACITY: Final = 100_000  # KV tokens assumed where nobody says: a small card's
LEVELS_EACH: Final = 8192  # hashes kept of one worker at most
LEVELS_IN_ALL: Final = 1 << 19  # of all workers: about 100 MB
SESSIONS: Final = 16_384  # remembered, the least recently used forgotten first
OTHER_PIECES: Final = 64  # what is not in chains is kept in pieces of this share of the capacity
PRIOR_TOKENS: Final = 32_768  # claims are trusted until about so many have not come true
MEMORY_TOKENS: Final = 524_288  # claims from beyond about so many tokens count half, a quarter …
AHEAD_TOKENS: Final = 131_072  # found at the start of prefills whose end, where they count as claimed, is to come
LENIENCY: Final = 1.25  # four of five claims that come true are as good as all: reports lag behind
LEAST_TRUST: Final = 0.12  # below, the cache is off or gone


class Holding:
    """What one worker holds, and how far to trust that it does."""

    __slots__ = (
        "bit",
        "capacity",
        "claimed",
        "claims",
        "found",
        "hits",
        "lru",
        "other",
        "tokens",
        "trust",
        "waiting",
        "worker",
    )

    def __init__(self, worker: str, bit: int, capacity: int) -> None:
        self.worker = worker
        self.bit = bit
        self.capacity = capacity
        # Hash -> tokens from the place before it to its own; the next to go first. Keys below 0: not in any chain.
        self.lru: OrderedDict[int, int] = OrderedDict()
        self.tokens = 0  # sum of its values
        self.other = -1  # key of the piece that takes what is in no chain
        self.trust = 1.0
        # Tokens claimed of requests that were answered since the last report, between the last two, and before,
        # fading. Only the last kind has been counted by the engine for certain.
        self.claims = 0.0
        self.waiting = 0.0
        self.claimed = 0.0
        self.found = 0.0  # tokens that the engine found in that time, fading as well
        self.hits: int | None = None  # its counter at the last report

    def add_other(self, tokens: int) -> None:
        """Tokens that take room in the cache and that no chain will ask for: a prompt's end, an answer."""
        piece = self.lru.get(self.other)
        if piece is None or piece * OTHER_PIECES > self.capacity:
            self.other -= 1
            piece = 0
        self.lru[self.other] = piece + tokens
        self.tokens += tokens


class PrefixIndex:
    """The prefixes of all workers. Workers are named by id; `forget` ends what is known of one."""

    __slots__ = ("_bits", "_free", "_holders", "_holdings", "_levels_each", "_sessions")

    def __init__(self) -> None:
        self._holdings: dict[str, Holding] = {}
        self._bits: list[Holding] = []  # by the place of their bit in masks
        self._free: list[int] = []  # places whose worker is forgotten: no mask has their bit
        self._holders: dict[int, int] = {}  # hash -> mask of the workers that hold it
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._levels_each = LEVELS_EACH

    def __len__(self) -> int:
        """Hashes held, one held by two workers counted twice."""
        return sum(len(holding.lru) for holding in self._holdings.values())

    def cached(self, hashes: tuple[int, ...], ends: tuple[int, ...], most: int) -> dict[str, int]:
        """Tokens of a prompt that each worker is expected to find, `most` at the most; workers without are left out.

        `ends`: tokens of the prompt up to the place of each hash, ascending.
        """
        found: dict[str, int] = {}
        holders = self._holders
        live = holders.get(hashes[0], 0) if hashes else 0
        past = 0  # places that have been looked at
        while live:
            past = self._as_far(hashes, past, live)
            further = holders.get(hashes[past], 0) & live if past < len(hashes) else 0
            self._claim(found, live & ~further, min(ends[past - 1], most))
            live = further
        return found

    def _as_far(self, hashes: tuple[int, ...], past: int, live: int) -> int:
        """How many places of a chain are held by all of `live`, which hold `past` of them and the next one.

        Whoever holds a place holds all before it, so that a few looks tell.
        """
        holders, most = self._holders, len(hashes)
        if holders.get(hashes[most - 1], 0) & live == live:
            return most
        past += 1
        while past + 1 < most:
            middle = (past + most) // 2
            if holders.get(hashes[middle - 1], 0) & live == live:
                past = middle
            else:
                most = middle
        return past

    def _claim(self, found: dict[str, int], mask: int, tokens: int) -> None:
        if mask.bit_count() == len(self._holdings):
            for holding in self._holdings.values():
                if holding.trust >= LEAST_TRUST:
                    found[holding.worker] = int(tokens * holding.trust)
            return
        bits = self._bits
        while mask:
            low = mask & -mask
            mask ^= low
            holding = bits[low.bit_length() - 1]
            if holding.trust >= LEAST_TRUST:
                found[holding.worker] = int(tokens * holding.trust)

    def sent(self, worker: str, capacity: int, hashes: tuple[int, ...], ends: tuple[int, ...], tokens: int) -> int:
        """A request was sent to a worker: it holds that prompt from now on, and will hold its answer.

        `capacity`: KV tokens of the worker, 0 where unknown; `tokens`: of prompt and answer, as far as expected.
        Returns the tokens that the worker should find, however little it is trusted; for `answered`.
        """
        if not ends and not self._holdings:
            return 0
        holding = self._holdings.get(worker)
        if holding is None:
            if not ends:
                return 0
            holding = self._join(worker)
        holding.capacity = capacity or UNKNOWN_CAPACITY
        claim = 0
        if ends:
            tokens -= ends[-1]
            claim = self._use(holding, hashes, ends)
        if tokens > 0:
            holding.add_other(tokens)
        self._trim(holding)
        return claim

    def _use(self, holding: Holding, hashes: tuple[int, ...], ends: tuple[int, ...]) -> int:
        lru, bit, holders = holding.lru, holding.bit, self._holders
        known = self._as_far(hashes, 0, bit) if hashes[0] in lru else 0
        # The beginning last: it is let go of last.
        touch = lru.move_to_end
        for at in range(len(hashes) - 1, known - 1, -1):
            one = hashes[at]
            if one in lru:  # behind one that is not held: two texts with the same hash
                touch(one)
                continue
            tokens = ends[at] - (ends[at - 1] if at else 0)
            lru[one] = tokens
            holding.tokens += tokens
            holders[one] = holders.get(one, 0) | bit
        try:
            for at in range(known - 1, -1, -1):
                touch(hashes[at])
        except KeyError:
            pass  # before one that is held: two texts with the same hash
        return ends[known - 1] if known else 0

    def _trim(self, holding: Holding) -> None:
        lru = holding.lru
        while holding.tokens > holding.capacity or len(lru) > self._levels_each:
            one, tokens = lru.popitem(last=False)
            holding.tokens -= tokens
            if one >= 0:
                self._release(one, holding.bit)

    def _release(self, one: int, bit: int) -> None:
        left = self._holders[one] & ~bit
        if left:
            self._holders[one] = left
        else:
            del self._holders[one]

    def _join(self, worker: str) -> Holding:
        bits = self._bits
        if self._free:
            place = self._free.pop()
            holding = bits[place] = Holding(worker, 1 << place, UNKNOWN_CAPACITY)
        else:
            holding = Holding(worker, 1 << len(bits), UNKNOWN_CAPACITY)
            bits.append(holding)
        self._holdings[worker] = holding
        each = min(LEVELS_EACH, LEVELS_IN_ALL // len(self._holdings))
        if each < self._levels_each:
            self._levels_each = each
            for other in self._holdings.values():
                self._trim(other)
        return holding

    def forget(self, worker: str) -> None:
        """Nothing is known of a worker any more: it is gone, or another engine runs in its place."""
        holding = self._holdings.pop(worker, None)
        if holding is None:
            return
        for one in holding.lru:
            if one >= 0:
                self._release(one, holding.bit)
        self._free.append(holding.bit.bit_length() - 1)
        self._levels_each = min(LEVELS_EACH, LEVELS_IN_ALL // max(len(self._holdings), 1))

    # -- correction ------------------------------------------------------------------------------------------------

    def answered(self, worker: str, claim: int) -> None:
        """A request of which `sent` claimed that many tokens has its first token: its engine has looked for them."""
        holding = self._holdings.get(worker)
        if holding is not None:
            holding.claims += claim

    def reported(self, worker: str, hits: int) -> None:
        """A worker's engine has found so many tokens in its prefix cache since it started.

        An engine whose cache is off finds none of what was claimed, and is soon believed to hold nothing.
        """
        holding = self._holdings.get(worker)
        if holding is None:
            return
        before, holding.hits = holding.hits, hits
        if before is None or hits < before:
            # What was claimed before counting began was counted by nobody.
            holding.claims = holding.waiting = holding.claimed = holding.found = 0.0
            return
        holding.claimed += holding.waiting
        holding.waiting, holding.claims = holding.claims, 0.0
        # Others' requests are found there too: much more than was claimed says nothing about later claims.
        most = holding.claimed + holding.waiting + AHEAD_TOKENS
        holding.found = min(holding.found + hits - before, most)
        if holding.claimed > MEMORY_TOKENS:
            holding.claimed /= 2
            holding.found /= 2
        holding.trust = min((holding.found * LENIENCY + PRIOR_TOKENS) / (holding.claimed + PRIOR_TOKENS), 1.0)

    # -- sessions --------------------------------------------------------------------------------------------------

    def stay(self, session: str, worker: str) -> None:
        """A session's latest request went to this worker."""
        self._sessions[session] = worker
        self._sessions.move_to_end(session)
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)

    def last(self, session: str) -> str:
        """The worker of a session's latest request; empty where none is remembered."""
        return self._sessions.get(session, "")
