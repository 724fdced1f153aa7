"""How long each step of a request may take, in a form that costs nothing to read.

The policy's own section is a model whose every attribute is looked up by name, in Python's slow way; a policy is read
for each request and changes once in a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.knobs import Timeouts


@dataclass(frozen=True, slots=True)
class Patience:
    """What the data plane needs of `Timeouts`, and of which it was read."""

    timeouts: Timeouts
    ttft_s: float
    token_gap_s: float
    head_hold_s: float
    total_s: float


_last: Final[list[Patience]] = []
"""The one that was asked for last: all requests have the same while the policy stays and nothing is tried out."""


def patience_of(timeouts: Timeouts) -> Patience:
    """The same numbers."""
    if len(_last) != 0 and _last[0].timeouts is timeouts:
        return _last[0]
    read = Patience(timeouts, timeouts.ttft_s, timeouts.token_gap_s, timeouts.head_hold_s, timeouts.total_s)
    _last[:] = [read]
    return read
