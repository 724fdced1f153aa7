"""How many tokens a text has, estimated in microseconds, and corrected by what engines really counted.

No tokenizer is at hand on the gateway's event loop, and none would fit all models. So an estimate looks at what
makes tokens in any byte-pair vocabulary: starts of words, changes of case, digits in groups, punctuation, letters
beyond a word's usual length, and characters of other scripts. It must not be far below the truth for any script
(a prompt in Chinese would then go to workers it does not fit), nor far above for usual text.

The weights lie between two vocabularies, cl100k and o200k, measured on prose of 30 languages, code, JSON and random
text; `Calibration` learns the rest for each model.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping

IMAGE_TOKENS = 1024
"""Tokens of one image, whatever its size: what common vision encoders make of one at their usual resolution."""

TEMPLATE_TOKENS_BASE = 4
"""Tokens a chat template puts around a conversation: its start and the opening of the answer."""

TEMPLATE_TOKENS_PER_MESSAGE = 4
"""Tokens a chat template puts around each message: start, role, line break, end."""

_CHUNK = 1 << 16  # characters at a time: fits the processor's cache and bounds memory

# Longer texts are estimated from windows spread evenly over them: what such a text says about its tokens it says in
# any of its parts. Measured against the whole on random mixtures of prose, code and data: 1.5 % off, at most 6 %.
_WINDOWS = 128
_WINDOW = 256

# One bit a byte for each kind of ASCII character; letters of accented Latin count as letters too.
_LETTER, _UPPER, _DIGIT, _PUNCT, _BREAK, _SPACE = (1 << bit for bit in range(6))
_CONTINUATION = bytes(range(0x80, 0xC0))  # of UTF-8: deleted, so that every character is one byte, its first
_ACCENTED = range(0xC3, 0xCA)  # first bytes of accented Latin letters


def _kind(byte: int) -> int:
    char = chr(byte)
    if byte < 0x80:
        if char.isalpha():
            return _LETTER | (_UPPER if char.isupper() else 0)
        if char.isdigit():
            return _DIGIT
        if char == " ":
            return _SPACE
        return _PUNCT if char.isprintable() else _BREAK
    return _LETTER if byte in _ACCENTED else 0


_KINDS = bytes(map(_kind, range(256)))


def _mask(bit: int) -> int:
    return int.from_bytes(bytes([bit]) * _CHUNK, "little")


_LETTERS, _UPPERS, _DIGITS, _PUNCTS, _BREAKS, _SPACES = (_mask(1 << bit) for bit in range(6))

# Tokens of one character by the first byte of its UTF-8 form, in eighths: measured means of its scripts.
_EIGHTHS = {
    range(0xC2, 0xC3): 6,  # signs of Latin-1
    range(0xC3, 0xCB): 4,  # accented Latin, beside what its word makes
    range(0xCB, 0xCE): 4,  # modifiers, combining marks
    range(0xCE, 0xD0): 5,  # Greek
    range(0xD0, 0xD4): 3,  # Cyrillic
    range(0xD4, 0xD6): 10,  # Armenian
    range(0xD6, 0xD8): 6,  # Hebrew
    range(0xD8, 0xDC): 4,  # Arabic
    range(0xDC, 0xE0): 8,  # Syriac, Thaana, N'Ko
    range(0xE0, 0xE1): 6,  # Indic scripts, Thai, Lao
    range(0xE1, 0xE2): 9,  # Georgian, Ethiopic, Khmer, Vietnamese vowels
    range(0xE2, 0xE3): 8,  # typographic signs, arrows, mathematics, boxes
    range(0xE3, 0xE4): 7,  # Kana, CJK punctuation
    range(0xE4, 0xEA): 8,  # Han
    range(0xEA, 0xEE): 6,  # Hangul
    range(0xEE, 0xF0): 8,  # private use, full width
    range(0xF0, 0x100): 16,  # emoji and rare signs
}


def _eighths(byte: int) -> int:
    return next((eighths for span, eighths in _EIGHTHS.items() if byte in span), 0)


# As many bits as eighths, so that counting bits adds them up; a byte holds eight, so there are two of them.
_WEIGHTS = bytes((1 << min(8, _eighths(byte))) - 1 for byte in range(256))
_WEIGHTS_ABOVE = bytes((1 << max(0, _eighths(byte) - 8)) - 1 for byte in range(256))


def estimate_text(text: str) -> int:
    """Tokens of `text` in a usual vocabulary, at least 1 unless it is empty. A few nanoseconds a character, and the
    same for all texts above 64 Ki characters, which are looked at in 128 places."""
    size = len(text)
    if size <= _CHUNK:
        return math.ceil(_estimate(text))
    stride = (size - _WINDOW) / (_WINDOWS - 1)
    starts = [int(place * stride) for place in range(_WINDOWS)]
    sample = "".join([text[start : start + _WINDOW] for start in starts])
    return math.ceil(_estimate(sample) * size / len(sample))


def estimate_schema(schema: object) -> int:
    """Tokens of a JSON value as chat templates write it out (tools, response formats); 0 for what is not JSON."""
    try:
        written = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return 0
    return estimate_text(written)


def _estimate(text: str) -> float:
    """The weighted sum over what is in at most _CHUNK characters.

    Characters become bytes with one bit a kind, the bytes become one large integer, and looking at a character's
    neighbour becomes a shift: all of it runs at memory speed. The factors are fitted to the two vocabularies.
    """
    first = text.encode("utf-8", "replace")
    # Whitespace in long runs is nearly free.
    tokens = len(text) / 64
    if not text.isascii():
        first = first.translate(None, _CONTINUATION)
        for weights in (_WEIGHTS, _WEIGHTS_ABOVE):
            tokens += int.from_bytes(first.translate(weights), "little").bit_count() / 8
    kinds = int.from_bytes(first.translate(_KINDS), "little")
    same = kinds & (kinds << 8)  # the character before is of this kind too
    starts = kinds ^ same
    fifth = same & _LETTERS
    fifth &= fifth << 8
    fifth &= fifth << 16
    long = fifth & (fifth << 24)
    endless = long & (long << 64)
    endless &= endless << 128
    inner_capitals = starts & _UPPERS & (kinds & _LETTERS) << 9  # a letter's bit, moved to the next one's upper bit
    digits = kinds & _DIGITS
    breaks = kinds & _BREAKS
    return (
        tokens
        + 1.1 * (starts & _LETTERS).bit_count()  # words
        + 0.59 * long.bit_count()  # letters of a word after its seventh
        - 0.30 * endless.bit_count()  # after its 31st it is no word: from 0.13 (one letter again and again) to 0.5
        + 0.85 * inner_capitals.bit_count()
        + 0.05 * (same & _UPPERS).bit_count()  # words all in capitals
        + 0.38 * digits.bit_count()
        + 0.82 * (starts & digits).bit_count()
        + 0.69 * (kinds & _PUNCTS).bit_count()
        + 0.57 * (starts & breaks).bit_count()
        + 0.06 * breaks.bit_count()
        + 0.57 * (same & _SPACES & ~(same << 8)).bit_count()  # indentation: runs of two spaces and more
    )


RATIO_MIN, RATIO_MAX = 0.5, 4.0
"""Bounds of a correction. Beyond them something other than the vocabulary is wrong: a count for more is taken for the
most, which errs on the side of room; one for less teaches nothing, or a stand-in that counts ten tokens for whatever it
is sent would make every prompt small."""

_PRIOR_TOKENS = 256  # an uncorrected estimate counts like this many observed tokens
_MEMORY_TOKENS = 20_000  # what was seen longer ago than about this fades
_ONE_TOKENS = 2_000  # no single request weighs more
_RESTORED_TOKENS = 5_000


class Calibration:
    """Learns, for each model, by how much real prompt tokens differ from the estimate.

    The factor is a mean of observed ratios, weighted by tokens, that slowly forgets. Models that were not observed
    for longest are dropped when there are too many.
    """

    def __init__(self, max_models: int = 1024) -> None:
        self._max_models = max_models
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()  # model: (ratio, tokens behind it)

    def __repr__(self) -> str:
        return f"<Calibration of {len(self._known)} models>"

    def scale(self, model: str) -> float:
        """What to multiply an estimate for `model` by; 1 where nothing was observed."""
        known = self._known.get(model)
        return 1.0 if known is None else known[0]

    def observe(self, model: str, estimated: int, actual: int) -> None:
        """An engine counted `actual` prompt tokens where `estimated` (before scaling) were expected."""
        if estimated <= 0 or actual < estimated * RATIO_MIN:
            return
        ratio, weight = self._known.get(model, (1.0, float(_PRIOR_TOKENS)))
        one = min(estimated, _ONE_TOKENS)
        ratio += (_clamp(actual / estimated) - ratio) * one / (weight + one)
        self._keep(model, ratio, min(weight + one, _MEMORY_TOKENS))

    def snapshot(self) -> dict[str, float]:
        """Factor of each model, those observed last at the end."""
        return {model: ratio for model, (ratio, _) in self._known.items()}

    def restore(self, factors: Mapping[str, object]) -> int:
        """Take over an earlier snapshot; how many of its entries made sense. What is known already stays."""
        taken = 0
        for model, ratio in factors.items():
            if isinstance(ratio, bool) or not isinstance(ratio, int | float):
                continue
            if math.isfinite(ratio) and ratio > 0 and model not in self._known:
                self._keep(model, _clamp(ratio), _RESTORED_TOKENS)
                taken += 1
        return taken

    def _keep(self, model: str, ratio: float, weight: float) -> None:
        self._known[model] = (ratio, weight)
        self._known.move_to_end(model)
        if len(self._known) > self._max_models:
            self._known.popitem(last=False)


def _clamp(ratio: float) -> float:
    return min(max(ratio, RATIO_MIN), RATIO_MAX)
