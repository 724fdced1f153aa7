"""Runs a replay or a ramp against a running gateway: the signals, the lines of a file, the steps.

`headrace loadtest replay` and `headrace loadtest ramp`; what is printed is in `cli_live.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson
from aiohttp import ClientSession

from loadtest.live_client import Player, Watch, new_book
from loadtest.live_figures import Goal, Record, Report
from loadtest.live_target import LiveError, Target, find_model, open_session
from loadtest.ramp import Ending, Range, Result, Step, ending, next_rate
from loadtest.recorded import at_rate
from loadtest.traces import TraceRequest
from loadtest.workload import Workload


@dataclass(frozen=True, slots=True)
class Replay:
    """Traffic, and where it goes. `seconds`: in which it is to be sent."""

    target: Target
    requests: list[TraceRequest]
    seconds: float
    goal: Goal
    seed: int


@dataclass(frozen=True, slots=True)
class Climb:
    """The same traffic at one rate after the other."""

    target: Target
    trace: Workload
    between: Range
    step_s: float
    skip_s: float
    goodput: float
    goal: Goal
    seed: int


class Lines:
    """A file with a line of JSON for each request, written as they end."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be written."""
        self._file: IO[bytes] | None = path.open("wb")
        self.trouble = ""  # why it is not complete

    def add(self, record: Record) -> None:
        """One more. A disk that is full ends the file, not the run."""
        if self._file is None:
            return
        try:
            self._file.write(orjson.dumps(record.as_dict()) + b"\n")
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._end(error)
            self._file = None

    def _end(self, error: OSError) -> None:
        self.trouble = error.strerror or str(error)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # it says the same again


async def run_replay(
    replay: Replay,
    *,
    stop: asyncio.Event,
    begin: Callable[[Target], None] = lambda _: None,
    ended: Callable[[Record], None] = lambda _: None,
    watch: Watch = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Play it. `begin` is told the target with its model. Raises LiveError when nothing can be sent."""
    async with open_session() as session:
        target = replace(replay.target, model=await _model(session, replay.target, stop))
        begin(target)
        player = Player(session, target, new_book(replay.seed), str(replay.seed), clock)
        return await player.play(replay.requests, replay.goal, replay.seconds, stop=stop, ended=ended, watch=watch)


async def run_ramp(
    climb: Climb,
    *,
    stop: asyncio.Event,
    begin: Callable[[Target], None] = lambda _: None,
    starts: Callable[[int, float], None] = lambda _, __: None,
    ended: Callable[[Step], None] = lambda _: None,
    watch: Watch = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Climb. A step that is cut off is not counted. Raises LiveError when nothing can be sent."""
    steps: list[Step] = []
    book = new_book(climb.seed)
    async with open_session() as session:
        target = replace(climb.target, model=await _model(session, climb.target, stop))
        begin(target)
        while (per_s := next_rate([(one.per_s, one.kept) for one in steps], climb.between)) is not None:
            seconds, requests = at_rate(climb.trace, per_s, seconds=climb.step_s, skip_s=climb.skip_s)
            starts(len(steps) + 1, per_s)
            # Another salt: prompts of the step before would be found in the engines' caches.
            player = Player(session, target, book, f"{climb.seed}-{len(steps)}", clock)
            report = await player.play(requests, climb.goal, seconds, stop=stop, watch=watch)
            if report.interrupted:
                return Result(tuple(steps), Ending.INTERRUPTED)
            step = Step(per_s, report, climb.goodput)
            steps.append(step)
            ended(step)
            if report.gone:
                return Result(tuple(steps), Ending.GONE)
    return Result(tuple(steps), ending(steps))


async def _model(session: ClientSession, target: Target, stop: asyncio.Event) -> str:
    """The model to ask for; LiveError also when it is ended while it looks."""
    found = asyncio.create_task(find_model(session, target))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({found, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            raise LiveError("ended before anything was sent")
        return found.result()
    finally:
        for task in (found, stopped):
            task.cancel()
        await asyncio.gather(found, stopped, return_exceptions=True)


def run_until_stopped(work: Callable[[asyncio.Event], Coroutine[Any, Any, Any]]) -> Any:
    """Run something that ends by itself, or soon after Ctrl-C or SIGTERM. A second one ends it at once."""
    import gc

    import uvloop

    gc.collect()
    gc.freeze()  # the recording: to look through all of it for garbage takes longer than a request may be late

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def stopped() -> None:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped)
        return await work(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


__all__ = ["Climb", "Lines", "LiveError", "Replay", "run_ramp", "run_replay", "run_until_stopped"]
