"""The prompt of a request as a chain of hashes: one at each of a fixed row of places, over all that comes before it.

Two prompts of one tenant and model have the same hash at a place exactly when they begin alike up to it, which is what
an engine's prefix cache goes by too. Hashes are the same in every process. A prompt shorter than the first place has
none, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate, repeat
from typing import Final

BLOCK_CHARS: Final = 512  # about 128 tokens of English: eight of an engine's blocks

# Coarser further on: where a long prompt ends matters less, and hashing it all finely would cost more than it saves.
ENDS: Final = tuple(accumulate([*repeat(BLOCK_CHARS, 64), *repeat(4 * BLOCK_CHARS, 32), *repeat(16 * BLOCK_CHARS, 32)]))
"""The places, in characters from the start of the prompt: 128, up to 352 Ki."""

HASH_BYTES: Final = 8
BREAK: Final = "\0"  # between texts: no text of a prompt is likely to hold it

Chain = tuple[tuple[int, ...], tuple[int, ...]]
"""Hashes, and the tokens of the prompt up to the place of each."""

NO_CHAIN: Final[Chain] = ((), ())


def prefix_chain(texts: Sequence[str], tokens: int, tenant: str, model: str, salt: str = "") -> Chain:
    """The chain of a prompt that is made of `texts` and has about `tokens` tokens.

    `texts` may leave out the prompt's end, from where hashing makes no sense. Callers with another tenant, model or
    `salt` (the client's own `cache_salt`) never have a hash in common.
    """
    chars = len(texts) - 1
    for text in texts:
        chars += len(text)
    if chars < BLOCK_CHARS:
        return NO_CHAIN
    prompt = texts[0] if len(texts) == 1 else BREAK.join(_first(texts, ENDS[-1]))
    # Processors have instructions for this one: with them it takes half the time of others.
    hasher = sha256(BREAK.join((tenant, model, salt, "")).encode("utf-8", "surrogatepass"))
    hashes: list[int] = []
    ends: list[int] = []
    each = tokens / chars
    start = 0
    for end in ENDS:
        if end > len(prompt):
            break
        hasher.update(prompt[start:end].encode("utf-8", "surrogatepass"))
        hashes.append(int.from_bytes(hasher.digest()[:HASH_BYTES]))
        ends.append(int(end * each))
        start = end
    return tuple(hashes), tuple(ends)


def _first(texts: Sequence[str], chars: int) -> list[str]:
    """As many of the texts as hold the first `chars` characters."""
    found: list[str] = []
    for text in texts:
        found.append(text)
        chars -= len(text)
        if chars <= 0:
            break
    return found
