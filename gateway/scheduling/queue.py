"""The tickets that wait, in an order that is cheap to ask.

    lane (model, pools)  ─►  band (class)  ─►  line (tenant)  ─►  bucket (same needs)  ─►  ticket

Tickets of one bucket are feasible on exactly the same workers, so that one look at a bucket's first ticket answers
for all of them. Finding the next ticket looks at the flow with the least counter and the heads of its buckets, never
at the whole queue. Removal marks an entry dead and is O(1); heaps drop dead entries when they surface or prevail.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import TYPE_CHECKING, Final

from gateway.scheduling.model import Ticket

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Flow
    from gateway.scheduling.holds import Hold
    from gateway.scheduling.lanes import Lane

SAMPLE: Final = 64  # tickets of a bucket that are looked at to say how many go before another
SLACK: Final = 32  # dead entries that a heap may always hold


class Bucket:
    """What decides whether a worker can take a ticket. A lane has one for equal needs, so that it is its own key."""

    __slots__ = ("excluded", "kv_each", "length", "sequences", "some_excluded")

    def __init__(self, length: int, kv_each: int, sequences: int, excluded: frozenset[str]) -> None:
        self.length = length  # a worker's max_model_len must be at least this
        self.kv_each = kv_each  # KV tokens of one sequence, rounded up
        self.sequences = sequences
        self.excluded = excluded  # workers that failed it
        self.some_excluded = bool(excluded)

    def within(self, other: Bucket) -> bool:
        """Whether every worker that cannot take this cannot take the other either."""
        return (
            self.length <= other.length
            and self.kv_each <= other.kv_each
            and self.sequences <= other.sequences
            and self.excluded <= other.excluded
        )


def round_up(tokens: int) -> int:
    """`tokens` up to four significant bits: at most 1/8 more, so that a few buckets cover every size."""
    if tokens < 16:
        return max(tokens, 1)
    shift = tokens.bit_length() - 4
    return -(-tokens >> shift) << shift


class Place:
    """Where a ticket waits."""

    __slots__ = ("alive", "bucket", "hold", "key", "lane", "line", "ticket")
    __deletable__ = ("ticket",)  # told to the compiler

    def __init__(self, ticket: Ticket, lane: Lane, line: Line, bucket: Bucket, key: float) -> None:
        self.ticket = ticket
        self.lane = lane
        self.line = line
        self.bucket = bucket
        self.key = key
        self.alive = True
        self.hold: Hold | None = None  # of a worker that is kept for it


Entry = tuple[float, int, int, Place]  # key, order of admission, order of pushes: places are never compared
Heap = list[Entry]


class Line:
    """The tickets of one flow in one band."""

    __slots__ = ("band", "dead", "flow", "heaps", "id", "pushes", "size", "stamp")

    def __init__(self, flow: Flow, band: Band) -> None:
        self.flow = flow
        self.band = band
        self.heaps: dict[Bucket, Heap] = {}
        self.size = 0
        self.dead = 0
        self.stamp = 0  # of its only valid entry in the band's heap
        self.pushes = 0
        self.id = band.number()

    def resubmit(self) -> None:
        """Enter the band's order anew, with the flow's counter as it is."""
        self.stamp += 1
        self.band.enter(self)

    def push(self, place: Place) -> None:
        """Add a ticket."""
        heap = self.heaps.get(place.bucket)
        if heap is None:
            heap = self.heaps[place.bucket] = []
        self.pushes += 1
        heappush(heap, (place.key, place.ticket.sequence, self.pushes, place))
        self.size += 1

    def drop(self, place: Place) -> None:
        """Take a ticket out, wherever it stands."""
        place.alive = False
        del place.ticket  # its entry may stay for long: it must not keep the request with it
        self.size -= 1
        self.dead += 1
        if self.dead > self.size + SLACK:
            for bucket, heap in list(self.heaps.items()):
                alive = [entry for entry in heap if entry[3].alive]
                heapify(alive)
                if alive:
                    self.heaps[bucket] = alive
                else:
                    del self.heaps[bucket]
            self.dead = 0

    def before(self, place: Place) -> float:
        """How many of its tickets go before one of them: counted in a sample of each bucket."""
        count = 0.0
        for heap in self.heaps.values():
            step = max(len(heap) // SAMPLE, 1)
            sample = heap[::step]
            ahead = sum(1 for key, _, _, other in sample if other.alive and other is not place and key <= place.key)
            count += ahead * len(heap) / len(sample)
        return count

    def peek(self, blocked: set[Bucket]) -> Place | None:
        """The first ticket whose bucket is not blocked."""
        best: Entry | None = None
        emptied: list[Bucket] = []
        for bucket, heap in self.heaps.items():
            head = heap[0]
            while not head[3].alive:
                heappop(heap)
                self.dead -= 1
                if not heap:
                    emptied.append(bucket)
                    break
                head = heap[0]
            if heap and (best is None or head < best) and bucket not in blocked:
                best = head
        for bucket in emptied:
            del self.heaps[bucket]
        return None if best is None else best[3]


class Band:
    """One class in one lane: its lines by their flows' counters."""

    __slots__ = ("_heap", "_numbers", "lines", "virtual")

    def __init__(self) -> None:
        self.lines: dict[Flow, Line] = {}
        self.virtual = 0.0  # counter of the flow served last
        self._heap: list[tuple[float, int, int, Line]] = []
        self._numbers = 0

    def number(self) -> int:
        """A number for a new line: equals are served in the order in which they came."""
        self._numbers += 1
        return self._numbers

    def enter(self, line: Line) -> None:
        """Put a line into the order; its earlier entries are dead by their stamp."""
        heappush(self._heap, (line.flow.counter, line.id, line.stamp, line))
        if len(self._heap) > 4 * len(self.lines) + SLACK:
            self._heap = [(one.flow.counter, one.id, one.stamp, one) for one in self.lines.values()]
            heapify(self._heap)

    def least(self) -> float:
        """The counter that a flow coming back is lifted to: where those that wait are, else where service was."""
        head = self._head()
        return self.virtual if head is None else min(self.virtual, head.flow.counter)

    def served(self, counter: float) -> None:
        """A flow whose counter stood at `counter` was served from here."""
        if counter > self.virtual:
            self.virtual = counter

    def peek(self, blocked: set[Bucket]) -> Place | None:
        """The first ticket of the least flow that has one whose bucket is not blocked; full tenants are passed over."""
        aside: list[tuple[float, int, int, Line]] = []
        found = None
        while (line := self._head()) is not None:
            if not line.flow.tenant.full:
                found = line.peek(blocked)
                if found is not None:
                    break
            aside.append(heappop(self._heap))
        for entry in aside:
            heappush(self._heap, entry)
        return found

    def _head(self) -> Line | None:
        """The line with the least counter, after dead entries are dropped and grown counters sorted in again."""
        heap = self._heap
        while heap:
            counter, _, stamp, line = heap[0]
            if stamp != line.stamp:
                heappop(heap)
            elif counter != line.flow.counter:
                heapreplace(heap, (line.flow.counter, line.id, stamp, line))
            else:
                return line
        return None


