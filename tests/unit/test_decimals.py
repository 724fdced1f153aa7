"""Seconds as digits: the same as the interpreter's own formatting, whatever the number."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.decimals import micros, millis, wall_micros


@given(st.floats() | st.floats(0.0, 1e4) | st.integers(0, 10**7).map(lambda number: number / 2_000_000))
@example(0.0000005)
@example(0.9999995)
@example(1_799_999_999.9995)
@example(4e12)
@example(4e6)
@example(math.nan)
def test_digits_are_those_of_percent_f(seconds: float):
    if seconds or math.copysign(1.0, seconds) > 0:  # the sign of a zero is not kept
        assert micros(seconds) == b"%.6f" % seconds
        assert millis(seconds) == b"%.3f" % seconds


@given(st.floats(0.0, 4e9))
def test_a_time_of_day_is_within_what_a_float_holds(seconds: float):
    assert abs(float(wall_micros(seconds)) - seconds) < 1.1e-6
