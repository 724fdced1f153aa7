"""How many tokens a text has, estimated in microseconds, and corrected by what engines really counted.

No tokenizer is at hand on the gateway's event loop, and none would fit all models. So an estimate looks at what
makes tokens in any byte-pair vocabulary: starts of words, their letters, changes of case, digits, punctuation, and
characters of other scripts. It must not be far below the truth for any script
(a prompt in Chinese would then go to workers it does not fit), nor far above for usual text.

The weights lie between two vocabularies, cl100k and o200k, measured on prose of 30 languages, code, JSON and random
text; `Calibration` learns the rest for each model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policies.joint_bits import joint_bits

IMAGE_TOKENS: Final = 1024
"""Tokens of one image, whatever its size: what common vision encoders make of one at their usual resolution."""

TEMPLATE_TOKENS_BASE: Final = 4
"""Tokens a chat template puts around a conversation: its start and the opening of the answer."""

TEMPLATE_TOKENS_PER_MESSAGE: Final = 4
"""Tokens a chat template puts around each message: start, role, line break, end."""

# Longer texts are estimated from windows spread evenly over them: what such a text says about its tokens it says in
# any of its parts. Measured against the whole on random mixtures of prose, code and data: 1.3 % off, at most 7.5 %.
_WHOLE: Final = 1 << 13
_WINDOWS: Final = 128
_WINDOW: Final = 64

# What a character costs: a share of a token for each bit that its code or that of the character before has. So the
# second letter of a word costs less than its first, and a capital within a word more than at its start. Number and
# places of the bits are fitted, and so is which characters have them in common.
_BIT: Final = 0.109
_CODES = {
    "acdehilnorstu.,": 0b0010_0100,
    "bfgjkmpqvwxyz": 0b0100_0100,  # found less often in words, so in shorter pieces of them
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ()[]{}<>_-": 0b1011_0000,
    "0123456789": 0b1100_1011,
    "'\"`": 0b1011_1010,
    "!#$%&*+:;=?@\\^|~": 0b0100_0111,
    " \n\r/": 0,
}
_CONTROL = 0b1011_1111
_ACCENTED_LATIN = 0b0010_1011

_CONTINUATION: Final = bytes(range(0x80, 0xC0))  # of UTF-8: deleted, so that every character is one byte, its first
_ACCENTED = range(0xC3, 0xCA)  # first bytes of accented Latin letters


def _code(byte: int) -> int:
    if byte >= 0x80:
        return _ACCENTED_LATIN if byte in _ACCENTED else 0
    return next((code for chars, code in _CODES.items() if chr(byte) in chars), _CONTROL)


_CODE: Final = bytes(map(_code, range(256)))

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
_WEIGHTS: Final = bytes((1 << min(8, _eighths(byte))) - 1 for byte in range(256))
_WEIGHTS_ABOVE: Final = bytes((1 << max(0, _eighths(byte) - 8)) - 1 for byte in range(256))
_EIGHTH: Final = 0.129  # a little more than one: spaces between words of such scripts count nothing by themselves


class LongText:
    """A long ASCII text that stays where it was read, a part of a body: as a string it would be copied."""

    __slots__ = ("_body", "_start", "_view", "size")

    def __init__(self, body: bytes, start: int, end: int) -> None:
        self._body = body
        self._start = start
        self._view = memoryview(body)[start:end]
        self.size = end - start

    def piece(self, start: int, end: int) -> bytes:
        """Characters of it."""
        at = self._start
        return self._body[at + start : at + min(end, self.size)]

    def view(self, start: int, end: int) -> memoryview:
        """The same, uncopied: cheaper from some thousand characters on."""
        return self._view[start:end]


LongTexts = Mapping[str, LongText]
"""Long texts by the marks that stand for them in lists of texts."""


def estimate_text(text: str) -> int:
    """Tokens of `text` in a usual vocabulary, at least 1 unless it is empty. A few nanoseconds a character, and the
    same for all texts above 8 Ki characters, which are looked at in 128 places."""
    size = len(text)
    if size <= _WHOLE:
        return math.ceil(_estimate(text))
    stride = (size - _WINDOW) / (_WINDOWS - 1)
    sample = "".join([text[int(place * stride) : int(place * stride) + _WINDOW] for place in range(_WINDOWS)])
    return math.ceil(_estimate(sample) * size / len(sample))


def estimate_texts(texts: list[str], long: LongTexts | None = None) -> int:
    """The same for all of these, a line each: one estimate is cheaper than one for every text."""
    if long is not None:
        return _estimate_long(texts, long)
    if len(texts) == 1:
        return estimate_text(texts[0])
    size = len(texts) - 1
    for text in texts:
        size += len(text)
    if size <= _WHOLE:
        return estimate_text("\n".join(texts))
    sample = _sample(texts, size, {})
    return math.ceil(_estimate(sample) * size / len(sample))


def _estimate_long(texts: list[str], long: LongTexts) -> int:
    """The same where marks stand for some of the texts."""
    size = len(texts) - 1
    for text in texts:
        whole = long.get(text)
        size += len(text) if whole is None else whole.size
    if size <= _WHOLE:
        return estimate_texts([text if text not in long else long[text].piece(0, size).decode() for text in texts])
    sample = _sample(texts, size, long)
    return math.ceil(_estimate(sample) * size / len(sample))


def _sample(texts: list[str], size: int, long: LongTexts) -> str:
    """The windows of texts that have `size` characters as lines, without making that one text of them."""
    stride = (size - _WINDOW) / (_WINDOWS - 1)
    parts: list[str] = []
    run: list[bytes] = []  # of one long text, windows one after the other: decoded at once
    number, begin, text = 0, 0, texts[0]  # the text where the next window starts, and where that text does
    whole = long.get(text) if long else None
    stop = len(text) if whole is None else whole.size
    for place in range(_WINDOWS):
        start = int(place * stride)
        end = start + _WINDOW
        while start < end:
            if start < stop:
                if whole is None:
                    parts.append(text[start - begin : end - begin])
                else:
                    run.append(whole.piece(start - begin, end - begin))
                start = min(stop, end)
                continue
            if run:
                parts.append(b"".join(run).decode())
                run.clear()
            if start == stop:
                parts.append("\n")
                start += 1
            number += 1
            begin, text = stop + 1, texts[number]
            whole = long.get(text) if long else None
            stop = begin + (len(text) if whole is None else whole.size)
    parts.append(b"".join(run).decode())
    return "".join(parts)


def estimate_schema(schema: object) -> int:
    """Tokens of a JSON value as chat templates write it out (tools, response formats); 0 for what is not JSON."""
    try:
        written = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return 0
    return estimate_text(written)


def _estimate(text: str) -> float:
    """The sum over all characters."""
    try:
        first = text.encode("utf-8")
    except UnicodeEncodeError:  # half a character: counts as one
        first = text.encode("utf-8", "replace")
    tokens = len(text) / 64
    if len(first) != len(text):  # not only ASCII
        first = first.translate(None, _CONTINUATION)
        for weights in (_WEIGHTS, _WEIGHTS_ABOVE):
            tokens += _EIGHTH * int.from_bytes(first.translate(weights), "little").bit_count()
    return tokens + _BIT * joint_bits(first.translate(_CODE))


RATIO_MIN: Final = 0.5
RATIO_MAX: Final = 4.0
"""Bounds of a correction. Beyond them something other than the vocabulary is wrong: a count for more is taken for the
most, which errs on the side of room; one for less teaches nothing, or a stand-in that counts ten tokens for whatever it
is sent would make every prompt small."""

_PRIOR_TOKENS: Final = 256.0  # an uncorrected estimate counts like this many observed tokens
_MEMORY_TOKENS: Final = 20_000.0  # what was seen longer ago than about this fades
_ONE_TOKENS: Final = 2_000  # no single request weighs more
_RESTORED_TOKENS: Final = 5_000.0


@dataclass(slots=True, eq=False)
class _Factor:
    """What was learned about one model."""

    ratio: float
    weight: float  # tokens behind it
    turn: int  # when it was learned, counted in observations


class Calibration:
    """Learns, for each model, by how much real prompt tokens differ from the estimate.

    The factor is a mean of observed ratios, weighted by tokens, that slowly forgets. Models that were not observed
    for longest are dropped when there are too many.
    """

    def __init__(self, max_models: int = 1024) -> None:
        self._max_models = max_models
        self._known: dict[str, _Factor] = {}
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Calibration of {len(self._known)} models>"

    def scale(self, model: str) -> float:
        """What to multiply an estimate for `model` by; 1 where nothing was observed."""
        known = self._known.get(model)
        return 1.0 if known is None else known.ratio

    def observe(self, model: str, estimated: int, actual: int) -> None:
        """An engine counted `actual` prompt tokens where `estimated` (before scaling) were expected."""
        if estimated <= 0 or actual < estimated * RATIO_MIN:
            return
        known = self._known.get(model)
        if known is None:
            known = self._keep(model, 1.0, _PRIOR_TOKENS)
        one = min(estimated, _ONE_TOKENS)
        self._turn += 1
        known.turn = self._turn
        known.ratio += (_clamp(actual / estimated) - known.ratio) * one / (known.weight + one)
        known.weight = min(known.weight + one, _MEMORY_TOKENS)

    def snapshot(self) -> dict[str, float]:
        """Factor of each model, those observed last at the end."""
        return {model: known.ratio for model, known in sorted(self._known.items(), key=lambda item: item[1].turn)}

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

    def _keep(self, model: str, ratio: float, weight: float) -> _Factor:
        """A model that is not known yet."""
        if len(self._known) >= self._max_models:
            del self._known[min(self._known, key=lambda name: self._known[name].turn)]
        self._turn += 1
        factor = self._known[model] = _Factor(ratio, weight, self._turn)
        return factor


def _clamp(ratio: float) -> float:
    return min(max(ratio, RATIO_MIN), RATIO_MAX)
