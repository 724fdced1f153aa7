"""The shell around the quarantine: hears of resets, asks whether the workers live, and answers for what is held.

A worker counts as dead when, within `PROBE_S` of the reset, it once takes no connection, does not answer, or says with
a 5xx that its engine is gone. That a process was killed shows at once; a server whose engine has died still answers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.http.worker_connection import AnswerSink
from gateway.quarantine import Quarantine, Sighting

if TYPE_CHECKING:
    from gateway.http.known_heads import AnswerHead
    from gateway.http.upstream import UpstreamPool
    from gateway.http.worker_connection import UpstreamConnection
    from gateway.scheduling.model import OutcomeKind

PROBE_S: Final = 5.0
PROBE_EVERY_S: Final = 0.5
MAX_PROBES: Final = 16
"""Suspect bodies whose workers are watched at once; further ones are not quarantined, only not tried again."""


class PoisonGuard:
    """Keeps requests that workers die of from the others. `on_held` gets the workers that were lost.

    `news` is set when something was seen that other gateways of the fleet want to know.
    """

    def __init__(
        self,
        upstreams: dict[str, UpstreamPool],
        clock: Callable[[], float],
        on_held: Callable[[Sequence[str]], None],
        *,
        probe_s: float = PROBE_S,
        probe_every_s: float = PROBE_EVERY_S,
    ) -> None:
        self._probe_s = probe_s
        self._upstreams = upstreams
        self._clock = clock
        self._on_held = on_held
        self.news = asyncio.Event()
        self._probe_every_s = probe_every_s
        self.quarantine = Quarantine(secrets.token_bytes(32))
        self._probes: set[asyncio.Task[None]] = set()

    def on_reset(self, body: bytes, worker: str) -> bool:
        """A connection to `worker` was reset while it had this body; True: do not try it on another one."""
        mark = self.quarantine.fingerprint(body)
        workers = self.quarantine.observe_reset(mark, worker, self._clock())
        self.news.set()
        if workers:
            self._suspect(mark, workers)
        return bool(workers)

    def hear(self, sightings: Collection[Sighting]) -> int:
        """What other gateways saw; how many bodies are quarantined by that."""
        held, suspected = self.quarantine.hear(sightings, self._clock())
        for mark in suspected:
            # Of a worker that only others know nobody here can say whether it lives.
            workers = [worker for worker in self.quarantine.workers_of(mark) if worker in self._upstreams]
            if workers:
                self._suspect(mark, workers)
        return len(held)

    def _suspect(self, mark: bytes, workers: Sequence[str]) -> None:
        """Watch the workers that were lost under a body."""
        if len(self._probes) < MAX_PROBES:
            task = asyncio.get_running_loop().create_task(self._watch(mark, workers), name="poison-probe")
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    @property
    def active(self) -> bool:
        """Something is quarantined: bodies have to be looked at."""
        return self.quarantine.active

    def refusal(self, body: bytes) -> ErrorAnswer | None:
        """The answer to a quarantined body; None for any other."""
        left_s = self.quarantine.left_s(body, self._clock())
        if not left_s:
            return None
        message = f"Workers died of this very request; it is refused for {left_s:.0f} s more. Do not send it again."
        return ErrorAnswer(ErrorCode.REQUEST_QUARANTINED, message)

    async def close(self) -> None:
        """Watch nothing any more."""
        for task in list(self._probes):
            task.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)

    async def _watch(self, mark: bytes, workers: Sequence[str]) -> None:
        until = self._clock() + self._probe_s
        while self._clock() < until:
            for worker in workers:
                if await self._dead(worker, until):
                    if self.quarantine.convict(mark, self._clock()):
                        self.news.set()
                        self._on_held(workers)
                    return
            await asyncio.sleep(self._probe_every_s)

    async def _dead(self, worker: str, until: float) -> bool:
        pool = self._upstreams.get(worker)
        if pool is None:
            return True
        probe = _Probe(pool.prefix, pool.host_field, pool.authorization)
        task = pool.connect(probe)
        try:
            async with asyncio.timeout(max(until - self._clock(), self._probe_every_s)):
                return await probe.dead
        except TimeoutError:
            return True
        finally:
            task.cancel()
            probe.end()


class _Probe(AnswerSink):
    """Asks `/health` on a connection of its own."""

    def __init__(self, prefix: str, host: bytes, authorization: bytes | None) -> None:
        self.dead: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        credential = b"" if authorization is None else b"authorization: %b\r\n" % authorization
        self._head = b"GET %b/health HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (prefix.encode("ascii"), host, credential)
        self._connection: UpstreamConnection | None = None

    def end(self) -> None:
        """Whatever is still on its way is not waited for."""
        if self._connection is not None:
            self._connection.abort()

    def _tell(self, dead: bool) -> None:
        self._connection = None
        if not self.dead.done():
            self.dead.set_result(dead)

    def on_connected(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.ask(self, self._head, [], bodyless=False)

    def on_connect_failed(self, kind: OutcomeKind, detail: str) -> None:
        self._tell(True)

    def on_head(self, head: AnswerHead, length: int | None) -> None:
        self._status = head.status

    def on_piece(self, piece: bytes, last: bool, framed: bytes | None = None) -> None:
        if last:
            self._tell(self._status >= 500)

    def on_failed(self, kind: OutcomeKind, detail: str, stale: bool) -> None:
        self._tell(True)
