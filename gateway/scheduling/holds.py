"""Room kept free for a ticket that has waited long and that no worker has room for.

A ticket that needs much KV, or several places at once, is passed over by smaller ones for as long as these take
whatever becomes free. Once it has waited a share of the time it may (`admission.hold_room_after`) and it is its turn,
yet one whose turn comes later gets a place, one worker is held for it: the one that is likely to have the room first
takes no other ticket of its class or of a lower one until the ticket has gone, wherever it went. Higher classes pass a
hold, unless the ticket's class is owed its floor.

One ticket of a home pool holds, and it holds one worker. A hold ends with the ticket's wait at the latest, and with the
worker's readiness; a worker that has nothing to do takes any ticket. So nothing waits for a hold for ever, and what
idles is what the ticket is going to fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.scheduling.model import Ticket
    from gateway.scheduling.queue import Bucket, Place
    from gateway.scheduling.worker import Worker


class Hold:
    """One worker, held for one ticket that waits in a line."""

    __slots__ = ("_holds", "home", "klass", "owed", "place", "ticket", "worker")

    def __init__(self, holds: Holds, place: Place, worker: Worker) -> None:
        self._holds = holds
        self.place = place
        self.ticket = place.ticket
        self.klass = place.line.flow.klass
        self.home = place.lane.home
        self.worker = worker
        self.owed = False  # its class is owed its floor: higher ones do not pass

    def end(self) -> None:
        """Let the worker go."""
        self.worker.hold = None
        self.place.hold = None
        self._holds.ended(self)

    def bars(self, ticket: Ticket, klass: int) -> bool:
        """Whether another ticket, of that class, must not go to the worker."""
        return ticket is not self.ticket and (klass >= self.klass or self.owed)


class Holds:
    """All holds, one for each home pool at most."""

    __slots__ = ("by_home", "freed")

    def __init__(self) -> None:
        self.by_home: dict[str, Hold] = {}  # empty most of the time, which is asked for each request
        self.freed = False  # a hold has ended since somebody took this back: others may have room now

    def __len__(self) -> int:
        return len(self.by_home)

    def ended(self, hold: Hold) -> None:
        """For `Hold.end`."""
        del self.by_home[hold.home]
        self.freed = True

    def review(self, owed: Collection[tuple[str, int]]) -> None:
        """Before a pass: end holds of workers that take nothing now, and those for whom their tenant is in the way.

        `owed`: home pools and classes that are due their floor.
        """
        for hold in list(self.by_home.values()):
            worker = hold.worker
            place = hold.place
            if (
                not worker.ready
                or not worker.limit
                or worker not in place.lane.workers
                or place.line.flow.tenant.full  # it could not go now, room or not
            ):
                hold.end()
            else:
                hold.owed = (hold.home, hold.klass) in owed

    def clear(self) -> None:
        """End them all."""
        for hold in list(self.by_home.values()):
            hold.end()

    def of(self, klass: int, home: str | None = None) -> list[Hold]:
        """Those of a class, of one home pool or of all."""
        return [hold for hold in self.by_home.values() if hold.klass == klass and home in (None, hold.home)]

    def wants(self, place: Place, share: float, now: float) -> bool:
        """Whether a ticket that no worker has room for has waited long enough, and no other of its pool holds already.

        One of a higher class takes the place of one that holds.
        """
        ticket = place.ticket
        if now - ticket.since < share * (ticket.queue_until - ticket.since):
            return False
        hold = self.by_home.get(place.lane.home)
        return hold is None or place.line.flow.klass < hold.klass

    def hold(self, place: Place) -> None:
        """Hold for a ticket the worker that is likely to have room for it first; none if none can be held."""
        lane, bucket = place.lane, place.bucket
        before = self.by_home.get(lane.home)
        free = [
            worker
            for worker in lane.workers
            if worker.ready
            and not worker.health.probing
            and worker.limit
            and worker.max_len >= bucket.length
            and worker.spec.id not in bucket.excluded
            and worker.spec.pool not in lane.guest_pools
            and (worker.hold is None or worker.hold is before)
        ]
        at_home = [worker for worker in free if lane.workers[worker] <= 1.0]
        if not free:
            return
        if before is not None:
            before.end()
        worker = min(at_home or free, key=lambda one: room_after_s(one, bucket))
        worker.hold = place.hold = self.by_home[lane.home] = Hold(self, place, worker)

    @staticmethod
    def beside(
        workers: list[Worker], factors: list[float], ticket: Ticket, klass: int
    ) -> tuple[list[Worker], list[float]]:
        """Those of `workers`, with their factors, that are not held for others than this ticket."""
        found = [at for at, worker in enumerate(workers) if worker.hold is None or not worker.hold.bars(ticket, klass)]
        return [workers[at] for at in found], [factors[at] for at in found]


def needed_kv(worker: Worker, bucket: Bucket) -> int:
    """KV tokens that a ticket of that bucket takes of a worker."""
    return min(bucket.kv_each, worker.max_len) * bucket.sequences


def room_after_s(worker: Worker, bucket: Bucket) -> float:
    """About how long until a worker has room for a ticket of that bucket, if it is sent nothing else.

    The share of what it holds that has to end first, in KV or in places, of the mean that is left of its leases.
    """
    if not worker.leases:
        return 0.0
    lacking_kv = max(needed_kv(worker, bucket) - worker.kv_free, 0.0) / max(worker.kv_tokens, 1)
    places = min(bucket.sequences, worker.limit)
    lacking_places = max(places - (worker.limit - worker.in_flight), 0) / worker.in_flight
    left_s = worker.prefill_s * worker.stretch + worker.decode_s / worker.leases
    return max(lacking_kv, lacking_places) * left_s
