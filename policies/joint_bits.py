"""Counts the bits that bytes or their neighbours have: what the estimate of tokens adds up.

The compiled core has the same function in C (`joint_bits.c`), eight bytes at once.
"""

from __future__ import annotations


def joint_bits(codes: bytes) -> int:
    """How many bits each byte and the one before it have together, over all places, with zeros around them.

    `b"\\x01\\x03"`: 1 at the first, 2 at the second, 2 behind it. As one large integer, in which looking at the byte
    before is a shift; all of it runs at memory speed.
    """
    number = int.from_bytes(codes, "little")
    return (number | number << 8).bit_count()
