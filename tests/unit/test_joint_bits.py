"""Bits that bytes have together with their neighbours. On the compiled core the C function is asked."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.joint_bits import joint_bits


@given(st.binary(max_size=100))
def test_they_are_added_up_place_by_place(codes: bytes) -> None:
    around = b"\0" + codes + b"\0"
    assert joint_bits(codes) == sum((before | here).bit_count() for before, here in pairwise(around))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 16, 17, 8192])
def test_of_any_size(size: int) -> None:
    assert joint_bits(b"\xff" * size) == (8 * (size + 1) if size else 0)
    assert joint_bits(b"\0" * size) == 0


@pytest.mark.parametrize("wrong", ["text", None, 7, [1, 2, "x"]])
def test_what_is_no_bytes_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        joint_bits(wrong)  # type: ignore[arg-type]
