"""Prompts of a wanted length: text estimated at the recorded tokens, alike where recorded prompts were. Pure.

All text is cut from one book of short words, so that a prompt of 100,000 tokens is made in a millisecond. Where a
passage begins is drawn from its name: the same name gives the same text, and another name another one from its first
words on, so that no engine finds in its cache what the recorded prompts had not in common.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from random import Random
from typing import Final
from zlib import crc32

from loadtest.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from policies.tokens import TEMPLATE_TOKENS_BASE, TEMPLATE_TOKENS_PER_MESSAGE, estimate_text

# Of three and four letters: one token each in usual vocabularies, and about one in the gateway's estimate.
_PLAIN: Final = (
    " "
    "road rain rail ruin run sand sea seal seed send set ship shoe sit soil son song soon soul sun "
    "tea tell ten tent tide tie tin toe told tone tool toss tour tree true turn unit use user "
    "air aid also alone and area arch army art ash ask ate ear ease east eat edit else end era "
    "hand hat head hear hen her hill hole hour ice idea inch into iron its lead lean lid line lion list "
    "lot load loan lost nail near neat nest net nine noise none nor note nut oar oil one open our out "
    "dad dash data date day deal debt den desk die dish do done door dot dust can car card case cat cell cent "
    "clue coal coat code coin cold cost cot court cut red read rest rich ride ring rise "
)
WORDS: Final = tuple(f" {word}" for word in _PLAIN.split())
BOOK_WORDS: Final = 1 << 15
NAME_WORDS: Final = 4  # that a passage begins with: 400 million beginnings
TEMPLATE_TOKENS: Final = TEMPLATE_TOKENS_BASE + TEMPLATE_TOKENS_PER_MESSAGE


class Book:
    """A long text, and how many tokens lie before each of its words."""

    def __init__(self, rng: Random) -> None:
        # Every word is estimated alike wherever it stands: a space before it costs nothing.
        self._costs = {word: estimate_text(word * 1000) / 1000 for word in WORDS}
        words = rng.choices(WORDS, k=BOOK_WORDS)
        self._text = "".join(words)
        self._begins = [0, *accumulate(map(len, words))]
        self._tokens = [0.0, *accumulate(self._costs[word] for word in words)]

    def prompt(self, request: TraceRequest, index: int, salt: str) -> str:
        """The text of a request: as long as recorded, and alike for requests with the same blocks or session.

        `salt`: prompts of another run have nothing in common with those of this one. `index`: the request's own.
        """
        tokens = max(1, request.prompt_tokens - TEMPLATE_TOKENS)
        parts: list[str] = []
        for block in request.hashes:
            if tokens <= 0:
                break
            # A little over the block's end goes off the next one: what is left is what is still to be made.
            part, made = self.passage(f"{salt}/block/{block}", min(tokens, MOONCAKE_BLOCK_TOKENS))
            parts.append(part)
            tokens -= round(made)
        if tokens > 0:
            whose = f"session/{request.session}" if request.session else f"request/{index}"
            parts.append(self.passage(f"{salt}/{whose}", tokens)[0])
        return "".join(parts)

    def passage(self, name: str, tokens: int) -> tuple[str, float]:
        """Text of about so many tokens, and how many it is estimated at. A longer one of the same name begins alike."""
        number = crc32(name.encode("utf-8", "replace"))
        title: list[str] = []
        made, left = 0.0, number
        for _ in range(NAME_WORDS):
            left, place = divmod(left, len(WORDS))
            if made + self._costs[WORDS[place]] > max(tokens, 1.5):
                return "".join(title), made
            title.append(WORDS[place])
            made += self._costs[WORDS[place]]
        parts = title
        at = number % BOOK_WORDS
        while made < tokens:
            end = min(BOOK_WORDS, max(at, bisect_left(self._tokens, self._tokens[at] + tokens - made)))
            if end == at:
                break
            parts.append(self._text[self._begins[at] : self._begins[end]])
            made += self._tokens[end] - self._tokens[at]
            at = end % BOOK_WORDS
        return "".join(parts), made
