"""Numbers as digits. Seconds are written as `%.6f` and `%.3f` write them, but out of whole numbers, which takes a
quarter of the time in the compiled core; where the last digit hangs on what a float cannot hold, it is left to those.
"""

from __future__ import annotations

from typing import Final

_THREE: Final = [b"%03d" % number for number in range(1000)]
_LOW: Final = 0.499
_HIGH: Final = 0.501
_MOST: Final = 4e12  # what is scaled is off by less than 0.0005 up to here

_FIRST: Final = [b"%d" % number for number in range(1024)]
_BELOW_ONE: Final = [b"0.%03d" % number for number in range(1000)]


class _Second:
    """The second that was written last, which most often is the next one too."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (0, b"0.")  # in one, so that no other thread sees the number of one and the digits of another

    def to(self, whole: int) -> bytes:
        """These seconds and the point behind them."""
        number, said = self._last
        if number != whole:
            said = b"%d." % whole
            self._last = (whole, said)
        return said


_SECOND: Final = _Second()


def digits(number: int) -> bytes:
    """A whole number; most are small."""
    return _FIRST[number] if 0 <= number < 1024 else b"%d" % number


def digits_or_null(number: int | None) -> bytes:
    """The same of one that may not be known, for JSON."""
    return b"null" if number is None else digits(number)


def _nearest(scaled: float) -> int:
    """The nearest whole number; -1 where it is out of range, or hangs on what a float cannot hold."""
    if not 0.0 <= scaled < _MOST:
        return -1
    whole = int(scaled)
    rest = scaled - whole
    if rest <= _LOW:
        return whole
    return -1 if rest < _HIGH else whole + 1


def micros(seconds: float) -> bytes:
    """With six digits behind the point."""
    if seconds == 0.0:
        return b"0.000000"
    return _SPAN.said(seconds)


class _Span:
    """The time that was written last: that of a request is written more than once."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (0.0, b"0.000000")  # in one, as above

    def said(self, seconds: float) -> bytes:
        """It with six digits."""
        number, said = self._last
        if number != seconds:
            said = _six_digits(seconds)
            self._last = (seconds, said)
        return said


_SPAN: Final = _Span()


def _six_digits(seconds: float) -> bytes:
    whole = _nearest(seconds * 1e6)
    if whole < 0:
        return b"%.6f" % seconds
    if whole < 1_000_000:
        return _BELOW_ONE[whole // 1000] + _THREE[whole % 1000]
    return b"%b.%b%b" % (digits(whole // 1_000_000), _THREE[whole // 1000 % 1000], _THREE[whole % 1000])


def micros_or_null(seconds: float | None) -> bytes:
    """The same of a time that may not be known, for JSON."""
    return b"null" if seconds is None else micros(seconds)


def wall_micros(seconds: float) -> bytes:
    """With six digits behind the point, of which a time of day as a float knows about as much."""
    whole = int(seconds * 1e6 + 0.5)
    return b"%b%b%b" % (_SECOND.to(whole // 1_000_000), _THREE[whole // 1000 % 1000], _THREE[whole % 1000])


def millis(seconds: float) -> bytes:
    """With three digits behind the point."""
    whole = _nearest(seconds * 1e3)
    if whole < 0:
        return b"%.3f" % seconds
    return _SECOND.to(whole // 1000) + _THREE[whole % 1000]
