"""File descriptors: as many as this process may have, and how many client connections they are good for.

A request in work takes two, the client's and the worker's. So half of what there is, less a reserve for everything
else, is the most connections that can be served at once; one more would take the descriptor of somebody's worker.
"""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 64
"""Left for the admin plane, Redis, logs and files (reliability rules, loop hygiene)."""

LEAST: Final = 96
"""Fewer descriptors than this are not worth starting with: sixteen connections."""


def raise_limit() -> int:
    """Allow this process as many open files as it may give itself; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft  # where the hard limit is "unlimited" the kernel may still have one: what there is must do
    return hard


def connection_cap(descriptors: int, wanted: int) -> int:
    """Client connections that may be open at once: `wanted`, or fewer where descriptors would not last.

    Raises ValueError where even a few could not be served.
    """
    if descriptors < LEAST:
        raise ValueError(f"only {descriptors} open files are allowed, {LEAST} are needed: raise the limit (ulimit -n)")
    return min(wanted, (descriptors - RESERVED) // 2)
