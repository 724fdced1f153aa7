"""How long each step of a request may take, in a form that costs nothing to read.

The policy's own section is a model whose every attribute is looked up by name, in Python's slow way; a policy is read
for each request and changes once in a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from policies.endpoints import GENERATING, Endpoint
from policies.knobs import Timeouts

if TYPE_CHECKING:
    from gateway.scheduling.model import Request

FIRST_BYTE_TOKENS: Final = 512
"""A whole answer comes when its last token is made: each so many allowed tokens earn it another `ttft_s`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an exchange has to know of its endpoint: whatever an enum's member is asked is a call of Python code."""

    name: str
    generates: bool


ASKED: Final = {endpoint: Asked(endpoint.value, endpoint in GENERATING) for endpoint in Endpoint}


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


def whole_answer_s(ttft_s: float, request: Request) -> float:
    """How long a whole answer may take to come."""
    tokens = request.max_output_tokens or request.p90_output
    return ttft_s * (1 + tokens * request.sequences / FIRST_BYTE_TOKENS)
