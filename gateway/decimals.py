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


def digits(number: int) -> bytes:
    """A whole number; most are small."""
    return _FIRST[number] if 0 <= number < 1024 else b"%d" % number


def digits_or_null(number: int | None) -> bytes:
    """The same of one that may not be known, for JSON."""
    return b"null" if number is None else digits(number)


def micros(seconds: float) -> bytes:
    """With six digits behind the point."""
    if seconds == 0.0:
        return b"0.000000"
    scaled = seconds * 1e6
    if not 0.0 <= scaled < _MOST:
        return b"%.6f" % seconds
    whole = int(scaled)
    rest = scaled - whole
    if rest > _LOW:
        if rest < _HIGH:
            return b"%.6f" % seconds
        whole += 1
    if whole < 1_000_000:
        return _BELOW_ONE[whole // 1000] + _THREE[whole % 1000]
    return b"%b.%b%b" % (digits(whole // 1_000_000), _THREE[whole // 1000 % 1000], _THREE[whole % 1000])


def wall_micros(seconds: float) -> bytes:
    """With six digits behind the point, of which a time of day as a float knows about as much."""
    whole = int(seconds * 1e6 + 0.5)
    return b"%d.%b%b" % (whole // 1_000_000, _THREE[whole // 1000 % 1000], _THREE[whole % 1000])


def millis(seconds: float) -> bytes:
    """With three digits behind the point."""
    scaled = seconds * 1e3
    if not 0.0 <= scaled < _MOST:
        return b"%.3f" % seconds
    whole = int(scaled)
    rest = scaled - whole
    if rest > _LOW:
        if rest < _HIGH:
            return b"%.3f" % seconds
        whole += 1
    return b"%d.%b" % (whole // 1000, _THREE[whole % 1000])
