"""Does this installation keep its promises? `headrace verify`: check after check, end to end, through real sockets.

Simulated engines and gateways are processes of this run, on loopback and free ports, with their files in a temporary
directory: an installation that runs here is not touched. A check has its time; one that cannot be made is a figure that
falls short and says why.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from loadtest import verify_changes, verify_checks, verify_losses
from loadtest.live_target import open_session
from loadtest.verify_client import Writer
from loadtest.verify_figures import Figure
from loadtest.verify_fleet import Fleet, Layout, VerifyError
from loadtest.verify_stage import Lateness, Stage

CHECK_S: Final = 60.0  # of a check, its fleet's start aside
START_S: Final = 90.0
STOOD_S: Final = 3.0  # a virtual machine that is paused: every deadline of everybody is over when it goes on
ATTEMPTS: Final = 2
SHARED: Final = Layout()

Show = Callable[[str, Figure], None]
Begin = Callable[[str, int, int], None]  # a check, its number, of how many


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and how it is checked."""

    promise: str
    run: Callable[[Stage], Awaitable[list[Figure]]]
    layout: Layout = SHARED  # of the fleet that it needs; checks with equal ones share it
    alone: bool = False  # needs a fleet that nobody used, and leaves one that nobody can use
    starts: bool = True  # False: starts its fleet itself


CHECKS: Final[dict[str, Check]] = {
    "outcomes": Check(
        "every request ends in exactly one outcome, and clients, gateway and engines count the same",
        verify_checks.outcomes,
    ),
    "limits": Check(
        "no engine ever has more requests or tokens than its limits",
        verify_checks.limits, Layout(redis=False), alone=True,
    ),
    "pools": Check("short requests go to the short pool, long ones to the long pool", verify_checks.pools),
    "streams": Check(
        "streams arrive as the engine sent them and end with [DONE]",
        verify_checks.streams, Layout(short=1, long=0, redis=False), alone=True, starts=False,
    ),
    "order": Check("who waits is served by class", verify_checks.order),
    "deadlines": Check("nobody waits longer than was promised", verify_checks.deadlines),
    "departures": Check("a client that leaves frees its place at once", verify_checks.departures),
    "full-queue": Check("a full queue says so, and when to come again", verify_changes.full_queue),
    "live-policy": Check("a policy applied under load loses nothing and is in force", verify_changes.live_policy),
    "bad-policy": Check("a policy that is refused changes nothing", verify_changes.bad_policy),
    "drain": Check("a worker is drained without a loss", verify_changes.drain),
    "bad-input": Check("bad requests get the right status and code, and reach no engine", verify_changes.bad_input),
    "closed-doors": Check("what is for operators is closed to clients", verify_changes.closed_doors),
    "keys": Check(
        "where keys exist, nobody is served without one",
        verify_losses.keys, Layout(short=1, long=0, redis=False), alone=True,
    ),
    "replicas": Check(
        "limits hold over several gateways",
        verify_losses.replicas, Layout(short=1, long=0, processes=2), alone=True,
    ),
    "engine-loss": Check(
        "an engine that dies costs nobody who had no answer yet, and tells the others",
        verify_losses.engine_loss, Layout(long=0, redis=False, speed=1.0), alone=True,
    ),
    "redis-loss": Check(
        "no request notices that Valkey is gone", verify_losses.redis_loss, Layout(short=1, long=0), alone=True
    ),
    "graceful-stop": Check(
        "a gateway that is stopped serves whom it has accepted",
        verify_losses.graceful_stop, Layout(long=0, redis=False), alone=True,
    ),
}  # fmt: skip
"""In the order in which they are made."""


