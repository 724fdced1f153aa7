"""The simulated engine's language: a tokenizer of about four characters a token, and seeded gibberish. Pure.

Tokens are pieces of text: up to six letters with the space before them, up to three digits, a run of blanks, or one
other character. Splitting depends on nothing but the text, so a prefix of a text has (but for its last piece) a prefix
of its tokens, and generated text splits into exactly the tokens it was generated as.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import orjson

_PIECE: Final = re.compile(r"<\|[a-z_]+\|>| ?[A-Za-z\u00c0-\u024f\u0370-\u052f]{1,6}| ?[0-9]{1,3}|\s{1,8}|.", re.DOTALL)

# What the model says. Single tokens of the tokenizer above; a few leave ASCII, so that byte counts are not characters.
_SPOKEN: Final = (
    "water gate wheel river stone light paper cloud table green small early north bread voice music field quick "
    "under house after sound world every never right place again still learn plant cover food four state keep "
    "close seem next open walk story night might while along begin life those both mark often until mile "
    "carry took book ease room began idea fish once base hear horse cut sure watch color face wood main enough "
    "plain usual young ready above red list though feel talk bird soon body dog family direct pose leave song "
    "black short class wind happen ship area half rock order fire south piece told knew pass since top whole "
    "king space heard best hour better true during five step hold west ground reach fast verb sing listen six "
    "naïve café über déjà señor façade smörgå árbol μένω мир вода поле"
)
WORDS: Final = tuple(" " + word for word in _SPOKEN.split())
_WORDS_JSON: Final = tuple(orjson.dumps(word)[1:-1] for word in WORDS)
_WORD_IDS: Final = {word: 256 + index for index, word in enumerate(WORDS)}
FIRST_FREE_ID: Final = 256 + len(WORDS)
IMAGE_PIECE: Final = "<|image|>"
IMAGE_TOKENS: Final = 256


def pieces_of(text: str) -> list[str]:
    """The tokens of a text, as text."""
    return _PIECE.findall(text)


class Vocabulary:
    """Token ids: 0 … 255 single characters, then the generator's words, then pieces as they are first met.

    It grows to `limit` ids and then spells new pieces by characters; `decode(encode(text)) == text` while it has room
    and for all text of single-byte characters after that.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._ids: dict[str, int] = dict(_WORD_IDS)
        self._pieces: list[str] = list(WORDS)

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Ids of pieces."""
        ids: list[int] = []
        for piece in pieces:
            if len(piece) == 1 and ord(piece) < 256:
                ids.append(ord(piece))
                continue
            known = self._ids.get(piece)
            if known is None and len(self._pieces) < self._limit:
                known = self._ids[piece] = 256 + len(self._pieces)
                self._pieces.append(piece)
            if known is None:
                ids.extend(piece.encode("utf-8"))
            else:
                ids.append(known)
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Pieces of ids; an id never given out is some word all the same."""
        pieces = self._pieces
        return [
            chr(token)
            if 0 <= token < 256
            else pieces[token - 256]
            if 256 <= token < 256 + len(pieces)
            else WORDS[token % len(WORDS)]
            for token in ids
        ]


def prefix_hashes(pieces: Sequence[str], block_tokens: int, salt: str = "") -> list[int]:
    """One hash per whole block of `block_tokens` pieces, each covering everything before it and the salt."""
    chain = hash(salt)
    hashes: list[int] = []
    for end in range(block_tokens, len(pieces) + 1, block_tokens):
        chain = hash((chain, *pieces[end - block_tokens : end]))
        hashes.append(chain)
    return hashes


def fingerprint(pieces: Sequence[str]) -> int:
    """The same number for the same prompt, in every process."""
    return crc32("".join(pieces).encode("utf-8", "replace"))


class Babble:
    """An endless text, the same for the same seed; tokens are made as they are asked for."""

    __slots__ = ("_state", "words")

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2654435761 + 97) & 0x7FFFFFFF
        self.words: list[int] = []  # indexes into WORDS

    def _upto(self, count: int) -> list[int]:
        words, state = self.words, self._state
        for _ in range(count - len(words)):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            words.append((state >> 9) % len(WORDS))
        self._state = state
        return words

    def text(self, first: int, last: int) -> str:
        """Tokens `first` … `last - 1` as text."""
        return "".join([WORDS[word] for word in self._upto(last)[first:last]])

    def text_json(self, first: int, last: int) -> bytes:
        """The same, escaped for the inside of a JSON string."""
        return b"".join([_WORDS_JSON[word] for word in self._upto(last)[first:last]])

    def ids(self, first: int, last: int) -> list[int]:
        """Token ids of the same."""
        return [256 + word for word in self._upto(last)[first:last]]

    def find_stop(self, limit: int, strings: Sequence[str], ids: Iterable[int]) -> tuple[int, int, str | int] | None:
        """Where generation stops within `limit` tokens: (tokens made, characters kept, what stopped it), or None.

        A string stops it at the token that completes the string; the text is kept up to where the string starts.
        """
        text = self.text(0, limit)
        best: tuple[int, int, str | int] | None = None
        found = [(text.find(string), string) for string in strings if string]
        ends = [(start + len(string), start, string) for start, string in found if start >= 0]
        if ends:
            end, start, string = min(ends)
            length = made = 0
            while length < end:
                length += len(WORDS[self.words[made]])
                made += 1
            best = (made, start, string)
        wanted = set(ids)
        for index, token in enumerate(self.ids(0, limit if best is None else best[0]) if wanted else ()):
            if token in wanted:
                return (index + 1, len(self.text(0, index)), token)
        return best
