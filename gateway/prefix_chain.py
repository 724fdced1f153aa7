"""The prompt of a request as a chain of hashes: one at each of a fixed row of places, over all that comes before it.

Two prompts of one tenant and model have the same hash at a place exactly when they begin alike up to it, which is what
an engine's prefix cache goes by too. Hashes are the same in every process. A prompt shorter than the first place has
none, and costs nothing.

Each hash is the seed of the next, and the first one's seed is a SHA-256 of whose prompt it is. The hash itself, XXH3,
keeps nobody from looking for two texts with the same one. Nothing but the choice of a worker goes by it: who finds such
texts has his own requests sent where their beginning is not cached.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate, repeat
from typing import Final

from xxhash import xxh3_64_intdigest

from policies.tokens import LongTexts

BLOCK_CHARS: Final = 512  # about 128 tokens of English: eight of an engine's blocks

# Coarser further on, where it matters less: a block is an eighth to a sixteenth of what comes before it, so where two
# prompts part is known to a thirtieth or so. More places are dearer than the hashing itself: each is a number in the
# index of prefixes, too.
ENDS: Final = tuple(
    accumulate(
        [
            *repeat(BLOCK_CHARS, 16),
            *(size for double in (2, 4, 8, 16) for size in repeat(double * BLOCK_CHARS, 8)),
            *repeat(32 * BLOCK_CHARS, 14),
        ]
    )
)
"""The places, in characters from the start of the prompt: 62, up to 352 Ki."""

COPIED_CHARS: Final = 4 * BLOCK_CHARS
"""A longer block is not copied out of the body: there a view of it takes less time to make."""

SEED_BYTES: Final = 8
BREAK: Final = "\0"  # between texts: no text of a prompt is likely to hold it

Chain = tuple[tuple[int, ...], tuple[int, ...]]
"""Hashes, and the tokens of the prompt up to the place of each."""

NO_CHAIN: Final[Chain] = ((), ())


def prefix_chain(
    texts: list[str], tokens: int, tenant: str, model: str, salt: str = "", long: LongTexts | None = None
) -> Chain:
    """The chain of a prompt that is made of `texts` and has about `tokens` tokens.

    `texts` may leave out the prompt's end, from where hashing makes no sense. Callers with another tenant, model or
    `salt` (the client's own `cache_salt`) never have a hash in common. For `long` texts marks stand in `texts`.
    """
    chars = len(texts) - 1
    for text in texts:
        chars += _size(text, long)
    if chars < BLOCK_CHARS:
        return NO_CHAIN
    whose = BREAK.join((tenant, model, salt, "")).encode("utf-8", "surrogatepass")
    seed = int.from_bytes(sha256(whose).digest()[:SEED_BYTES])
    hashes: list[int] = []
    ends: list[int] = []
    each = tokens / chars
    number, begin = 0, 0  # the text that holds the start of a block, and its own place in the prompt
    text = texts[0]
    whole = None if long is None else long.get(text)
    stop = len(text) if whole is None else whole.size
    start = 0
    for end in ENDS:
        if end > chars:
            break
        if end > stop:
            parts = [_part(text, start - begin, end - begin, long)]
            while end > stop:
                number += 1
                begin, text = stop + 1, texts[number]
                stop = begin + _size(text, long)
                parts.append(_part(text, 0, end - begin, long))
            whole = None if long is None else long.get(text)
            seed = xxh3_64_intdigest(BREAK.join(parts).encode("utf-8", "surrogatepass"), seed)
        elif whole is None:
            seed = xxh3_64_intdigest(text[start - begin : end - begin].encode("utf-8", "surrogatepass"), seed)
        elif end - start > COPIED_CHARS:
            seed = xxh3_64_intdigest(whole.view(start - begin, end - begin), seed)
        else:
            seed = xxh3_64_intdigest(whole.piece(start - begin, end - begin), seed)
        hashes.append(seed)
        ends.append(int(end * each))
        start = end
    return tuple(hashes), tuple(ends)


def _size(text: str, long: LongTexts | None) -> int:
    whole = None if long is None else long.get(text)
    return len(text) if whole is None else whole.size


def _part(text: str, start: int, end: int, long: LongTexts | None) -> str:
    whole = None if long is None else long.get(text)
    return text[start:end] if whole is None else whole.piece(start, end).decode()
