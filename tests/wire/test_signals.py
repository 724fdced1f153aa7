"""The signals that end a program, sent to a small one in a process of its own."""

import asyncio
import signal
import sys

import pytest

PROGRAM = """
import asyncio, signal, sys
from gateway.signals import ending_signals

async def main():
    over = asyncio.Event()
    with ending_signals(lambda: print("first", flush=True), lambda: (print("again", flush=True), over.set())):
        print("ready", flush=True)
        await over.wait()
    signal.raise_signal(signal.SIGINT)  # too late to hurt
    print("end", flush=True)

if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
asyncio.run(main())
"""


class Program:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            return (await self.process.stdout.readline()).decode().strip()


async def started(how: str) -> Program:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, how, stdout=asyncio.subprocess.PIPE)
    program = Program(process)
    assert await program.line() == "ready"
    return program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_asks_the_second_insists_and_later_ones_are_ignored(number: signal.Signals) -> None:
    program = await started("plain")
    program.process.send_signal(number)
    assert await program.line() == "first"
    program.process.send_signal(signal.SIGTERM)
    assert await program.line() == "again"
    assert await program.line() == "end"
    assert await program.process.wait() == 0


async def test_a_hangup_that_was_ignored_stays_ignored() -> None:
    program = await started("nohup")
    program.process.send_signal(signal.SIGHUP)
    program.process.send_signal(signal.SIGTERM)
    assert await program.line() == "first"
    program.process.send_signal(signal.SIGHUP)
    program.process.send_signal(signal.SIGINT)
    assert await program.line() == "again"
    assert await program.line() == "end"
    assert await program.process.wait() == 0