async def run_verify(
    show: Show,
    *,
    only: Sequence[str] = (),
    seed: int = 0,
    scale: float = 1.0,
    begin: Begin = lambda _, __, ___: None,
    checks: Mapping[str, Check] = CHECKS,
    check_s: float = CHECK_S,
    stood_s: float = STOOD_S,
    interrupted: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the checks, all or those in `only`; whether every figure was reached. Whatever ends it, nothing is left.

    `scale`: how much of everything to send, 1 is the usual; `check_s`: how long a check may take; `stood_s`: one that
    fell short while this machine stood still for so long is made again, once; `interrupted`: asked after each, because
    a group of tasks whose own errors came first does not pass a cancellation on.
    """
    chosen = [name for name in checks if not only or name in only]
    kept = True
    with TemporaryDirectory(prefix="headrace-verify-") as directory:
        async with Fleets(Path(directory)) as fleets:
            for number, name in enumerate(chosen, 1):
                begin(name, number, len(chosen))
                for _ in range(ATTEMPTS):
                    async with Lateness() as late:
                        figures = await _checked(checks[name], fleets, Random(f"{seed}/{name}"), scale, check_s)
                    if late.most_s < stood_s or all(figure.ok for figure in figures) or interrupted():
                        break
                if interrupted():
                    raise asyncio.CancelledError
                for figure in figures:
                    kept = kept and figure.ok
                    show(name, figure)
    return kept


async def _checked(check: Check, fleets: Fleets, rng: Random, scale: float, check_s: float) -> list[Figure]:
    limit_s = START_S
    try:
        async with asyncio.timeout(START_S):
            fleet = await fleets.of(check)
        limit_s = check_s
        async with asyncio.timeout(check_s):
            found = await check.run(Stage(fleet, Writer(rng), rng, scale))
    except TimeoutError:
        what = "it" if limit_s == check_s else "its fleet"
        found = [_not_made(f"{what} was not done within {limit_s:g} s")]
    except Exception as error:  # whatever keeps a check from being made is a figure that falls short
        found = [_not_made(_why(error))]
    if check.alone or not all(figure.ok for figure in found):
        await fleets.drop()  # the next check must not find its traces
    return found


def _not_made(why: str) -> Figure:
    return Figure("the check could be made", 0, f"1; it could not: {why}", ok=False)


def _why(error: BaseException) -> str:
    """In one line; of several, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    said = " ".join(str(error).split())[:300]
    return said if isinstance(error, VerifyError) else f"{type(error).__name__} {said}".strip()


class VerifyInterrupted(Exception):  # noqa: N818 - it is no error of the suite
    """A signal ended the run; everything that it had started has ended, too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_until_interrupted(show: Show, *, only: Sequence[str] = (), seed: int = 0, begin: Begin) -> bool:
    """The same, until Ctrl-C or SIGTERM: then everything is stopped, and `VerifyInterrupted` raised."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        came: list[int] = []
        running = asyncio.ensure_future(
            run_verify(show, only=only, seed=seed, begin=begin, interrupted=lambda: bool(came))
        )

        def interrupt(number: int) -> None:
            came.append(number)
            running.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt, number)
        await asyncio.wait({running})
        if came and running.cancelled():
            raise VerifyInterrupted(came[0])
        return running.result()

    return asyncio.run(main())


class Fleets:
    """The one fleet that runs, of the layout that was asked for last."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._session: aiohttp.ClientSession | None = None
        self._fleet: Fleet | None = None
        self._made = 0

    async def __aenter__(self) -> Fleets:
        self._session = open_session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        assert self._session is not None
        await self._session.close()

    async def of(self, check: Check) -> Fleet:
        """A fleet for a check, at rest and with the shipped policy. Raises what starting one raises."""
        if self._fleet is not None and (check.alone or self._fleet.layout != check.layout):
            await self.drop()
        if self._fleet is not None:
            await self._fleet.fault_all("none")
            await self._fleet.set_policy({})
            if held := await self._fleet.rest():
                raise VerifyError(f"the check before left work behind: {held:g}")
            return self._fleet
        assert self._session is not None
        self._made += 1
        home = self._home / f"fleet-{self._made}"
        home.mkdir()
        self._fleet = Fleet(check.layout, home, self._session)
        if check.starts:
            await self._fleet.start()
        return self._fleet

    async def drop(self) -> None:
        """End what runs, if anything does, however often one is interrupted meanwhile."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await asyncio.shield(asyncio.ensure_future(fleet.stop()))
