"""What the C library's allocator does with freed memory: it keeps some, instead of giving it back to ask again.

A body of half a mebibyte is a handful of large blocks that live for a millisecond. Where they are given back each time,
every page of them is faulted in and cleared again. glibc learns from what is freed how much to keep, but what it learns
depends on what came first: of the same load some processes faulted once a request and others a hundred times.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""Free memory at the heap's end that is kept, and the size from which on a block comes from the kernel and goes back to
it (glibc allows no larger one). Decoding a JSON body takes a block of twelve times its size, little of it touched."""

_TRIM_THRESHOLD: Final = -1  # of glibc's `mallopt`
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Set it for this process; False where the C library is not glibc, whose setting it is."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    mallopt = library.mallopt
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, KEPT_BYTES))
