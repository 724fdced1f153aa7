"""How much delay the streams on a worker can bear before the time per token that they were promised is broken.

A stream of o tokens that takes step seconds a token has (promise - step) · o seconds to spare. The engine puts other
prompts' prefill between its tokens, so each prefill that the worker is sent takes as much from every stream there.
Streams are therefore kept by the reading of one clock at which they break, and the clock moves on by the prefill that
is sent: an event costs the same whether a worker holds three streams or three hundred.

A prefill of p seconds counts as breaking min(1, p / slack)² of each stream: nearly nothing where there is plenty,
one where it takes all that is left, and in between because output lengths are guesses. A stream whose promise is broken
already no longer counts.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKET_S: Final = 0.5
BUCKETS: Final = 64  # a stream with more to spare than they hold is as safe as one with that much
LEAST_S: Final = 0.3  # slack of a new stream, and what is added to every slack: guesses are no better than that


class Slack:
    """The streams of one worker by what they can still bear."""

    __slots__ = ("_below", "_counts", "_edges", "_fresh", "_tails", "clock_s")

    def __init__(self) -> None:
        self.clock_s = 0.0  # prefill sent so far
        self._counts: dict[int, int] = {}  # bucket -> streams; only buckets that are ahead of the clock
        self._fresh = True
        self._edges: list[float] = []  # slack of each bucket, ascending; for it, streams in those before …
        self._below: list[int] = [0]
        self._tails: list[float] = [0.0]  # … and the sum of 1/slack² over its own and all after it

    def delay(self, seconds: float) -> None:
        """A prefill of so many seconds was sent."""
        clock_s = self.clock_s
        self.clock_s = clock_s + seconds
        self._fresh = False
        if not self._counts:
            return
        before, passed = self._bucket(clock_s), self._bucket(self.clock_s)
        if passed > before:
            if passed - before > BUCKETS:
                self._counts.clear()
            for bucket in range(before, min(passed, before + BUCKETS + 1)):
                self._counts.pop(bucket, None)

    def enter(self, breaks_at_s: float) -> float | None:
        """A stream breaks when the clock shows that much. What to `leave` with; None if it is broken already."""
        if breaks_at_s < self.clock_s:
            return None
        breaks_at_s = min(breaks_at_s, self.clock_s + BUCKETS * BUCKET_S)
        bucket = self._bucket(breaks_at_s)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._fresh = False
        return breaks_at_s

    def leave(self, breaks_at_s: float) -> None:
        """A stream that entered has ended, or breaks at another time now."""
        bucket = self._bucket(breaks_at_s)
        count = self._counts.get(bucket)
        if count is None:
            return  # the clock has passed it
        self._fresh = False
        if count > 1:
            self._counts[bucket] = count - 1
        else:
            del self._counts[bucket]

    def broken_by(self, delay_s: float) -> float:
        """How many promises a delay of so many seconds to every stream is expected to break."""
        if not self._fresh:
            self._tabulate()
        at = bisect_left(self._edges, delay_s)
        return self._below[at] + delay_s * delay_s * self._tails[at]

    def _tabulate(self) -> None:
        counts, clock = self._counts, self.clock_s
        edges: list[float] = []
        below = [0]
        weights: list[float] = []
        for bucket in sorted(counts):
            slack = max((bucket + 0.5) * BUCKET_S - clock, 0.0) + LEAST_S
            count = counts[bucket]
            edges.append(slack)
            below.append(below[-1] + count)
            weights.append(count / (slack * slack))
        tail = 0.0
        tails = [0.0]
        for weight in reversed(weights):
            tail += weight
            tails.append(tail)
        tails.reverse()
        self._edges, self._below, self._tails = edges, below, tails
        self._fresh = True

    @property
    def empty(self) -> bool:
        """Whether no delay breaks any promise: there is no stream, or none that is not broken already."""
        return not self._counts

    @staticmethod
    def _bucket(clock_s: float) -> int:
        return int(clock_s / BUCKET_S)

    def __len__(self) -> int:
        return sum(self._counts.values())
