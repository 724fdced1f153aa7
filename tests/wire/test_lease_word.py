"""A long prompt is told to the other gateways at once, not with the next beat."""

import asyncio
import random
import time

import pytest

from gateway.dispatcher import Dispatcher
from gateway.leasing import keeper as keeping
from gateway.leasing.keeper import Keeper
from gateway.leasing.lows import Lows
from gateway.log import Log
from gateway.process import start_valkey
from gateway.redis_link import RedisLink
from gateway.scheduling.model import Lease, Outcome, OutcomeKind, Request, Signal, WorkerSpec
from gateway.scheduling.scheduler import Scheduler
from policies.document import Policy


class Client:
    """Takes its lease, and what happens to all of them."""

    def __init__(self) -> None:
        self.lease: Lease | None = None

    def on_lease(self, lease: Lease) -> None:
        self.lease = lease

    def on_refused(self, refused: object) -> None:
        raise AssertionError(refused)

    def dispatched(self, lease: Lease) -> None:
        pass

    def settled(self, lease: Lease, outcome: Outcome) -> None:
        pass


class Replica:
    """A scheduler, its dispatcher and its keeper, on a Redis."""

    def __init__(self, url: str) -> None:
        self.errors: list[str] = []
        self.scheduler = Scheduler(Policy(), random.Random(1))
        lows = Lows(Client(), time.monotonic)
        self.dispatcher = Dispatcher(
            self.scheduler,
            clock=time.monotonic,
            timers=asyncio.get_running_loop(),
            on_change=lambda change: None,
            on_error=lambda error: self.errors.append(str(error)),
            watch=lows,
        )
        self.link = RedisLink(url, clock=time.monotonic, on_change=lambda up, why: None, on_error=self.errors.append)
        self.keeper = Keeper(
            "f",
            link=self.link,
            dispatcher=self.dispatcher,
            lows=lows,
            clock=time.monotonic,
            loss=lambda: "open",
            log=Log(None, None),
            expected=2,
        )
        spec = WorkerSpec("w", "short-chat", frozenset({"m"}), max_num_seqs=8)
        self.dispatcher.observe(spec, Signal(time.monotonic(), 0, 0, 0))

    def heard_s(self) -> float:
        return self.scheduler._fleet.workers["w"].others.prefill_s

    def ask(self, prompt_tokens: int) -> Client:
        client = Client()
        self.dispatcher.submit(Request("r", "t", 1, "m", ("short-chat",), prompt_tokens, 10), client)
        return client


async def eventually(what, within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def both_listen(link: RedisLink) -> None:
    until = time.monotonic() + 30.0
    listeners = 0
    while listeners < 2:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
        answer = await link.run(lambda redis: redis.pubsub_numsub("headrace:{f}:hints"))
        listeners = answer[0][1] if answer else 0


async def test_a_long_prompt_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = await start_valkey()
    try:
        one, two = Replica(valkey.url), Replica(valkey.url)
        for replica in (one, two):
            await replica.keeper.start()
        for _ in range(3):
            for replica in (one, two):
                await replica.keeper._beat()
        assert one.keeper.holder.shares["w"].held
        # From here on no beat comes within the test's time.
        monkeypatch.setattr(keeping, "PERIOD_S", 600.0)
        tasks = [asyncio.create_task(part) for each in (one, two) for part in (each.keeper.run(), each.keeper.listen())]
        short = one.ask(500)
        assert short.lease is not None
        await both_listen(one.link)
        assert two.heard_s() == 0.0
        long = one.ask(30_000)
        assert long.lease is not None
        await eventually(lambda: two.heard_s() > 1.0)
        for client in (short, long):
            one.dispatcher.settle(client.lease, Outcome(OutcomeKind.OK))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in (one, two):
            replica.dispatcher.stop()
            await replica.link.close()
            assert replica.errors == []
    finally:
        await valkey.stop(grace_s=1.0)