def home_of(ticket: Ticket) -> str:
    """The pool that a ticket is at home in."""
    pools = ticket.request.pools
    return pools[0] if pools else ""


class Queue:
    """All tickets that wait, with the bounds' counts; those that back off are counted but stand in no line."""

    __slots__ = ("_again", "by_home", "bytes", "count", "fresh", "lanes", "of_pool")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.lanes: dict[Lane, None] = {}  # those with tickets in a line
        self.by_home: dict[tuple[str, int], int] = {}  # (home pool, class) -> tickets in lines
        self.of_pool: dict[str, list[int]] = {}  # home pool -> tickets, and their bytes
        self.fresh: dict[int, dict[Flow, None]] = {}  # class -> flows with tickets that had no attempt yet
        self._again: dict[int, OrderedDict[Ticket, None]] = {}

    def classes(self) -> list[int]:
        """Classes that have tickets, highest first."""
        if self._again:
            return sorted({*self.fresh, *self._again})
        return sorted(self.fresh) if len(self.fresh) > 1 else list(self.fresh)

    def tickets(self) -> list[Ticket]:
        """All of them, in the order in which they came."""
        found = [ticket for flows in self.fresh.values() for flow in flows for ticket in flow.fresh]
        found += [ticket for tickets in self._again.values() for ticket in tickets]
        found.sort(key=lambda ticket: ticket.sequence)
        return found

    def find(self, request_id: str) -> Ticket | None:
        """The ticket of a request; looks at all of them."""
        everyone = chain(
            (ticket for flows in self.fresh.values() for flow in flows for ticket in flow.fresh),
            (ticket for tickets in self._again.values() for ticket in tickets),
        )
        return next((ticket for ticket in everyone if ticket.request.id == request_id), None)

    def admit(self, ticket: Ticket, flow: Flow) -> None:
        """Count a ticket in."""
        request = ticket.request
        klass, size, pools = request.klass, request.body_bytes, request.pools
        home = pools[0] if pools else ""
        if ticket.attempts:
            self._again.setdefault(klass, OrderedDict())[ticket] = None
        else:
            if not flow.fresh:
                self.fresh.setdefault(klass, {})[flow] = None
            flow.fresh[ticket] = None
            flow.fresh_bytes += size
        self.count += 1
        self.bytes += size
        held = self.of_pool.get(home)
        if held is None:
            held = self.of_pool[home] = [0, 0]
        held[0] += 1
        held[1] += size
        flow.tenant.queued += 1
        flow.tenant.queued_bytes += size
        flow.waiting += 1

    def stand(self, ticket: Ticket, lane: Lane, flow: Flow, bucket: Bucket, key: float) -> None:
        """Put an admitted ticket into its line."""
        band = lane.band(flow.klass)
        line = band.lines.get(flow)
        if line is None:
            line = band.lines[flow] = Line(flow, band)
            flow.lines[line] = None
            line.resubmit()
        place = ticket.place = Place(ticket, lane, line, bucket, key)
        line.push(place)
        lane.waiting += 1
        lane.buckets[bucket] = lane.buckets.get(bucket, 0) + 1
        self.lanes[lane] = None
        home = (lane.home, flow.klass)
        self.by_home[home] = self.by_home.get(home, 0) + 1

    def step_out(self, ticket: Ticket) -> None:
        """Take a ticket out of its line, if it stands in one; it stays admitted."""
        place = ticket.place
        if place is None:
            return
        ticket.place = None
        if place.hold is not None:
            place.hold.end()
        lane, line = place.lane, place.line
        line.drop(place)
        if not line.size:
            line.stamp += 1
            del line.band.lines[line.flow]
            del line.flow.lines[line]
        lane.waiting -= 1
        left = lane.buckets[place.bucket] - 1
        if left:
            lane.buckets[place.bucket] = left
        else:
            del lane.buckets[place.bucket]
        if not lane.waiting:
            del self.lanes[lane]
        home = (lane.home, line.flow.klass)
        self.by_home[home] -= 1
        if not self.by_home[home]:
            del self.by_home[home]

    def leave(self, ticket: Ticket, flow: Flow) -> None:
        """Count a ticket out, for whatever reason."""
        self.step_out(ticket)
        request = ticket.request
        klass, size, pools = request.klass, request.body_bytes, request.pools
        home = pools[0] if pools else ""
        if ticket in flow.fresh:
            del flow.fresh[ticket]
            flow.fresh_bytes -= size
            if not flow.fresh:
                del self.fresh[klass][flow]
                if not self.fresh[klass]:
                    del self.fresh[klass]
        else:
            del self._again[klass][ticket]
            if not self._again[klass]:
                del self._again[klass]
        self.count -= 1
        self.bytes -= size
        held = self.of_pool[home]
        held[0] -= 1
        held[1] -= size
        if not held[0]:
            del self.of_pool[home]
        flow.tenant.queued -= 1
        flow.tenant.queued_bytes -= size
        flow.waiting -= 1

    def standing_in(self, lane: Lane) -> list[Ticket]:
        """The tickets in a lane's lines, in the order in which they came."""
        found = [
            entry[3].ticket
            for band in lane.bands()
            for line in band.lines.values()
            for heap in line.heaps.values()
            for entry in heap
            if entry[3].alive
        ]
        found.sort(key=lambda ticket: ticket.sequence)
        return found
