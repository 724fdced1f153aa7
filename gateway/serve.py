"""`headrace serve`: run the gateway that the settings describe until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.process import ChildError
from gateway.signals import ending_signals
from policies.problems import PolicyError

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from gateway.admin.access import Tokens
    from gateway.app import Addresses
    from gateway.settings import Settings


NOTHING_TO_REPLACE = "SIGUSR2: a single process cannot be replaced while it serves; set `processes` above 1"
NOTHING_TO_READ = "SIGHUP: there is nothing to read again, `policy` names no file"


class Face(Protocol):
    """Who tells the caller what happens. Each call is one thing to show."""

    def serving(self, addresses: Addresses) -> None:
        """The gateway accepts traffic."""

    def trouble(self, message: str) -> None:
        """Something went wrong, in one line."""

    def stopped(self) -> None:
        """Nothing runs any more."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a supervisor gives to one of several gateway processes.

    Its listeners; whether Redis was started just now, for this fleet; and whom to give the last metrics.
    """

    data: socket.socket
    admin: socket.socket
    fresh: bool
    at_end: Callable[[bytes], None]


async def run_serve(settings: Settings, face: Face, inherited: Inherited | None = None) -> int:
    """Run it; returns the exit status.

    The first signal lets running requests finish (`drain_s`), a second one ends them. SIGHUP reads the policy again;
    where there is no file of it and no terminal that could have gone, it means nothing.
    """
    from gateway.app import serve
    from gateway.start import on_hangup

    stop = asyncio.Event()
    hurry = asyncio.Event()
    gateway = asyncio.create_task(serve(settings, on_ready=face.serving, stop=stop, inherited=inherited))
    impatience = asyncio.create_task(hurry.wait())
    with ending_signals(stop.set, hurry.set), ExitStack() as stack:
        if settings.policy is None:
            on_hangup(stack, lambda: face.trouble(NOTHING_TO_READ))
        if inherited is None:
            # Unheard it would end us, and whoever sends it wants the opposite.
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR2, face.trouble, NOTHING_TO_REPLACE)
            stack.callback(loop.remove_signal_handler, signal.SIGUSR2)
        await asyncio.wait({gateway, impatience}, return_when=asyncio.FIRST_COMPLETED)
        # Once only: a second cancellation would cut the clean-up short.
        (impatience if gateway.done() else gateway).cancel()
        await asyncio.wait({gateway, impatience})
        status = 0
        if not gateway.cancelled():
            error = gateway.exception()
            status = gateway.result() if error is None else tell(error, face, settings.policy)
        if stop.is_set():
            face.stopped()
        return status


async def run_supervised(settings: Settings, face: Face) -> int:
    """Run several processes; returns the exit status.

    SIGHUP has them read the policy again where there is a file of it, SIGUSR2 replaces them one by one.
    """
    from gateway.app import Addresses
    from gateway.start import on_hangup
    from gateway.supervision.supervisor import supervise

    stop, hurry, replace, reload = (asyncio.Event() for _ in range(4))

    def ready(data: str, admin: str, tokens: Tokens) -> None:
        face.serving(Addresses(data, admin, tokens.made, tokens.kept_in))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, replace.set)
    with ending_signals(stop.set, hurry.set):
        async with AsyncExitStack() as stack:
            on_hangup(stack, reload.set)
            running = asyncio.create_task(
                supervise(settings, on_ready=ready, stop=stop, hurry=hurry, replace=replace, reload=reload)
            )
            await asyncio.wait({running})
        error = running.exception()
        status = running.result() if error is None else tell(error, face, settings.policy)
        if stop.is_set():
            face.stopped()
        return status


def tell(error: BaseException, face: Face, policy: Path | None = None) -> int:
    """Say in one line a fault what kept the gateway from running; the exit status. Raises what nobody expected.

    `policy`: the file that the faults of a policy are in.
    """
    from gateway.start import StartError

    if isinstance(error, PolicyError):
        for problem in error.problems:
            face.trouble(f"{policy}: {problem}" if policy is not None else str(problem))
        return 2
    if isinstance(error, StartError):
        face.trouble(str(error))
        return 2
    if isinstance(error, ChildError | OSError):
        face.trouble(str(error))
        return 1
    raise error
